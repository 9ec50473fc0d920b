import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { killChild, startChild, waitForExit, waitForOutput } from '../../helpers/children.ts'
import { until } from '../../helpers/until.ts'

/**
 * Starts a process with a logger, which runs the code and waits for SIGTERM.
 * @param start the shell command that starts it
 */
function startLogger(t: Test, code: string, start = 'exec "$@"') {
  const script = `
    import { createLogger } from './src/cli/logger.ts'
    const logger = createLogger('info', 'json')
    const log = (count, note) => { for (let i = 0; i < count; i++) logger.info({ note }, 'Line') }
    const waiting = setInterval(() => {}, 1000)
    process.on('SIGTERM', () => process.exit(7))
    ${code}
    process.stdout.write('ready\\n')`
  const program = [process.execPath, '--input-type=module', '-e', script]
  const child = startChild('sh', ['-c', start, 'sh', ...program], { env: process.env })
  t.teardown(() => killChild(child))
  return child
}

const parseLines = (log: string) =>
  log.split('\n').flatMap((line) => (line === '' ? [] : [JSON.parse(line) as Record<string, unknown>]))

t.test(
  'a log on a full disk loses its lines, and the process serves on and exits',
  { skip: !existsSync('/dev/full') },
  async (t) => {
    const child = startLogger(
      t,
      `log(3); setTimeout(() => { log(3); console.log('later') }, 100)`,
      'exec "$@" 2>/dev/full',
    )
    await waitForOutput(child.stdout, /later/)
    child.kill()
    t.strictSame(await waitForExit(child), [7, null])
  },
)

t.test('a log whose reader has closed the pipe loses its lines', async (t) => {
  const child = startLogger(t, `process.on('SIGUSR2', () => { log(3); console.log('logged') })`)
  await waitForOutput(child.stdout, /ready/)
  child.stderr.destroy()
  child.kill('SIGUSR2')
  await waitForOutput(child.stdout, /logged/)
  child.kill()
  t.strictSame(await waitForExit(child), [7, null])
})

/** Removes the limit on the size of files. @returns whether the system can */
const removeLimit = (pid = process.pid) =>
  spawnSync('prlimit', [`--pid=${pid}`, '--fsize=unlimited']).status === 0

t.test('a line after a failed write begins on a new line', { skip: !removeLimit() }, async (t) => {
  const file = join(t.testdir(), 'log')
  const code = `
    log(200, 'x'.repeat(100))
    process.on('SIGUSR2', () => log(1, 'later'))
    setTimeout(() => console.log('failed'), 1_000)`
  // A write that exceeds the limit is cut; the next ones fail.
  const child = startLogger(t, code, `ulimit -S -f 4; exec "$@" 2>>'${file}'`)
  await waitForOutput(child.stdout, /failed/)
  await until(() => statSync(file).size >= 2048)
  removeLimit(child.pid)
  child.kill('SIGUSR2')
  const read = () => readFileSync(file, 'utf8').split('\n')
  await until(() => read().some((line) => line.includes('log_lines_lost') && line.endsWith('}')))
  const [cut, later, report] = read().slice(-4)
  t.throws(() => JSON.parse(cut!))
  t.match(
    [later, report].map((line) => JSON.parse(line!)),
    [{ note: 'later' }, { event: 'log_lines_lost', lines: 200 - (read().length - 4) }],
  )
})

t.test('an unread pipe does not prevent the exit', async (t) => {
  const child = startLogger(t, `log(2_000, 'x'.repeat(1_000))`)
  await waitForOutput(child.stdout, /ready/)
  child.kill()
  t.strictSame(await waitForExit(child), [7, null])
})

t.test('a reader that is far behind loses lines, whose number is reported once it has read', async (t) => {
  const count = 20_000
  const child = startLogger(t, `log(${count}, 'x'.repeat(1_000))`)
  await waitForOutput(child.stdout, /ready/)
  let log = ''
  for await (const chunk of child.stderr.setEncoding('utf8')) {
    log += chunk
    // The report is the last line.
    if (log.slice(-200).includes('log_lines_lost')) child.kill()
  }
  t.ok(log.length < 18 * 1024 * 1024, `${log.length} bytes are below the limit`)
  const lines = parseLines(log)
  const reports = lines.filter(({ event }) => event === 'log_lines_lost')
  t.match(reports, [{ level: 'warn', lines: count - (lines.length - 1) }])
})

t.test('lines that are logged before the exit are written, also to a slow reader', async (t) => {
  const child = startLogger(t, `log(500, 'x'.repeat(1_000)); logger.error({}, 'Last'); process.exit(3)`)
  const lines = parseLines(await text(child.stderr))
  t.equal(lines.length, 501)
  t.ok(lines.some(({ msg }) => msg === 'Last'))
})
