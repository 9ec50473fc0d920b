/** The table of slow test files in CONTRIBUTING.md, and the result when a file becomes slow. */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { access } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { listDifferences, parseFileTimes, parseTable, replaceTable } from '../slowest.ts'

const ROOT = join(import.meta.dirname, '..', '..')
const TAP = `TAP version 14
# Subtest: test/groups/some.ts
    # Subtest: test/unit/a.test.ts
        ok 1 - test/unit/inner.test.ts # time=9999ms
    ok 1 - test/unit/a.test.ts # time=1500.25ms
ok 1 - test/groups/some.ts # time=1600ms

ok 2 - test/unit/b.test.ts # time=20.5ms
not ok 3 - test/integration/c.test.ts # time=4000ms
`
const file = (path: string, seconds: number) => ({ path, ms: seconds * 1000 })

t.test('the files of a run are sorted by their time, failed ones too', async (t) => {
  t.same(parseFileTimes(TAP), [
    { path: 'test/integration/c.test.ts', ms: 4000 },
    { path: 'test/unit/a.test.ts', ms: 1500.25 },
    { path: 'test/unit/b.test.ts', ms: 20.5 },
  ])
})

t.test('a table is read as it was written, in its page', async (t) => {
  const page = 'Before\n\n| file | seconds |\n|---|---|\n| `old` | 1.0 |\n\nAfter\n'
  const written = replaceTable(page, parseFileTimes(TAP))
  t.match(written, /^Before\n\n\| file .*\n\nAfter\n$/s)
  t.same(parseTable(written), [
    file('test/integration/c.test.ts', 4),
    file('test/unit/a.test.ts', 1.5),
    file('test/unit/b.test.ts', 0),
  ])
  t.throws(() => parseTable('no table'), /no table of slow test files/)
})

t.test('a file that became slow is reported, but not a machine that is slow in all of them', async (t) => {
  const table = [file('a', 30), file('b', 20), file('c', 10)]
  t.same(listDifferences(table, [...table, file('new', 29)]), [])
  t.same(listDifferences(table, [...table, file('new', 31)]), ['new took 31.0 s'])
  t.same(listDifferences(table, [file('a', 91), file('b', 20), file('c', 10)]), ['a took 91.0 s'])
  const tenfold = table.map(({ path, ms }) => ({ path, ms: 10 * ms }))
  t.same(listDifferences(table, tenfold), [])
  t.same(listDifferences(table, table.slice(1)), ['a did not run'])
  const quick = [file('a', 1)]
  t.same(listDifferences(quick, [...quick, file('new', 20)]), [], 'a few more seconds are ignored')
})

t.test('the table of CONTRIBUTING.md names twenty existing files', async (t) => {
  const table = parseTable(readFileSync(join(ROOT, 'CONTRIBUTING.md'), 'utf8'))
  t.equal(table.length, 20)
  for (const { path } of table) await access(join(ROOT, path))
})

t.test('a process that a test starts loads no module of the test runner', async (t) => {
  const options = execFileSync(process.execPath, ['--print', 'process.env.NODE_OPTIONS ?? ""'], {
    encoding: 'utf8',
  })
  t.equal(options.trim(), process.env.NODE_OPTIONS ?? '')
})
