import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { Ledger } from '../../../../../src/rollout/runners/agentcore/ledger.ts'
import { killChild } from '../../../../helpers/children.ts'
import { until } from '../../../../helpers/until.ts'

const ENDPOINT = { arn: 'arn:1', qualifier: 'DEFAULT' }
/** Above the process ids of Linux and macOS. */
const NO_PID = 2 ** 30

/** Writes the file of a process that exited after it wrote these lines. */
function writeRecordFile(folder: string, name: string, head: object, ...lines: string[]): string {
  const path = join(folder, `${name}.sessions.jsonl`)
  const full = { version: 1, ...ENDPOINT, host: hostname(), pid: NO_PID, ...head }
  writeFileSync(path, [JSON.stringify(full), ...lines].join('\n'))
  return path
}

/** Only Linux reports the start times of processes; other systems do not soon reuse process ids. */
const onLinux = process.platform === 'linux' ? {} : { skip: 'only Linux has /proc' }

const opened = (id: string) => JSON.stringify({ opened: id })
const closed = (id: string) => JSON.stringify({ closed: id })

async function openLedger(t: Test, folder: string): Promise<Ledger> {
  const ledger = await Ledger.open(folder, ENDPOINT)
  t.teardown(() => ledger.close())
  return ledger
}

t.test(
  'a session is in the file before it is started, and the file is removed when all are stopped',
  async (t) => {
    const folder = t.testdir({})
    const ledger = await Ledger.open(folder, ENDPOINT)
    await ledger.recordOpened('a')
    const [name] = readdirSync(folder)
    t.match(readFileSync(join(folder, name!), 'utf8'), /\{"opened":"a"\}\n$/)
    await ledger.recordClosed('a')
    await ledger.close()
    t.strictSame(readdirSync(folder), [])
  },
)

t.test('sessions that a dead process left open are taken over, and are in a file at all times', async (t) => {
  const folder = t.testdir({})
  writeRecordFile(folder, 'old', {}, opened('a'), opened('b'), closed('a'), opened('c'), '{"opened":"d')
  const ledger = await Ledger.open(folder, ENDPOINT)
  t.strictSame(ledger.openSessions, ['b', 'c'])
  await ledger.recordClosed('b')
  await ledger.close()
  const [name, ...others] = readdirSync(folder)
  t.strictSame(others, [], 'the old file is removed')
  const text = readFileSync(join(folder, name!), 'utf8')
  writeFileSync(join(folder, name!), text.replace(`"pid":${process.pid},`, `"pid":${NO_PID},`))
  t.strictSame((await openLedger(t, folder)).openSessions, ['c'], 'and so on')
})

t.test("a living process keeps its sessions, and another runtime's are not touched", async (t) => {
  const folder = t.testdir({})
  writeRecordFile(folder, 'alive', { pid: process.ppid }, opened('a'))
  writeRecordFile(folder, 'elsewhere', { host: 'another', pid: NO_PID }, opened('b'))
  writeRecordFile(folder, 'other-runtime', { arn: 'arn:2' }, opened('c'))
  writeRecordFile(folder, 'other-endpoint', { qualifier: 'canary' }, opened('d'))
  writeFileSync(join(folder, 'notes.sessions.jsonl'), 'my notes')
  t.strictSame((await openLedger(t, folder)).openSessions, [])
  t.equal(readdirSync(folder).length, 6)
})

t.test("two runs of one process do not take over each other's sessions", async (t) => {
  const folder = t.testdir({})
  const first = await openLedger(t, folder)
  await first.recordOpened('a')
  t.strictSame((await openLedger(t, folder)).openSessions, [])
})

t.test(
  'a restarted container has the name and the process id of the one that crashed',
  onLinux,
  async (t) => {
    const folder = t.testdir({})
    writeRecordFile(folder, 'crashed', { pid: process.pid, started: 'of an earlier process' }, opened('a'))
    writeRecordFile(folder, 'sibling', { pid: process.ppid, started: 'of an earlier process' }, opened('b'))
    writeRecordFile(folder, 'of an earlier version', { pid: process.pid }, opened('c'))
    t.strictSame((await openLedger(t, folder)).openSessions.toSorted(), ['a', 'b', 'c'])
  },
)

t.test("another user's process with the id of a dead one is not that one", onLinux, async (t) => {
  const folder = t.testdir({})
  writeRecordFile(folder, 'crashed', { pid: process.ppid, started: 'of an earlier process' }, opened('a'))
  writeRecordFile(folder, 'alive', { pid: process.ppid }, opened('b'))
  const { kill } = process
  t.teardown(() => {
    process.kill = kill
  })
  process.kill = () => {
    throw Object.assign(new Error('not permitted'), { code: 'EPERM' })
  }
  const ledger = await Ledger.open(folder, ENDPOINT)
  t.same(ledger.openSessions, ['a'])
  await ledger.close()
})

t.test('a zombie process is dead', onLinux, async (t) => {
  const folder = t.testdir({})
  // `sleep` replaces the parent shell and does not reap its child, which exits afterwards.
  const child = 'while [ "$(cat /proc/$PPID/comm)" != sleep ]; do :; done'
  const parent = spawn('/bin/sh', ['-c', `sh -c '${child}' & echo $!; exec sleep 60`])
  t.teardown(() => killChild(parent))
  const [pid] = (await once(parent.stdout, 'data')).map(Number)
  await until(() => /^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8')))
  writeRecordFile(folder, 'killed', { pid }, opened('a'))
  t.strictSame((await openLedger(t, folder)).openSessions, ['a'])
})

t.test('sessions left by a process are taken over by one of the running processes', async (t) => {
  const folder = t.testdir({})
  const ledger = await openLedger(t, folder)
  await ledger.recordOpened('mine')
  t.strictSame(await ledger.takeOver(), [])
  const old = writeRecordFile(folder, 'old', {}, opened('a'), opened('b'), closed('b'))
  t.strictSame(await ledger.takeOver(), ['a'])
  t.notOk(existsSync(old))
  t.strictSame(ledger.openSessions, ['mine', 'a'])
  t.strictSame(await ledger.takeOver(), [])
})

t.test('a file that was not touched for long has no process on any machine', async (t) => {
  const folder = t.testdir({})
  const longAgo = new Date(Date.now() - 6 * 60_000)
  utimesSync(writeRecordFile(folder, 'elsewhere', { host: 'another', pid: 1 }, opened('a')), longAgo, longAgo)
  t.strictSame((await openLedger(t, folder)).openSessions, ['a'])
})

t.test('two runs that start concurrently both take over, because stopping twice is harmless', async (t) => {
  const folder = t.testdir({})
  writeRecordFile(folder, 'old', {}, opened('a'))
  const ledgers = await Promise.all([openLedger(t, folder), openLedger(t, folder)])
  t.ok(ledgers.some(({ openSessions }) => openSessions.includes('a')))
})
