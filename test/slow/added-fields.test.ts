/**
 * The number of files that a new field or store operation touches. In a copy of the sources, the test adds a turn column
 * (with a migration of each database), a row field, a store write and a store read. The copy must compile, migrate an
 * older database, store the column and return both fields.
 */
import { execFile } from 'node:child_process'
import { cpSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { brotliDecompressSync } from 'node:zlib'
import t from 'tap'
import { killChild, waitForOutput } from '../helpers/children.ts'
import { startLlmProxy } from '../helpers/llm-proxy.ts'

const ROOT = join(import.meta.dirname, '../..')

interface Insertion {
  readonly file: string
  /** The text that the insertion precedes. */
  readonly before: string
  readonly text: string
}

const TURN_COLUMN: readonly Insertion[] = [
  {
    file: 'src/protocol/schema/turn.ts',
    before: '} as const satisfies TurnFields)',
    text: `  queue_depth: {
    type: nullable(Type.Integer({ description: 'Requests before it in the queue; null: unknown' })),
    part: 'outcome',
    since: '0.9.0',
  },
`,
  },
  {
    file: 'src/proxy/session/turn/turn-record.ts',
    before: '    inexactReason: inexact,',
    text: '    queueDepth: 3,\n',
  },
]

const MIGRATIONS: readonly Insertion[] = [
  {
    file: 'src/proxy/store/sqlite/schema.ts',
    before: ']\n\nconst SCHEMA_VERSION',
    text: "  'ALTER TABLE turns ADD COLUMN queue_depth INTEGER',\n",
  },
  {
    file: 'src/proxy/store/postgres/schema.ts',
    before: ']\n\nexport const SCHEMA_VERSION',
    text: "  { sql: 'ALTER TABLE llm_proxy.turns ADD COLUMN queue_depth bigint', adds: true },\n",
  },
]

const ROW_FIELD: readonly Insertion[] = [
  {
    file: 'src/protocol/schema/row.ts',
    before: "  finish_reason: { type: nullableText('The finish reason of its last turn')",
    text: "  first_index: { type: Type.Integer({ description: 'The index of its first turn' }), since: '0.9.0' },\n",
  },
  {
    file: 'src/proxy/session/trajectories/assemble-row.ts',
    before: '    num_turns: chain.length,',
    text: '    first_index: chain[0]!.index,\n',
  },
]

/** The databases share the code of a write. */
const STORE_WRITE: readonly Insertion[] = [
  {
    file: 'src/proxy/store/port/turn-store.ts',
    before: "  /** Removes the session's turns, reward and marks and makes it active again. */",
    text: '  renewSession(sessionId: string, atMs: number): Promise<SessionRecord | undefined>\n',
  },
  {
    file: 'src/proxy/store/port/turn-store.ts',
    before: "'setReward', 'changeMarks'] as const",
    text: "'renewSession', ",
  },
  {
    file: 'src/proxy/store/common/session-writer.ts',
    before: '  reset(sessionId: string, atMs: number)',
    text: `  renewSession(sessionId: string, atMs: number): SessionRecord | undefined {
    return this.#change(sessionId, () => ({ updated_at_ms: atMs }))
  }

`,
  },
]

const STORE_READ: readonly Insertion[] = [
  {
    file: 'src/proxy/store/port/turn-store.ts',
    before: '  listSessions(query: SessionQuery): Promise<SessionPage>',
    text: '  hasSession(sessionId: string): Promise<boolean>\n',
  },
  {
    file: 'src/proxy/store/port/turn-store.ts',
    before: "'countSessions'] as const",
    text: "'hasSession', ",
  },
  {
    file: 'src/proxy/store/sqlite/sessions.ts',
    before: '    listSessions: (query) => reader.list(query),',
    text: '    hasSession: (sessionId) => reader.findTree(sessionId) !== undefined,\n',
  },
  {
    file: 'src/proxy/store/postgres/select-sessions.ts',
    before: 'async function countSessions(',
    text: `const hasSession = async (client: Client, sessionId: string) =>
  (await selectTree(client, sessionId)) !== undefined

`,
  },
  {
    file: 'src/proxy/store/postgres/select-sessions.ts',
    before: 'getSession, listSessions, tallySessions',
    text: 'hasSession, ',
  },
]

interface ResponseBody {
  readonly sessions: readonly { readonly session_id: string }[]
  readonly turns: readonly { readonly queue_depth: number | null }[]
  readonly trajectories: readonly { readonly first_index: number }[]
}

const copy = t.testdir({})
for (const name of ['src', 'bin', 'package.json', 'tsconfig.json'])
  cpSync(join(ROOT, name), join(copy, name), { recursive: true })
symlinkSync(join(ROOT, 'node_modules'), join(copy, 'node_modules'))
const insertions = [TURN_COLUMN, MIGRATIONS, ROW_FIELD, STORE_WRITE, STORE_READ].flat()
for (const { file, before, text } of insertions) {
  const source = readFileSync(join(copy, file), 'utf8')
  const parts = source.split(before)
  if (parts.length !== 2) throw new Error(`${file} has ${before} ${parts.length - 1} times, not once`)
  writeFileSync(join(copy, file), parts.join(text + before))
}

t.test('two files each define and fill a field', async (t) => {
  for (const insertions of [TURN_COLUMN, ROW_FIELD])
    t.equal(new Set(insertions.map(({ file }) => file)).size, 2)
})

t.test('two files add a store write, three a store read', async (t) => {
  t.equal(new Set(STORE_WRITE.map(({ file }) => file)).size, 2)
  t.equal(new Set(STORE_READ.map(({ file }) => file)).size, 3)
})

t.test('the copy passes the compiler', async (t) => {
  const config = join(copy, 'tsconfig.copy.json')
  const compilerOptions = { incremental: false, tsBuildInfoFile: null }
  const files = ['src/cli/run.ts', 'src/index.ts']
  writeFileSync(config, JSON.stringify({ extends: './tsconfig.json', compilerOptions, files, include: [] }))
  const compiler = join(ROOT, 'node_modules/.bin/tsc')
  const result = await promisify(execFile)(compiler, ['-p', config], {
    env: { PATH: process.env.PATH },
  }).then(
    () => 'no error',
    (error: { stdout: string; stderr: string }) => error.stdout + error.stderr,
  )
  t.equal(result, 'no error')
})

t.test('it stores the column in an older database, and returns both fields', async (t) => {
  const db = join(copy, 'record.db')
  const older = join(ROOT, 'test/integration/older-database/record.db.br')
  writeFileSync(db, brotliDecompressSync(readFileSync(older)))
  const launcher = join(copy, 'bin/llm-proxy')
  const proxy = startLlmProxy(['serve', '--port', '0', '--db', db], { launcher })
  t.teardown(() => killChild(proxy))
  const [, url] = await waitForOutput(proxy.stdout, /listening on (http:\S+)/)
  const get = async (path: string) => (await (await fetch(url + path)).json()) as ResponseBody

  const { sessions } = await get('/sessions?limit=1')
  const { turns: earlier } = await get(`/sessions/${encodeURIComponent(sessions[0]!.session_id)}`)
  t.ok(earlier.length > 0)
  for (const turn of earlier) t.equal(turn.queue_depth, null, 'an older turn has no value')

  const response = await fetch(`${url}/sessions/new/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'm', max_tokens: 4, messages: [{ role: 'user', content: 'hello' }] }),
  })
  t.equal(response.status, 200)
  const { turns } = await get('/sessions/new')
  t.equal(turns[0]!.queue_depth, 3)
  const { trajectories } = await get('/sessions/new/trajectories')
  t.equal(trajectories[0]!.first_index, 0)

  const openapi = JSON.stringify(await get('/openapi.json'))
  t.match(openapi, '"queue_depth"')
  t.match(openapi, '"first_index"')
})
