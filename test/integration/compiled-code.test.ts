/** Node's compiled code is kept for the next start. */
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { LAUNCHER } from '../helpers/llm-proxy.ts'

const ROOT = join(import.meta.dirname, '../..')

/** Prints at the end where compiled code is kept. */
const TELL = `
  import { getCompileCacheDir } from 'node:module'
  process.on('exit', () => console.log('kept in', getCompileCacheDir()))`

async function run(env: Record<string, string> = {}): Promise<string> {
  const tell = `data:text/javascript,${encodeURIComponent(TELL)}`
  const { stdout } = await promisify(execFile)(process.execPath, ['--import', tell, LAUNCHER, '--version'], {
    env: { PATH: process.env.PATH, ...env },
  })
  return stdout
}

t.test(
  'compiled code is kept beside the program, where only users who may change the program can write',
  async (t) => {
    const folder = join(ROOT, 'node_modules/.cache/llm-proxy/compiled')
    t.ok((await run()).includes(`kept in ${folder}`))
  },
)

t.test('an operator may move or disable it', async (t) => {
  const folder = t.testdir()
  t.ok((await run({ NODE_COMPILE_CACHE: folder })).includes(`kept in ${folder}`))
  t.ok((await run({ NODE_DISABLE_COMPILE_CACHE: '1' })).includes('kept in undefined'))
})
