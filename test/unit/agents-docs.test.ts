/** What docs/agents.md says of the tests with real agents. */
import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'

const ROOT = join(import.meta.dirname, '../..')
const DOCUMENT = readFileSync(join(ROOT, 'docs/agents.md'), 'utf8')

t.test('every test with a real agent is named where its agent is', async (t) => {
  const named = new Set(
    [...DOCUMENT.matchAll(/`(test\/agents\/[\w-]+\.test\.ts)`/g)].map(([, path]) => path!),
  )
  t.strictSame([...named].sort(), globSync('test/agents/*.test.ts', { cwd: ROOT }).sort())
})

t.test('what a test sets for its agent is what the document tells to set', async (t) => {
  for (const path of globSync('test/agents/{*.test.ts,histories/*-*.ts,parts/known-agents.ts}', {
    cwd: ROOT,
  })) {
    const program = readFileSync(join(ROOT, path), 'utf8')
    // The agents of one are in the folder of its name, those of the other are set by a rollout.
    if (/(histories|harbor)\.test\.ts$/.test(path)) continue
    const variables = [...program.matchAll(/\b([A-Z]+(?:_[A-Z]+)+): /g)].map(([, name]) => name!)
    const isElsewhere = program.includes("/known-agents.ts'")
    t.ok(isElsewhere || variables.length > 0, `${path} sets some`)
    for (const name of variables) t.match(DOCUMENT, name, `${name} of ${path}`)
  }
})
