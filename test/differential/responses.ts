/**
 * Responses by published response templates: the proxy reads random ones, complete and streamed, as transformers does.
 */
import { execFileSync } from 'node:child_process'
import { globSync } from 'node:fs'
import { join } from 'node:path'
import { PythonResponses } from '../../src/proxy/tokens/templates/python/python-responses.ts'
import { differences, type PublishedResponses } from '../helpers/read-responses.ts'

/** Has templates for models whose files have none. */
export const TRL = 'trl==1.16.0'

interface CompareOptions {
  /** A Python with transformers. */
  python: string
  /** The download folder: TRL is in `wheels`. */
  cache: string
  /** Number of responses per template. */
  answers: number
  seed: string
}

/** @returns the number of differing readings */
export async function compareResponses({
  python,
  cache,
  answers: responses,
  seed,
}: CompareOptions): Promise<number> {
  const [wheel] = globSync('wheels/trl-*.whl', { cwd: cache })
  const script = join(import.meta.dirname, 'responses.py')
  const made = execFileSync(python, [script, join(cache, wheel!), String(responses), seed], {
    maxBuffer: 2 ** 30,
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  const { templates, cases, tools } = JSON.parse(made.toString()) as PublishedResponses
  const reader = await PythonResponses.start()
  let different = 0
  for (const [name, cased] of Object.entries(Object.groupBy(cases, ({ template }) => template))) {
    const template = reader.open(JSON.stringify(templates[name]))
    for (const one of cased!) {
      const found = differences(template, one, JSON.stringify(tools))
      different += found.length
      if (found.length > 0) console.log(name, JSON.stringify(found))
    }
  }
  console.log(
    `${cases.length} answers by ${Object.keys(templates).length} response templates: ${different} differ`,
  )
  return different
}
