/** A process group that the system cannot start. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import t from 'tap'

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
