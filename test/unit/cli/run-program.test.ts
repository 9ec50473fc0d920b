import { existsSync } from 'node:fs'
import { text } from 'node:stream/consumers'
import t from 'tap'
import { startChild, waitForExit } from '../../helpers/children.ts'
import { LAUNCHER } from '../../helpers/llm-proxy.ts'

/** Runs `llm-proxy` in a shell that redirects its output. */
async function run(args: string, redirection: string) {
  const command = `exec "$0" "$1" ${args} ${redirection}`
  const child = startChild('sh', ['-c', command, process.execPath, LAUNCHER], { env: process.env })
  const stderr = await text(child.stderr)
  const [code] = await waitForExit(child)
  return { code, stderr }
}

t.test(
  'a command whose output cannot be written exits with 1 and the reason',
  { skip: !existsSync('/dev/full') },
  async (t) => {
    t.match(await run('--help', '>/dev/full'), {
      code: 1,
      stderr: /^llm-proxy: cannot write the output: ENOSPC[^\n]*\n$/,
    })
  },
)

t.test(
  'a command whose message cannot be written keeps its exit code',
  { skip: !existsSync('/dev/full') },
  async (t) => {
    t.equal((await run('health --no-such-option', '2>/dev/full')).code, 2)
  },
)
