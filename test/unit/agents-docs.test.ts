/** The statements of docs/agents.md about the tests with real agents. */
import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'

const ROOT = join(import.meta.dirname, '../..')
const DOCUMENT = readFileSync(join(ROOT, 'docs/agents.md'), 'utf8')

t.test('docs/agents.md names every test with a real agent beside its agent', async (t) => {
  const named = new Set(
    [...DOCUMENT.matchAll(/`(test\/agents\/[\w-]+\.test\.ts)`/g)].map(([, path]) => path!),
  )
  t.strictSame([...named].sort(), globSync('test/agents/*.test.ts', { cwd: ROOT }).sort())
})

t.test('each setting that a test makes for its agent is in the instructions of docs/agents.md', async (t) => {
  for (const path of globSync('test/agents/{*.test.ts,histories/*-*.ts,parts/known-agents.ts}', {
    cwd: ROOT,
  })) {
    const program = readFileSync(join(ROOT, path), 'utf8')
    // The agents of test/agents/histories have their own modules; a rollout configures those of Harbor.
    if (/(histories|harbor)\.test\.ts$/.test(path)) continue
    const variables = [...program.matchAll(/\b([A-Z]+(?:_[A-Z]+)+): /g)].map(([, name]) => name!)
    const isElsewhere = program.includes("/known-agents.ts'")
    t.ok(isElsewhere || variables.length > 0, `${path} makes settings`)
    for (const name of variables) t.match(DOCUMENT, name, `${name} of ${path}`)
  }
})
