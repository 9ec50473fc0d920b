/** Starts are fast: Node's compiled code is cached for the next start, and packages of many modules are bundles. */
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { LAUNCHER } from '../helpers/llm-proxy.ts'

const ROOT = join(import.meta.dirname, '../..')

/** Prints the directory of compiled code at exit. */
const PRINT_CACHE = `
  import { getCompileCacheDir } from 'node:module'
  process.on('exit', () => console.log('stored in', getCompileCacheDir()))`

/** Counts the modules of packages, and prints the number at exit. */
const COUNT_MODULES = `
  import { registerHooks } from 'node:module'
  let count = 0
  registerHooks({
    load(url, context, nextLoad) {
      if (url.includes('/node_modules/')) count += 1
      return nextLoad(url, context)
    },
  })
  process.on('exit', () => console.log('modules of packages:', count))`

async function run(
  env: Record<string, string> = {},
  script = PRINT_CACHE,
  args: readonly string[] = ['--version'],
): Promise<string> {
  const imported = `data:text/javascript,${encodeURIComponent(script)}`
  const { stdout } = await promisify(execFile)(process.execPath, ['--import', imported, LAUNCHER, ...args], {
    env: { PATH: process.env.PATH, ...env },
  })
  return stdout
}

t.test(
  'compiled code is stored beside the program, where only users who may change the program can write',
  async (t) => {
    const folder = join(ROOT, 'node_modules/.cache/llm-proxy/compiled')
    t.ok((await run()).includes(`stored in ${folder}`))
  },
)

t.test('an operator may move or disable the cache', async (t) => {
  const folder = t.testdir()
  t.ok((await run({ NODE_COMPILE_CACHE: folder })).includes(`stored in ${folder}`))
  t.ok((await run({ NODE_DISABLE_COMPILE_CACHE: '1' })).includes('stored in undefined'))
})

t.test('a command that checks data against schemas loads few modules of packages', async (t) => {
  // TypeBox alone has more than 600 modules; setup replaces it by a bundle.
  const failing = run({}, COUNT_MODULES, ['sessions', 'list', '--url', 'http://127.0.0.1:1'])
  const { stdout } = await failing.then(
    () => t.fail('no proxy listens there'),
    (error) => error,
  )
  const count = Number(/modules of packages: (\d+)/.exec(stdout)![1])
  t.ok(count > 0 && count < 60, `${count} modules`)
})
