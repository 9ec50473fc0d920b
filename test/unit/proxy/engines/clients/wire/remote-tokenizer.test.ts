import t from 'tap'
import { ProxyError } from '../../../../../../src/base/errors.ts'
import { RemoteTokenizer } from '../../../../../../src/proxy/engines/clients/wire/remote-tokenizer.ts'

const QUESTION = { text: 'text', ids: [1], chats: true }
const UNAVAILABLE = new ProxyError('engine_failed', 'HTTP 503')
const MISSING = new ProxyError('engine_rejected', 'Not Found', { status: 404 })

type Respond = (path: string, body: { prompt?: string; tools?: unknown }) => object | ProxyError

/** Creates the tokenizer of a server that responds as `server.respond` defines. */
function setUp(respond: Respond) {
  const server = { respond, queries: 0 }
  const query = async (path: string, _signal: AbortSignal, json = '{}') => {
    server.queries += 1
    const response = server.respond(path, JSON.parse(json))
    if (response instanceof ProxyError) throw response
    return JSON.stringify(response)
  }
  const tokenizer = new RemoteTokenizer(
    { query },
    {
      path: '/texts',
      buildBody: () => '{}',
      readTexts: (response) => (response as { texts?: string[] } | undefined)?.texts,
    },
  )
  const ask = () => tokenizer.query(QUESTION, 'm', new AbortController().signal)
  return { tokenizer, server, ask }
}

const respondWithIds: Respond = (_, body) => ({ tokens: body.prompt === undefined ? [1, 2] : [3] })
const REPLY = { textIds: [3], chatIds: { 'a chat': [1, 2], 'a chat with a tool': [1, 2] } }

t.test('a tokenizer that failed once is queried again, and a reply is cached', async (t) => {
  const { ask, server } = setUp(() => UNAVAILABLE)
  t.strictSame(await ask(), {})
  server.respond = respondWithIds
  t.strictSame(await ask(), REPLY)
  const { queries } = server
  t.strictSame(await ask(), REPLY)
  t.equal(server.queries, queries)
})

t.test('a reply that lacks a chat because of a failure is completed by the next query', async (t) => {
  const { ask, server } = setUp((path, body) => (body.tools ? UNAVAILABLE : respondWithIds(path, body)))
  t.strictSame(await ask(), { textIds: [3], chatIds: { 'a chat': [1, 2] } })
  server.respond = respondWithIds
  t.strictSame(await ask(), REPLY)
})

t.test('a server that lacks the routes is queried once, until it was unreachable', async (t) => {
  const { ask, server, tokenizer } = setUp(() => MISSING)
  for (let query = 0; query < 3; query += 1) t.strictSame(await ask(), {})
  t.equal(server.queries, 2)
  tokenizer.forget()
  server.respond = respondWithIds
  t.strictSame(await ask(), REPLY)
})

t.test('a server that always fails is queried three times, until it was unreachable', async (t) => {
  const { ask, server, tokenizer } = setUp((path) => (path === '/texts' ? { texts: ['a'] } : UNAVAILABLE))
  for (let query = 0; query < 5; query += 1) t.strictSame(await ask(), { idTexts: ['a'] })
  t.equal(server.queries, 6)
  tokenizer.forget()
  await ask()
  t.equal(server.queries, 8)
})

t.test('a lost connection fails the query, which is repeated', async (t) => {
  const { ask, server } = setUp(() => new ProxyError('engine_lost', 'lost'))
  await t.rejects(ask(), { code: 'engine_lost' })
  server.respond = respondWithIds
  t.strictSame(await ask(), REPLY)
})
