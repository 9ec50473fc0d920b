/** A database is viewed without a proxy: in the browser, and as one file. */
import { cpSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import t, { type Test } from 'tap'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy } from '../helpers/proxy.ts'
import { recordTurn } from '../helpers/sessions-api.ts'

const NEW_SESSION = { createdAtMs: 1_000, ttlMs: null, metadata: {}, samplingParams: {}, trustAgent: false }

async function createDatabase(t: Test, model = 'embedded'): Promise<string> {
  const path = join(t.testdir({}), 'turns.db')
  const store = await openSqliteStore({ path, durability: 'process' })
  await store.createSession({ ...NEW_SESSION, sessionId: 'a/b:0' })
  const text = '</script><script>alert(1)</script>'
  await recordTurn(store, 'a/b:0', 0, { completionText: text, model })
  await store.close()
  return path
}

async function startView(t: Test, args: readonly string[]) {
  const child = startLlmProxy(['view', '--port', '0', ...args])
  t.teardown(() => child.kill())
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const { value } = await lines.next()
  return String(value).match(/http:\/\/\S+(?=\/ui)/)![0]
}

const get = async (url: string, headers: Record<string, string> = {}) => {
  const response = await fetch(url, { headers })
  return { status: response.status, text: await response.text() }
}

t.test('view serves the page and the reads of a database, and nothing that changes it', async (t) => {
  const url = await startView(t, ['--db', await createDatabase(t)])
  t.match(await get(`${url}/ui`), { status: 200, text: '<!doctype html>' })
  t.match(JSON.parse((await get(`${url}/health`)).text), { status: 'ok', mode: 'view' })
  const { sessions } = JSON.parse((await get(`${url}/sessions`)).text)
  t.match(sessions, [{ session_id: 'a/b:0', turn_count: 1 }])
  t.match(await get(`${url}/sessions/a/b:0/tree`), { status: 200 })
  const texts = JSON.parse((await get(`${url}/sessions/a%2Fb:0/rows/0/token_texts`)).text)
  t.equal(texts.source, 'embedded')
  t.equal(texts.texts.length, 3)
  t.match(await get(`${url}/events`), { status: 204 })
  const removal = await fetch(`${url}/sessions/a%2Fb:0`, { method: 'DELETE' })
  t.equal(removal.status, 404)
})

t.test('view requires a key where one is set, below its base path', async (t) => {
  const key = 'a-view-key-for-tests'
  const url = await startView(t, ['--db', await createDatabase(t), '--view-key', key, '--base-path', '/llm'])
  t.match(url, /\/llm$/)
  t.match(await get(`${url}/sessions`), { status: 401 })
  t.match(await get(`${url}/sessions`, { authorization: `Bearer ${key}` }), { status: 200 })
})

t.test('view rejects meaningless options', async (t) => {
  t.match(await runLlmProxy(['view', '--db', 'nowhere.db']), { code: 1, stderr: /there is no database/ })
  const open = await runLlmProxy(['view', '--db', await createDatabase(t), '--host', '0.0.0.0'])
  t.match(open, { code: 2, stderr: /Set --view-key/ })
})

/** Returns what the page's own script finds in the file. */
function parseRecorded(html: string) {
  const [, json] = html.match(/<script type="application\/json" id="recorded">(.*?)<\/script>/s)!
  return JSON.parse(json!)
}

t.test('a session is one file that loads nothing, and whose texts are not markup', async (t) => {
  const db = await createDatabase(t)
  const output = `${db}.html`
  const args = ['sessions', 'export', '--format', 'html', '--db', db]
  t.match(await runLlmProxy([...args, '--output', output, 'a/b:0']), { code: 0, stderr: '' })
  const html = readFileSync(output, 'utf8')
  t.match(html, /default-src 'none'; script-src 'sha256-/)
  t.notMatch(html, /<script>alert/)
  const { json, base64 } = parseRecorded(html)
  t.match(json.sessions, { sessions: [{ session_id: 'a/b:0' }], next_cursor: null })
  t.match(json['sessions/a%2Fb%3A0/tree'], { turns: [{ index: 0 }] })
  t.ok(base64['sessions/a%2Fb%3A0/rows/0/tokens?texts=true'])
  t.match(await runLlmProxy(args), { code: 2, stderr: /name the sessions/ })
  t.match(await runLlmProxy([...args, 'none']), { code: 1, stderr: /not found/ })
})

t.test('the file of a database has the text of tokens by --tokenizer', async (t) => {
  const db = await createDatabase(t, 'another-model')
  const args = ['sessions', 'export', '--db', db, 'a/b:0']
  const exportTokens = async (...more: string[]) => {
    const { stdout } = await runLlmProxy([...args, '--format', 'html', ...more])
    const { base64 } = parseRecorded(stdout)
    return Buffer.from(base64['sessions/a%2Fb%3A0/rows/0/tokens?texts=true'], 'base64').toString('latin1')
  }
  // The tested executable sees only the directory of the tests.
  const embedded = `${db}-model`
  cpSync(join(import.meta.dirname, '../../src/embedded/model'), embedded, { recursive: true })
  t.notMatch(await exportTokens(), /"text_ends"/)
  t.match(await exportTokens('--tokenizer', embedded), /"text_ends"/)
  const wrong = await runLlmProxy([...args, '--tokenizer', embedded])
  t.match(wrong, { code: 2, stderr: /--tokenizer is for --format html/ })
})

t.test('a running proxy provides the same file', async (t) => {
  const proxy = await startProxy(t)
  await proxy.post('/sessions', { session_id: 's' })
  const { code, stdout } = await runLlmProxy([
    'sessions',
    'export',
    '--format',
    'html',
    '--url',
    proxy.url,
    's',
  ])
  t.equal(code, 0)
  t.match(parseRecorded(stdout).json.sessions, { sessions: [{ session_id: 's' }] })
})

t.test('sessions are listed by the given filters', async (t) => {
  const path = join(t.testdir({}), 'turns.db')
  const store = await openSqliteStore({ path, durability: 'process' })
  for (const [index, sessionId] of ['a', 'b', 'c'].entries()) {
    await store.createSession({ ...NEW_SESSION, sessionId, metadata: { step: index % 2, by: 'us' } })
    await store.setReward(sessionId, { reward: [0.5, 1, 0][index]!, components: {} }, 2_000)
  }
  await store.close()
  const list = async (...args: string[]) => {
    const { stdout } = await runLlmProxy(['sessions', 'list', '--json', '--db', path, ...args])
    return JSON.parse(stdout).map(({ session_id }: { session_id: string }) => session_id)
  }
  t.same(await list('--sort', 'reward'), ['b', 'a', 'c'])
  t.same((await list('--metadata', 'step=0', '--metadata', 'by=us')).sort(), ['a', 'c'])
  t.same(await list('--since', '1h'), [])
  const wrong = await runLlmProxy(['sessions', 'list', '--db', path, '--metadata', 'step'])
  t.match(wrong, { code: 2, stderr: /--metadata is key=value/ })
})
