import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'

const ROOT = join(import.meta.dirname, '../../../..')

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8')

/** The test files of a section, by the name of its dialect. */
const SECTIONS = {
  'All dialects': undefined,
  'OpenAI Chat Completions and Completions': 'chat',
  'OpenAI Responses': 'responses',
  'Anthropic Messages': 'messages',
}

/** Finds the test file of a label. */
function findTestFile(label: string, dialect: string | undefined): string | undefined {
  const candidates = [
    ...(dialect === undefined
      ? []
      : [`unit/proxy/dialects/${dialect}/${label}`, `integration/${label}-${dialect}`]),
    `unit/proxy/dialects/${label}`,
    `unit/proxy/dialects/${label}/${label}`,
    `unit/proxy/dialects/${label.replace('-', '/')}`,
    `unit/proxy/dialects/common/${label}`,
    `integration/agent-${label}`,
    `slow/agent-${label}`,
    `slow/${label}/dialects`,
    `unit/proxy/http/transport/${label}`,
  ]
  return candidates.map((name) => `test/${name}.test.ts`).find((path) => existsSync(join(ROOT, path)))
}

/** The tests of each feature that the page lists, by section: `agent: title of the test`. */
const PROOFS: Record<string, Record<string, string | string[]>> = JSON.parse(
  read('test/unit/proxy/dialects/features.json'),
)

for (const [heading, dialect] of Object.entries(SECTIONS)) {
  t.test(`every feature under "${heading}" has an existing test`, async (t) => {
    const section = read('docs/dialects.md')
      .split(/^## /m)
      .find((part) => part.startsWith(`${heading}\n`))
    const features = [...(section ?? '').matchAll(/^\| (.+?) \| /gm)].map(([, feature]) => feature!).slice(1)
    const proofs = PROOFS[heading] ?? {}
    t.strictSame(features, Object.keys(proofs), 'features.json names a test for each')
    for (const proof of Object.values(proofs).flat()) {
      const [, label, title] = /^([\w-]+): (.+)$/.exec(proof) ?? []
      const file = label === undefined ? undefined : findTestFile(label, dialect)
      const tests = file === undefined ? '' : read(file)
      // Titles generated for several dialects have the dialect's name before this text, or further text after
      // it.
      const starts = ["'", '"', '`', ': ', '} ']
      t.ok(title !== undefined && starts.some((start) => tests.includes(start + title)), proof)
    }
  })
}
