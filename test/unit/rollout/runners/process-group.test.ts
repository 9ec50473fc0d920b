/** Process groups that the system cannot start, or that are stopped while they start. */
import { execFile } from 'node:child_process'
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { runGroup } from '../../../../src/rollout/runners/process-group.ts'
import { until } from '../../../helpers/until.ts'

const MODULE = new URL('../../../../src/rollout/runners/process-group.ts', import.meta.url)

/** Uses all file descriptors, then runs a command with and without a sandbox. Prints the errors. */
const PROGRAM = `
import { openSync } from 'node:fs'
import { runGroup } from '${MODULE}'
try { for (;;) openSync('/dev/null') } catch {}
for (const sandboxed of [false, true]) {
  const options = { cwd: '/', env: {}, timeLimitMs: 60_000, graceMs: 1_000, sandboxed }
  await runGroup(['/bin/true'], options, new AbortController().signal).catch(({ message }) => console.log(message))
}
process.exit()
`

t.test('a command that cannot be started for lack of file descriptors fails with that error', async (t) => {
  const command = `ulimit -n 64; exec "$0" --input-type=module --eval "$1"`
  const args = ['-c', command, process.execPath, PROGRAM]
  const { stdout } = await promisify(execFile)('sh', args, { env: { PATH: process.env.PATH } })
  t.strictSame(stdout.trim().split('\n'), ['spawn /bin/true EMFILE', 'spawn /bin/true EMFILE'])
})

t.test('a sandbox that is stopped while it is being set up is signalled when it is ready', async (t) => {
  const cwd = t.testdir()
  const command =
    'trap "" TERM; echo > begun; while [ ! -e stopped ]; do sleep 0.02; done; ' +
    'trap - TERM; echo started >&4; while :; do sleep 0.02; done'
  const options = { cwd, env: process.env, timeLimitMs: 3_600_000, graceMs: 3_600_000, sandboxed: true }
  const stop = new AbortController()
  const ended = runGroup(command, options, stop.signal)
  await until(() => existsSync(join(cwd, 'begun')))
  stop.abort(new Error('stopped'))
  writeFileSync(join(cwd, 'stopped'), '')
  await t.rejects(ended, { message: 'stopped' })
})
