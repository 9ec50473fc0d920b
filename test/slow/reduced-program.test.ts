/**
 * A program without the inspector, rollouts, the embedded engine and PostgreSQL: the same composition root with fewer
 * lines in `src/products.ts`, and the command line without their commands. It contains nothing of them except the
 * options, and serves a real agent.
 */
import { once } from 'node:events'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import t from 'tap'
import { bundleProgram } from '../../tools/build/bundle.ts'
import { writeExecutable } from '../../tools/build/executable.ts'
import { HOST, openNodeBase } from '../../tools/build/node-base.ts'
import { HELLO, testFileTask } from '../agents/parts/file-task.ts'
import { installFromNpm } from '../agents/parts/install.ts'
import { createOpenaiSdkAgent } from '../agents/parts/known-agents.ts'
import { startChild } from '../helpers/children.ts'

const ROOT = join(import.meta.dirname, '../..')
const EXCLUDED = ['src/embedded/', 'src/inspector/', 'src/rollout/', 'src/proxy/store/postgres/']
/** The tables of options, by which the program rejects unknown environment variables. */
const OPTIONS = ['src/rollout/options.ts', 'src/rollout/runner-options.ts']
const LIBRARIES = ['pg', '@aws-sdk', 'apache-arrow', 'hyparquet', 'smol-toml', 'tar']

const bundle = await bundleProgram(ROOT, HOST, {
  entry: 'test/helpers/reduced-program.ts',
  withoutProducts: ['embedded', 'inspector', 'postgres', 'rollouts'],
})
const executable = join(t.testdir(), 'reduced')
await writeExecutable(
  bundle,
  await openNodeBase(HOST, join(ROOT, 'node_modules/.cache/llm-proxy')),
  executable,
)

t.test('it contains no file of the products, and none of their libraries', async (t) => {
  // The bundler writes the path of each module above its code.
  const modules = [...bundle.main.matchAll(/^ *\/\/ ((?:src|node_modules)\/\S+)$/gm)].map(([, path]) => path!)
  t.ok(modules.includes('src/main.ts'))
  const paths = [...modules, ...bundle.assets.keys()]
  for (const folder of [...EXCLUDED, ...LIBRARIES.map((name) => `node_modules/${name}/`)])
    t.strictSame(
      paths.filter((path) => path.startsWith(folder) && !OPTIONS.includes(path)),
      [],
      folder,
    )
})

t.test('an option that needs a missing product is an error', async (t) => {
  const relay = ['--mode', 'relay']
  for (const [args, message] of [
    [[], 'built without the embedded engine: give --engine-url'],
    [[...relay, '--db', 'postgres://127.0.0.1:1/x'], 'built without PostgreSQL'],
    [[...relay, '--rollout-server', 'http://127.0.0.1:9'], 'built without rollouts'],
  ] as const) {
    const child = startChild(executable, ['serve', '--port', '0', '--db', 'memory', ...args])
    const [stderr, [code]] = await Promise.all([text(child.stderr), once(child, 'exit')])
    t.equal(code, 2, stderr)
    t.match(stderr, message)
  }
})

t.test('commands that need no product run, and those of products do not exist', async (t) => {
  const db = join(t.testdir(), 'none.db')
  for (const [args, code, message] of [
    [['sessions', 'list', '--db', db], 1, `there is no database ${db}`],
    [['sessions', 'list', '--db', 'postgres://127.0.0.1:1/x'], 2, 'built without PostgreSQL'],
    [['health', '--url', 'http://127.0.0.1:9'], 1, 'http://127.0.0.1:9'],
    [['rollout'], 2, "unknown command 'rollout'"],
    [['sessions', 'export'], 2, "unknown command 'export'"],
  ] as const) {
    const child = startChild(executable, [...args])
    const [stderr, [exitCode]] = await Promise.all([text(child.stderr), once(child, 'exit')])
    t.equal(exitCode, code, stderr)
    t.match(stderr, message)
  }
})

const steps = [
  { toolCalls: [{ tool: 'write_file', arguments: { path: '$<folder>/hello.sh', content: HELLO } }] },
  { toolCalls: [{ tool: 'bash', arguments: { command: 'sh hello.sh > printed.txt' } }] },
  { toolCalls: [{ tool: 'read_file', arguments: { path: '$<folder>/printed.txt' } }] },
  { content: 'Done: it says 42.' },
]
const agent = createOpenaiSdkAgent(await installFromNpm('@openai/agents'), 'chat_completions')
await testFileTask(agent, { steps }, [{ mode: 'local', prompts: 'chat', executable }])
