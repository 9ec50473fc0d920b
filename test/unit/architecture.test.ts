import { existsSync, globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import {
  type ArchitectureRules,
  fileCycles,
  folderCycles,
  type ImportGraph,
  readImportGraph,
  violations,
} from '../helpers/import-graph.ts'

const ROOT = join(import.meta.dirname, '../..')

/** What every part may import. */
const GROUND = [
  'src/base/around.ts',
  'src/base/errors.ts',
  'src/base/logger.ts',
  'src/base/recently-used.ts',
  'src/base/version.ts',
  'src/canonical',
  'src/standalone',
]
const PORTS = ['src/inference', 'src/tokens', 'src/store', ...GROUND]
const ADAPTERS = ['src/engine', 'src/relay', 'src/proxy/store/sqlite']
/** Trainers' side: it knows the proxy by its HTTP API alone. */
const ROLLOUT = 'src/rollout'
const ALL_BELOW_MAIN = [
  ...ADAPTERS,
  'src/http',
  'src/proxy/metrics',
  'src/proxy/config',
  'src/dialects',
  'src/session',
  'src/proxy/tracing',
  'src/proxy/verify',
  ...PORTS,
]

/** The layers of the design, top down. Adapters implement ports and never know each other. */
const RULES: ArchitectureRules = {
  parts: {
    'src/cli': [
      'src/main.ts',
      'src/start-model.ts',
      'src/http/ui',
      ROLLOUT,
      `${ROLLOUT}/datasets`,
      ...ALL_BELOW_MAIN,
    ],
    'src/index.ts': ['src/main.ts', ROLLOUT, ...ALL_BELOW_MAIN],
    'src/main.ts': ['src/server-parts.ts', ...ALL_BELOW_MAIN],
    'src/server-parts.ts': ['src/start-model.ts', ...ALL_BELOW_MAIN],
    'src/start-model.ts': ['src/proxy/config', 'src/engine', 'src/tokens'],
    // The page that a browser runs: of the proxy it knows what the API answers, as types.
    'src/inspector/page': ['src/http'],
    'src/http/ui': GROUND,
    'src/http': ['src/http/ui', 'src/dialects', 'src/proxy/metrics', 'src/session', ...PORTS],
    'src/proxy/metrics': ['src/session', ...PORTS],
    'src/proxy/tracing': ['src/session', ...PORTS],
    'src/dialects': PORTS,
    'src/session': PORTS,
    'src/proxy/verify': PORTS,
    [ROLLOUT]: ['src/proxy/config', 'src/base/errors.ts', 'src/base/logger.ts'],
    'src/engine': PORTS,
    'src/relay': PORTS,
    'src/proxy/store/sqlite': ['src/store', ...GROUND],
    [`${ROLLOUT}/datasets`]: GROUND,
    'src/inference': GROUND,
    'src/tokens': GROUND,
    'src/store': GROUND,
    'src/proxy/config': ['src/base/errors.ts'],
    'src/canonical': ['src/base/errors.ts', 'src/base/recently-used.ts'],
    'src/standalone': ['src/base/errors.ts'],
    'tools/build': ['src/standalone', 'src/cli'],
    'src/base/around.ts': [],
    'src/base/errors.ts': [],
    'src/base/logger.ts': [],
    'src/base/recently-used.ts': [],
    'src/base/version.ts': [],
  },
  owners: {
    // Node's own, where it has one: Node 22 lacks it.
    '@whatwg-node/disposablestack': 'src/main.ts',
    '@aws-sdk/client-bedrock-agentcore': ROLLOUT,
    '@aws-sdk/client-s3': ROLLOUT,
    '@aws-sdk/client-sqs': ROLLOUT,
    '@fastify/swagger': 'src/http',
    '@fastify/type-provider-typebox': 'src/http',
    '@fastify/websocket': 'src/http',
    '@huggingface/tokenizers': 'src/tokens',
    '@preact/signals': 'src/inspector/page',
    '@opentelemetry/api': 'src/proxy/tracing',
    '@opentelemetry/core': 'src/proxy/tracing',
    '@opentelemetry/exporter-trace-otlp-proto': 'src/proxy/tracing',
    '@opentelemetry/resources': 'src/proxy/tracing',
    '@opentelemetry/sdk-trace-base': 'src/proxy/tracing',
    'image-size': 'src/tokens',
    pyodide: 'src/tokens',
    tokenizers: 'src/tokens',
    'better-sqlite3': 'src/proxy/store/sqlite',
    commander: 'src/cli',
    diff: 'src/inspector/page',
    preact: 'src/inspector/page',
    uplot: 'src/inspector/page',
    '@yao-pkg/pkg': 'tools/build',
    esbuild: ['tools/build', 'src/http/ui'],
    fastify: ['src/http', 'src/http/ui'],
    'apache-arrow': `${ROLLOUT}/datasets`,
    hyparquet: `${ROLLOUT}/datasets`,
    'hyparquet-writer': `${ROLLOUT}/datasets`,
    openai: 'src/canonical',
    pino: 'src/cli',
    'smol-toml': `${ROLLOUT}/datasets`,
    tar: ROLLOUT,
    // Two clients of different servers, which have nothing in common but the library.
    undici: ['src/engine', ROLLOUT],
    ws: 'src/relay',
  },
  shared: ['typebox'],
}

t.test('every import of src keeps to the layers, and every library to its one folder', async (t) => {
  const graph = new Map(readImportGraph(ROOT, ['tsconfig.json', 'src/inspector/page/tsconfig.json']))
  // The demo's agent stands for a program that knows nothing of the proxy; it runs in a process of its own.
  graph.delete('src/cli/demo/agent.ts')
  t.ok(
    graph.has('src/base/errors.ts') && graph.has('src/inspector/page/app.tsx'),
    'the graph is of this repository',
  )
  t.strictSame(violations(graph, RULES), [])
  t.strictSame(folderCycles(graph), [], 'no folders import each other in a circle')
  t.strictSame(fileCycles(graph), [], 'nor do files')
})

/** Memories of messages and prompts that were many, each with a bound of its own. There is one for each thing now. */
const FORMER_MEMORIES =
  /\b(RepeatedJson|noteSource|sourceOf|RequestTextWriter|KnownMessages|Waypoint|RepeatedRequests|BackendAround|SessionsLines|TokenLine)\b/

t.test('what is known of messages is kept by the messages, and in no map beside them', async (t) => {
  const sources = globSync('src/**/*.ts', { cwd: ROOT }).map((file) => ({
    file,
    text: readFileSync(join(ROOT, file), 'utf8'),
  }))
  const filesWith = (pattern: RegExp) =>
    sources.filter(({ text }) => pattern.test(text)).map(({ file }) => file)
  t.strictSame(filesWith(/\bnew WeakMap\b(?!<Logger,)/), ['src/protocol/canonical/request-reader.ts'])
  t.strictSame(filesWith(/\bclass Message(Tree)?\b/), ['src/protocol/canonical/conversation.ts'])
  t.strictSame(filesWith(FORMER_MEMORIES), [])
})

const graphOf = (imports: Record<string, string[]>): ImportGraph => new Map(Object.entries(imports))

t.test('an import against the direction is a violation', async (t) => {
  for (const [file, target] of [
    ['src/proxy/session/turn/run-turn.ts', 'src/proxy/http/transport/errors.ts'],
    ['src/proxy/dialects/chat/answer.ts', 'src/proxy/session/state/sessions.ts'],
    ['src/proxy/engines/clients/openai/client.ts', 'src/store/sqlite/store.ts'],
    ['src/relay/hub.ts', 'src/proxy/engines/clients/wire/connection.ts'],
    ['src/proxy/store/port/turn-store.ts', 'src/proxy/store/sqlite/schema.ts'],
    ['src/proxy/http/server.ts', 'src/main.ts'],
    ['src/main.ts', 'src/cli/run.ts'],
    ['src/rollout/rollout.ts', 'src/proxy/http/trainer/sessions/schemas.ts'],
    ['src/proxy/http/server.ts', 'src/rollout/remote-agent-loop.ts'],
    ['src/base/errors.ts', 'src/protocol/canonical/events.ts'],
  ] as const) {
    t.match(violations(graphOf({ [file]: [target] }), RULES), [`${file} imports ${target}: `])
  }
})

t.test('an import along the direction is none', async (t) => {
  const graph = graphOf({
    'src/main.ts': ['src/store/sqlite/store.ts', 'src/proxy/http/server.ts', 'node:fs'],
    'src/store/sqlite/store.ts': ['src/proxy/store/port/turn-store.ts', 'better-sqlite3', 'typebox/value'],
    'src/protocol/canonical/messages.ts': ['openai/resources/chat/completions'],
    'src/base/version.ts': ['package.json'],
  })
  t.strictSame(violations(graph, RULES), [])
})

t.test(
  'a library outside of its folder, one without an owner, and an import from test are violations',
  async (t) => {
    const graph = graphOf({
      'src/proxy/session/turn/run-turn.ts': ['fastify', 'pyodide/types', 'left-pad'],
      'src/proxy/http/server.ts': ['test/helpers/import-graph.ts'],
    })
    t.strictSame(violations(graph, RULES), [
      'src/proxy/session/turn/run-turn.ts imports fastify, which belongs to src/http and src/http/ui',
      'src/proxy/session/turn/run-turn.ts imports pyodide, which belongs to src/tokens',
      'src/proxy/session/turn/run-turn.ts imports left-pad, which has no owner in the rules',
      'src/proxy/http/server.ts imports test/helpers/import-graph.ts, which is in no part',
    ])
  },
)

t.test('a file in a folder that the rules do not know is a violation', async (t) => {
  t.match(violations(graphOf({ 'src/utils/misc.ts': [] }), RULES), ['src/utils/misc.ts is in no part'])
})

t.test(
  'folders that import each other are a cycle, around a corner too; a folder and its inside are not',
  async (t) => {
    const cycle = graphOf({
      'src/a/one.ts': ['src/b/two.ts'],
      'src/b/two.ts': ['src/c/three.ts'],
      'src/c/three.ts': ['src/a/other.ts'],
      'src/a/other.ts': [],
      'src/d/four.ts': ['src/a/one.ts'],
    })
    t.strictSame(folderCycles(cycle), [['src/a', 'src/b', 'src/c']])
    const nested = graphOf({
      'src/proxy/http/server.ts': ['src/proxy/http/agent/routes.ts'],
      'src/proxy/http/agent/routes.ts': ['src/proxy/http/transport/errors.ts'],
      'src/proxy/http/transport/errors.ts': [],
    })
    t.strictSame(folderCycles(nested), [])
  },
)

t.test('files that import each other are a cycle, inside one folder too', async (t) => {
  const cycle = graphOf({
    'src/a/one.ts': ['src/a/two.ts'],
    'src/a/two.ts': ['src/a/three.ts', 'zod'],
    'src/a/three.ts': ['src/a/one.ts'],
    'src/a/four.ts': ['src/a/one.ts'],
  })
  t.strictSame(fileCycles(cycle), [['src/a/one.ts', 'src/a/three.ts', 'src/a/two.ts']])
})

t.test('the graph knows every form of import, and neither comments nor strings', async (t) => {
  const root = t.testdir({
    'tsconfig.json': JSON.stringify({
      compilerOptions: { module: 'nodenext', noEmit: true, allowImportingTsExtensions: true },
      include: ['src'],
    }),
    src: {
      'all.ts': `
        import type { A } from './a/type-only.ts'
        import './a/side-effect.ts'
        import fs, { readFileSync as read } from 'node:fs'
        export * from "./a/re-exported.ts"
        export type { B } from './a/type-re-exported.ts'
        const lazy = () => import('./a/dynamic.ts')
        let inline: import('./a/inline-type.ts').C
        const thread = new URL('./a/thread.ts', import.meta.url)
        // import './comment.ts'
        /* export * from './block-comment.ts' */
        const text = "import './string.ts'"
        const template = \`import('./template.ts') \${await import('./a/in-template.ts')}\`
        const pattern = /'import '/
        import { after } from './a/after-pattern.ts'
      `,
    },
  })
  t.strictSame([...readImportGraph(root).get('src/all.ts')!].sort(), [
    'node:fs',
    'src/a/after-pattern.ts',
    'src/a/dynamic.ts',
    'src/a/in-template.ts',
    'src/a/inline-type.ts',
    'src/a/re-exported.ts',
    'src/a/side-effect.ts',
    'src/a/thread.ts',
    'src/a/type-only.ts',
    'src/a/type-re-exported.ts',
  ])
})

t.test('docs/architecture.md has every folder of the rules, and names files that there are', async (t) => {
  const page = readFileSync(join(ROOT, 'docs/architecture.md'), 'utf8')
  const inMap = [...page.matchAll(/^\| `(src[^`]*)` \|/gm)].map(([, part]) => part!)
  const folders = Object.keys(RULES.parts).filter((part) => !part.endsWith('.ts') || part === 'src/main.ts')
  t.strictSame(inMap.sort(), folders.sort())
  const named = [...page.matchAll(/`(src\/[\w./-]+|test\/[\w./-]+)`/g)].map(([, path]) => path!)
  for (const path of named) t.ok(existsSync(join(ROOT, path)), path)
})
