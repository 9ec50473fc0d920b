import { existsSync, globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import {
  type ArchitectureRules,
  findFileCycles,
  findFolderCycles,
  findViolations,
  type ImportGraph,
  readImportGraph,
} from '../helpers/import-graph.ts'

const ROOT = join(import.meta.dirname, '../..')

/** Folders that every other folder may import. */
const COMMON_FOLDERS = ['src/base', 'src/protocol']
/** Interfaces that the proxy's folders depend on, independent of the adapter that implements them. */
const PORTS = ['src/proxy/engines/port', 'src/proxy/tokens', 'src/proxy/store/port', ...COMMON_FOLDERS]
/** The engines of this process: the dispatcher and the engine clients. */
const ENGINES = ['src/proxy/engines/dispatch', 'src/proxy/engines/clients']
const PROXY = [
  'src/proxy/config',
  'src/proxy/dialects',
  ...ENGINES,
  'src/proxy/http',
  'src/proxy/http/app.ts',
  'src/proxy/metrics',
  'src/proxy/relay',
  'src/proxy/session',
  'src/proxy/store/common',
  'src/proxy/store/postgres',
  'src/proxy/store/sqlite',
  'src/proxy/tracing',
  'src/proxy/verify',
  ...PORTS,
]
/** The HTTP server: its routes, the application that registers them, the requests between nodes. */
const HTTP_PARTS = ['src/proxy/http', 'src/proxy/http/app.ts', 'src/proxy/http/nodes']
/** What the HTTP server uses. */
const HTTP = [
  'src/protocol/transcript',
  'src/proxy/dialects',
  'src/proxy/engines/dispatch',
  'src/proxy/metrics',
  'src/proxy/session',
  ...PORTS,
]
const PRODUCTS = ['src/embedded', 'src/inspector/routes', 'src/rollout', 'src/worker']

/** What the commands of the proxy and the worker use. Products are loaded as far as the program includes them. */
const CLI = [
  'src/main.ts',
  'src/commands.ts',
  'src/included-products.ts',
  'src/open-engines.ts',
  'src/token-mode.ts',
  'src/protocol/transcript',
  'src/worker',
  ...PROXY.filter((folder) => folder !== 'src/proxy/store/postgres'),
]

/** The commands of products, and the products that each uses. */
const PRODUCT_COMMANDS = {
  'src/cli/dataset': ['src/rollout/datasets', 'src/cli', ...CLI],
  'src/cli/demo': ['src/rollout', 'src/embedded', 'src/cli', ...CLI],
  'src/cli/engine.ts': ['src/embedded', 'src/cli', ...CLI],
  'src/cli/export': ['src/rollout/datasets', 'src/inspector/routes', 'src/cli/view', 'src/cli', ...CLI],
  'src/cli/rollout': ['src/rollout', 'src/rollout/datasets', 'src/cli', ...CLI],
  'src/cli/view': ['src/embedded', 'src/inspector/routes', 'src/cli', ...CLI],
}

/** The layers of the design, top down. Adapters implement ports and do not import each other. */
const RULES: ArchitectureRules = {
  parts: {
    // Commands of the proxy and the worker, which a reduced program has as well.
    'src/cli': CLI,
    // Commands of products, and the list of them.
    'src/cli/run.ts': ['src/cli', 'src/cli/product-commands.ts'],
    'src/cli/product-commands.ts': [
      ...Object.keys(PRODUCT_COMMANDS),
      'src/cli',
      'src/rollout',
      'src/proxy/config',
    ],
    ...PRODUCT_COMMANDS,
    'src/index.ts': ['src/main.ts', 'src/commands.ts', 'src/open-engines.ts', ...PRODUCTS, ...PROXY],
    // All commands with all their options, including those of products.
    'src/commands.ts': ['src/proxy/config', 'src/rollout'],
    // The products, each of which a build may leave out: all other modules import them through this list.
    'src/products.ts': ['src/embedded', 'src/inspector/routes', 'src/rollout', 'src/proxy/store/postgres'],
    'src/included-products.ts': ['src/products.ts', 'src/base'],
    'src/main.ts': [
      'src/backend.ts',
      'src/open-engines.ts',
      'src/token-mode.ts',
      'src/included-products.ts',
      'src/worker',
      'src/proxy/http/nodes',
      ...PROXY.filter((folder) => folder !== 'src/proxy/store/postgres'),
    ],
    'src/backend.ts': [
      'src/open-engines.ts',
      'src/proxy/config',
      'src/proxy/metrics',
      'src/proxy/relay',
      ...ENGINES,
      'src/proxy/engines/port',
      ...COMMON_FOLDERS,
    ],
    'src/open-engines.ts': [
      'src/included-products.ts',
      'src/proxy/engines/clients',
      'src/proxy/engines/port',
    ],
    'src/token-mode.ts': [
      'src/included-products.ts',
      'src/proxy/config',
      'src/proxy/engines/port',
      'src/proxy/session',
      'src/proxy/tokens',
      ...COMMON_FOLDERS,
    ],
    // The page in the browser imports the types of the API's responses.
    'src/inspector/page': ['src/proxy/http', 'src/protocol/transcript'],
    'src/inspector/routes': COMMON_FOLDERS,
    // The side of trainers uses the proxy through its HTTP API only.
    'src/rollout': ['src/proxy/config', ...COMMON_FOLDERS],
    'src/rollout/datasets': COMMON_FOLDERS,
    'src/embedded': ['src/proxy/dialects', 'src/proxy/http', 'src/proxy/engines/clients', ...PORTS],
    'src/worker': ['src/proxy/engines/dispatch', ...PORTS],
    // Routes import no node: they take what they need of the other nodes as an option.
    'src/proxy/http': ['src/proxy/http/app.ts', ...HTTP],
    'src/proxy/http/app.ts': ['src/proxy/http', 'src/proxy/http/nodes', ...HTTP],
    'src/proxy/http/nodes': [
      'src/proxy/http',
      'src/proxy/engines/port',
      'src/proxy/session',
      'src/proxy/store/port',
      ...COMMON_FOLDERS,
    ],
    'src/proxy/metrics': ['src/proxy/engines/dispatch', 'src/proxy/session', ...PORTS],
    'src/proxy/tracing': ['src/proxy/session', ...PORTS],
    'src/proxy/dialects': PORTS,
    'src/proxy/session': PORTS,
    'src/proxy/verify': ['src/proxy/engines/dispatch', ...PORTS],
    'src/proxy/engines/clients': PORTS,
    'src/proxy/engines/dispatch': ['src/proxy/engines/port', ...COMMON_FOLDERS],
    'src/proxy/engines/port': COMMON_FOLDERS,
    'src/proxy/relay': ['src/proxy/engines/dispatch', ...PORTS],
    // Code that both databases share.
    'src/proxy/store/common': ['src/proxy/store/port', ...COMMON_FOLDERS],
    'src/proxy/store/sqlite': ['src/proxy/store/common', 'src/proxy/store/port', ...COMMON_FOLDERS],
    'src/proxy/store/postgres': ['src/proxy/store/common', 'src/proxy/store/port', ...COMMON_FOLDERS],
    'src/proxy/store/port': COMMON_FOLDERS,
    'src/proxy/tokens': COMMON_FOLDERS,
    'src/proxy/config': ['src/base'],
    'src/protocol': ['src/base'],
    // Renders requests and messages as text, in the page and in a terminal.
    'src/protocol/transcript': [],
    'src/base': [],
    'tools/build': ['src/base', 'src/cli/run.ts'],
    'tools/embedded-model': ['src/embedded', 'src/proxy/tokens'],
    'tools/bundle-packages.ts': [],
    'tools/make-page.ts': [],
    'tools/make-snapshot.ts': ['src/proxy/tokens'],
  },
  owners: {
    // A polyfill for Node 22; later versions have a built-in one.
    '@whatwg-node/disposablestack': 'src/main.ts',
    '@aws-sdk/client-bedrock-agentcore': 'src/rollout',
    '@aws-sdk/client-s3': 'src/rollout',
    '@aws-sdk/client-sqs': 'src/rollout',
    '@fastify/swagger': 'src/proxy/http',
    '@fastify/type-provider-typebox': 'src/proxy/http',
    '@fastify/websocket': 'src/proxy/http',
    '@huggingface/tokenizers': 'src/proxy/tokens',
    '@preact/signals': 'src/inspector/page',
    '@opentelemetry/api': 'src/proxy/tracing',
    '@opentelemetry/core': 'src/proxy/tracing',
    '@opentelemetry/exporter-trace-otlp-proto': 'src/proxy/tracing',
    '@opentelemetry/resources': 'src/proxy/tracing',
    '@opentelemetry/sdk-trace-base': 'src/proxy/tracing',
    'image-size': 'src/proxy/tokens',
    pyodide: 'src/proxy/tokens',
    tokenizers: 'src/proxy/tokens',
    'better-sqlite3': 'src/proxy/store/sqlite',
    pg: 'src/proxy/store/postgres',
    commander: 'src/cli',
    diff: ['src/inspector/page', 'src/protocol/transcript'],
    marked: 'src/inspector/page',
    preact: 'src/inspector/page',
    uplot: 'src/inspector/page',
    '@yao-pkg/pkg': 'tools/build',
    esbuild: ['tools/build', 'tools/bundle-packages.ts', 'tools/make-page.ts'],
    // The embedded engine, the inspector and the rollout server have routes of their own.
    fastify: [...HTTP_PARTS, 'src/embedded', 'src/inspector/routes', 'src/rollout'],
    'apache-arrow': 'src/rollout/datasets',
    hyparquet: 'src/rollout/datasets',
    'hyparquet-writer': 'src/rollout/datasets',
    openai: 'src/protocol',
    pino: 'src/cli',
    'smol-toml': 'src/rollout/datasets',
    tar: ['src/rollout', 'tools/build'],
    // Clients of different servers, which share only the library.
    undici: ['src/proxy/engines/clients', 'src/proxy/http', 'src/proxy/http/nodes', 'src/rollout'],
    ws: ['src/worker', 'src/proxy/relay'],
  },
  shared: ['typebox'],
}

/** Folders that contain only folders, except for the listed files that compose them. */
const PARENT_FOLDERS: Readonly<Record<string, readonly string[]>> = {
  // The composition root, its products, the modules that differ between its modes, and the package's entry
  // point.
  src: [
    'main.ts',
    'products.ts',
    'included-products.ts',
    'commands.ts',
    'backend.ts',
    'open-engines.ts',
    'token-mode.ts',
    'index.ts',
  ],
  'src/proxy': [],
  'src/proxy/dialects': [],
  'src/proxy/engines': [],
  // Modules that register routes: those of the proxy and those of a viewer.
  'src/proxy/http': ['app.ts', 'server.ts', 'view.ts'],
  'src/proxy/session': [],
  'src/proxy/store': [],
  'src/proxy/tokens': [],
  'src/protocol': [],
  // The product's entry.
  'src/embedded': ['open-embedded-engine.ts'],
  'src/inspector': [],
  tools: ['bundle-packages.ts', 'make-page.ts', 'make-snapshot.ts'],
}

t.test(
  'every import in src follows the layers, and each library is imported by its owner only',
  async (t) => {
    const graph = new Map(readImportGraph(ROOT, ['tsconfig.json', 'src/inspector/page/tsconfig.json']))
    // The demo's agent represents a program that does not know the proxy; it runs in its own process.
    graph.delete('src/cli/demo/agent.ts')
    t.ok(
      graph.has('src/base/errors.ts') && graph.has('src/inspector/page/app.tsx'),
      'the graph covers this repository',
    )
    t.strictSame(findViolations(graph, RULES), [])
    t.strictSame(findFolderCycles(graph), [], 'no folders import each other in a cycle')
    t.strictSame(findFileCycles(graph), [], 'no files import each other in a cycle')
  },
)

t.test('a folder of folders has no file of its own except those that compose it', async (t) => {
  for (const [folder, composing] of Object.entries(PARENT_FOLDERS)) {
    t.strictSame(globSync('*.ts', { cwd: join(ROOT, folder) }).sort(), composing.toSorted(), folder)
  }
})

t.test('data about a message is stored on the message, not in a map beside it', async (t) => {
  const sources = globSync('src/**/*.ts', { cwd: ROOT }).map((file) => ({
    file,
    text: readFileSync(join(ROOT, file), 'utf8'),
  }))
  const filesWith = (pattern: RegExp) =>
    sources.filter(({ text }) => pattern.test(text)).map(({ file }) => file)
  t.strictSame(filesWith(/\bnew WeakMap\b(?!<Logger,)/), ['src/protocol/canonical/request-reader.ts'])
  t.strictSame(filesWith(/\bclass Message(Tree)?\b/), ['src/protocol/canonical/conversation.ts'])
})

const createGraph = (imports: Record<string, string[]>): ImportGraph => new Map(Object.entries(imports))

t.test('an import against the direction of the layers is a violation', async (t) => {
  for (const [file, target] of [
    ['src/proxy/session/turn/run-turn.ts', 'src/proxy/http/app.ts'],
    ['src/proxy/dialects/chat/response.ts', 'src/proxy/session/state/sessions.ts'],
    ['src/proxy/engines/clients/openai/client.ts', 'src/proxy/store/sqlite/open.ts'],
    ['src/proxy/relay/relay-request.ts', 'src/proxy/engines/clients/wire/connection.ts'],
    ['src/proxy/store/port/turn-store.ts', 'src/proxy/store/sqlite/schema.ts'],
    ['src/proxy/http/server.ts', 'src/main.ts'],
    ['src/proxy/http/app.ts', 'src/inspector/routes/routes.ts'],
    ['src/proxy/config/options/serve.ts', 'src/rollout/options.ts'],
    ['src/proxy/engines/clients/create-clients.ts', 'src/embedded/open-embedded-engine.ts'],
    ['src/proxy/http/operator/admin.ts', 'src/proxy/http/nodes/other-nodes.ts'],
    ['src/main.ts', 'src/cli/run.ts'],
    ['src/worker/proxy-link.ts', 'src/proxy/relay/relay-request.ts'],
    ['src/rollout/rollout.ts', 'src/proxy/http/trainer/sessions/schemas.ts'],
    ['src/proxy/http/server.ts', 'src/rollout/remote-agent-loop.ts'],
    ['src/base/errors.ts', 'src/protocol/canonical/events.ts'],
  ] as const) {
    t.match(findViolations(createGraph({ [file]: [target] }), RULES), [`${file} imports ${target}: `])
  }
})

t.test('an import along the direction of the layers is allowed', async (t) => {
  const graph = createGraph({
    'src/main.ts': ['src/proxy/store/sqlite/open.ts', 'src/proxy/http/server.ts', 'node:fs'],
    'src/proxy/store/sqlite/open.ts': [
      'src/proxy/store/port/turn-store.ts',
      'better-sqlite3',
      'typebox/value',
    ],
    'src/protocol/canonical/messages.ts': ['openai/resources/chat/completions'],
    'src/base/version.ts': ['package.json'],
  })
  t.strictSame(findViolations(graph, RULES), [])
})

t.test(
  'a library imported outside its folder, one without an owner, and an import from test are violations',
  async (t) => {
    const graph = createGraph({
      'src/proxy/session/turn/run-turn.ts': ['fastify', 'pyodide/types', 'left-pad'],
      'src/proxy/http/server.ts': ['test/helpers/import-graph.ts'],
    })
    t.strictSame(findViolations(graph, RULES), [
      'src/proxy/session/turn/run-turn.ts imports fastify, which belongs to src/proxy/http and src/proxy/http/app.ts and src/proxy/http/nodes and src/embedded and src/inspector/routes and src/rollout',
      'src/proxy/session/turn/run-turn.ts imports pyodide, which belongs to src/proxy/tokens',
      'src/proxy/session/turn/run-turn.ts imports left-pad, which has no owner in the rules',
      'src/proxy/http/server.ts imports test/helpers/import-graph.ts, which is in no part',
    ])
  },
)

t.test('a file in a folder that the rules do not list is a violation', async (t) => {
  t.match(findViolations(createGraph({ 'src/utils/misc.ts': [] }), RULES), [
    'src/utils/misc.ts is in no part',
  ])
})

t.test(
  'folders that import each other form a cycle, also indirectly; a folder and its subfolder do not',
  async (t) => {
    const cycle = createGraph({
      'src/a/one.ts': ['src/b/two.ts'],
      'src/b/two.ts': ['src/c/three.ts'],
      'src/c/three.ts': ['src/a/other.ts'],
      'src/a/other.ts': [],
      'src/d/four.ts': ['src/a/one.ts'],
    })
    t.strictSame(findFolderCycles(cycle), [['src/a', 'src/b', 'src/c']])
    const nested = createGraph({
      'src/proxy/http/server.ts': ['src/proxy/http/agent/routes.ts'],
      'src/proxy/http/agent/routes.ts': ['src/proxy/http/transport/errors.ts'],
      'src/proxy/http/transport/errors.ts': [],
    })
    t.strictSame(findFolderCycles(nested), [])
  },
)

t.test('files that import each other form a cycle, also inside one folder', async (t) => {
  const cycle = createGraph({
    'src/a/one.ts': ['src/a/two.ts'],
    'src/a/two.ts': ['src/a/three.ts', 'zod'],
    'src/a/three.ts': ['src/a/one.ts'],
    'src/a/four.ts': ['src/a/one.ts'],
  })
  t.strictSame(findFileCycles(cycle), [['src/a/one.ts', 'src/a/three.ts', 'src/a/two.ts']])
})

t.test('the graph contains every form of import, and ignores comments and strings', async (t) => {
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

t.test('docs/architecture.md lists every folder of the rules, and names only existing files', async (t) => {
  const page = readFileSync(join(ROOT, 'docs/architecture.md'), 'utf8')
  const inMap = [...page.matchAll(/^\| `((?:src|tools)[^`]*)` \|/gm)].map(([, part]) => part!)
  const described = ['src/main.ts', 'src/products.ts']
  const folders = Object.keys(RULES.parts).filter((part) => !part.endsWith('.ts') || described.includes(part))
  t.strictSame(inMap.sort(), folders.sort())
  const named = [...page.matchAll(/`(src\/[\w./-]+|test\/[\w./-]+)`/g)].map(([, path]) => path!)
  for (const path of named) t.ok(existsSync(join(ROOT, path)), path)
})
