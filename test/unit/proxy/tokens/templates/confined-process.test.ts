/** A confined process that the system cannot start. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import t from 'tap'

const SOURCE = new URL('../../../../../src/proxy/tokens/', import.meta.url)

/** Uses all file descriptors, then starts a confined process. Prints the code of its error event. */
const PROGRAM = `
import { openSync } from 'node:fs'
import { startConfinedProcess } from '${new URL('templates/python/confined-process.ts', SOURCE)}'
try { for (;;) openSync('/dev/null') } catch {}
const host = startConfinedProcess(new URL('${new URL('prompt/encoder-process.ts', SOURCE)}'), {})
host.on('error', async ({ code }) => {
  await host.terminate()
  console.log(code)
  process.exit()
})
`

t.test('a process that cannot be started reports an error event', async (t) => {
  const command = `ulimit -n 64; exec "$0" --input-type=module --eval "$1"`
  const args = ['-c', command, process.execPath, PROGRAM]
  const { stdout } = await promisify(execFile)('sh', args, { env: { PATH: process.env.PATH } })
  t.equal(stdout.trim(), 'EMFILE')
})
