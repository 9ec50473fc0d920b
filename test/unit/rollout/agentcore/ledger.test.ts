import { readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { Ledger } from '../../../../src/rollout/runners/agentcore/ledger.ts'

const ENDPOINT = { arn: 'arn:1', qualifier: 'DEFAULT' }
/** Above what Linux and macOS give to processes. */
const NO_PID = 2 ** 30

/** The file of a process, which wrote these lines before it died. */
function fileOf(folder: string, name: string, head: object, ...lines: string[]): string {
  const path = join(folder, `${name}.sessions.jsonl`)
  const whole = { version: 1, ...ENDPOINT, host: hostname(), pid: NO_PID, ...head }
  writeFileSync(path, [JSON.stringify(whole), ...lines].join('\n'))
  return path
}

const opened = (id: string) => JSON.stringify({ opened: id })
const closed = (id: string) => JSON.stringify({ closed: id })

async function openIn(t: Test, folder: string): Promise<Ledger> {
  const ledger = await Ledger.open(folder, ENDPOINT)
  t.teardown(() => ledger.close())
  return ledger
}

t.test('a session is in the file before it is started, and the file goes when all are stopped', async (t) => {
  const folder = t.testdir({})
  const ledger = await Ledger.open(folder, ENDPOINT)
  await ledger.opened('a')
  const [name] = readdirSync(folder)
  t.match(readFileSync(join(folder, name!), 'utf8'), /\{"opened":"a"\}\n$/)
  await ledger.closed('a')
  await ledger.close()
  t.strictSame(readdirSync(folder), [])
})

t.test('what a dead process left open is taken over, and is on record all the time', async (t) => {
  const folder = t.testdir({})
  fileOf(folder, 'old', {}, opened('a'), opened('b'), closed('a'), opened('c'), '{"opened":"d')
  const ledger = await Ledger.open(folder, ENDPOINT)
  t.strictSame(ledger.openSessions, ['b', 'c'])
  await ledger.closed('b')
  await ledger.close()
  const [name, ...others] = readdirSync(folder)
  t.strictSame(others, [], 'the old file is gone')
  const text = readFileSync(join(folder, name!), 'utf8')
  writeFileSync(join(folder, name!), text.replace(`"pid":${process.pid}`, `"pid":${NO_PID}`))
  t.strictSame((await openIn(t, folder)).openSessions, ['c'], 'and so on')
})

t.test("a living process's sessions are its own, and so are another runtime's", async (t) => {
  const folder = t.testdir({})
  fileOf(folder, 'alive', { pid: process.pid }, opened('a'))
  fileOf(folder, 'elsewhere', { host: 'another', pid: NO_PID }, opened('b'))
  fileOf(folder, 'other-runtime', { arn: 'arn:2' }, opened('c'))
  fileOf(folder, 'other-endpoint', { qualifier: 'canary' }, opened('d'))
  writeFileSync(join(folder, 'notes.sessions.jsonl'), 'my notes')
  t.strictSame((await openIn(t, folder)).openSessions, [])
  t.equal(readdirSync(folder).length, 6)
})

t.test('a file that nobody touched for long has no process any more, on whatever machine', async (t) => {
  const folder = t.testdir({})
  const longAgo = new Date(Date.now() - 6 * 60_000)
  utimesSync(fileOf(folder, 'elsewhere', { host: 'another', pid: 1 }, opened('a')), longAgo, longAgo)
  t.strictSame((await openIn(t, folder)).openSessions, ['a'])
})

t.test('two runs that start at once both have what was left: a stop does no harm twice', async (t) => {
  const folder = t.testdir({})
  fileOf(folder, 'old', {}, opened('a'))
  const ledgers = await Promise.all([openIn(t, folder), openIn(t, folder)])
  t.ok(ledgers.some(({ openSessions }) => openSessions.includes('a')))
})
