/** The database of `--db memory`: it ends with its process, however that ends. */
import { existsSync, mkdirSync, readdirSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { getProcessStart } from '../../src/base/process-start.ts'
import { openTemporaryStore } from '../../src/proxy/store/sqlite/temporary-store.ts'
import { lockForWriting } from '../../src/proxy/store/sqlite/writer-lock.ts'
import { createSession } from '../conformance/turn-store.ts'
import { inProcess } from '../helpers/store-in-process.ts'

/** Creates a private folder for temporary files, until the test ends. */
function createTemporaryFolder(t: Test): string {
  const root = t.testdir({})
  const before = process.env.TMPDIR
  process.env.TMPDIR = root
  t.teardown(() => {
    if (before === undefined) delete process.env.TMPDIR
    else process.env.TMPDIR = before
  })
  return root
}

t.test(
  'its folder is accessible only to its owner, names its process, and is removed when the store closes',
  async (t) => {
    const root = createTemporaryFolder(t)
    const [one, two] = await Promise.all([
      openTemporaryStore({ spawn: inProcess }),
      openTemporaryStore({ spawn: inProcess }),
    ])
    const folders = readdirSync(root)
    t.equal(folders.length, 2, 'one process may have several')
    for (const name of folders) {
      t.ok(name.startsWith(`llm-proxy.${process.pid}.`), name)
      t.equal(statSync(join(root, name)).mode & 0o777, 0o700)
    }
    await one.createSession(createSession('s'))
    t.ok(await one.getSession('s'))
    t.notOk(await two.getSession('s'), 'they share nothing')
    await one.close()
    t.equal(readdirSync(root).length, 1)
    await two.close()
    t.strictSame(readdirSync(root), [])
  },
)

const knowsStart = getProcessStart(process.pid) !== undefined
t.test(
  'the next start removes the folder of a killed process, and nothing else',
  { skip: !knowsStart },
  async (t) => {
    const root = createTemporaryFolder(t)
    const start = (pid: number) => getProcessStart(pid)!.replace(' ', '_')
    const earlier = start(process.pid).replace(/_\d+$/, '_1')
    const [left, unfinished, locked, living, strange, link] = [
      `llm-proxy.${process.pid}.${earlier}.aaaaaa`,
      `llm-proxy.${process.pid}.${earlier}.bbbbbb`,
      `llm-proxy.${process.pid}.${earlier}.cccccc`,
      `llm-proxy.${process.ppid}.${start(process.ppid)}.dddddd`,
      'llm-proxy.notes',
      `llm-proxy.${process.pid}.${earlier}.eeeeee`,
    ].map((name) => join(root, name)) as [string, string, string, string, string, string]
    for (const folder of [left, unfinished, locked, living, strange]) mkdirSync(folder)
    symlinkSync(strange, link)
    for (const folder of [left, locked]) writeFileSync(join(folder, 'turns.db'), '')
    const { unlock } = lockForWriting(join(locked, 'turns.db'))
    const store = await openTemporaryStore({ spawn: inProcess })
    t.notOk(existsSync(left), 'of an ended process')
    t.notOk(existsSync(unfinished), 'of one that was killed before it created a database')
    t.ok(existsSync(locked), 'its database is open, in a container with other process ids')
    t.ok(existsSync(living), 'of a running process')
    t.ok(existsSync(strange), 'of another name')
    t.ok(existsSync(link), 'a link is not removed')
    unlock()
    await store.close()
  },
)

t.test('an unusable temporary folder is an error with a remedy', async (t) => {
  const root = createTemporaryFolder(t)
  process.env.TMPDIR = join(root, 'missing')
  await t.rejects(openTemporaryStore({ spawn: inProcess }), {
    code: 'start_failed',
    message: /--db memory.*missing.*set TMPDIR/,
  })
})
