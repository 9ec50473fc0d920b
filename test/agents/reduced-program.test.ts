/**
 * The products are walls apart: a program without the inspector, rollouts, the embedded engine and PostgreSQL is the
 * same composition root with fewer lines in `src/products.ts`, contains nothing of them, and serves a real agent.
 */
import { once } from 'node:events'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import t from 'tap'
import { bundleProgram } from '../../tools/build/bundle.ts'
import { writeExecutable } from '../../tools/build/executable.ts'
import { HOST, openNodeBase } from '../../tools/build/node-base.ts'
import { startChild } from '../helpers/children.ts'
import { testFileTask } from './parts/file-task.ts'
import { openaiAgent, openaiSteps } from './parts/openai-agent.ts'

const ROOT = join(import.meta.dirname, '../..')
const EXCLUDED = ['src/embedded/', 'src/inspector/', 'src/rollout/', 'src/proxy/store/postgres/']
const LIBRARIES = ['pg', '@aws-sdk', 'apache-arrow', 'hyparquet', 'smol-toml', 'tar']

const bundle = await bundleProgram(ROOT, HOST, {
  entry: 'test/agents/programs/reduced-program.ts',
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
      paths.filter((path) => path.startsWith(folder)),
      [],
      folder,
    )
})

t.test('an option that needs a missing product is an error', async (t) => {
  const relay = ['--mode', 'relay']
  for (const [args, message] of [
    [[], 'built without the embedded engine: give --engine-url'],
    [[...relay, '--db', 'postgres://127.0.0.1:1/x'], 'built without PostgreSQL'],
    [[...relay, '--rollout-server', 'http://127.0.0.1:9'], 'LLM_PROXY_ROLLOUT_SERVER is not a setting'],
  ] as const) {
    const child = startChild(executable, ['serve', '--port', '0', '--db', 'memory', ...args])
    const [stderr, [code]] = await Promise.all([text(child.stderr), once(child, 'exit')])
    t.equal(code, 2, stderr)
    t.match(stderr, message)
  }
})

await testFileTask(openaiAgent('chat_completions'), { steps: openaiSteps, forgetsReasoning: true }, [
  { mode: 'local', prompts: 'chat', executable },
])
