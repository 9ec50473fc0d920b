/**
 * Compares how the proxy and transformers parse random completions by published response templates, complete and
 * streamed.
 */
import { execFileSync } from 'node:child_process'
import { globSync } from 'node:fs'
import { join } from 'node:path'
import { PythonResponses } from '../../src/proxy/tokens/templates/python/python-responses.ts'
import { findDifferences, type PublishedResponses } from '../helpers/read-responses.ts'

/** A package with templates for models whose files have none. */
export const TRL = 'trl==1.16.0'

interface CompareOptions {
  /** The path of a Python with transformers. */
  python: string
  /** The download folder, with TRL in `wheels`. */
  cache: string
  /** Number of completions per template. */
  completions: number
  seed: string
}

/** @returns the number of mismatches */
export async function compareResponses({
  python,
  cache,
  completions,
  seed,
}: CompareOptions): Promise<number> {
  const [wheel] = globSync('wheels/trl-*.whl', { cwd: cache })
  const script = join(import.meta.dirname, 'responses.py')
  const output = execFileSync(python, [script, join(cache, wheel!), String(completions), seed], {
    maxBuffer: 2 ** 30,
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  const { templates, cases, tools } = JSON.parse(output.toString()) as PublishedResponses
  const parser = await PythonResponses.start()
  let mismatches = 0
  for (const [name, ownCases] of Object.entries(Object.groupBy(cases, ({ template }) => template))) {
    const template = parser.open(JSON.stringify(templates[name]))
    for (const one of ownCases!) {
      const found = findDifferences(template, one, JSON.stringify(tools))
      mismatches += found.length
      if (found.length > 0) console.log(name, JSON.stringify(found))
    }
  }
  console.log(
    `${cases.length} completions by ${Object.keys(templates).length} response templates: ${mismatches} differ`,
  )
  return mismatches
}
