/** Streams whose engine disconnects after the first tokens, as clients of each dialect read them. */
import t, { type Test } from 'tap'
import { ProxyError } from '../../src/base/errors.ts'
import { completeResponse } from '../helpers/scripted-backend.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'

const LOST = '502 Bad Gateway: the connection to the engine was lost'
const CHAT = { model: 'm', stream: true, max_tokens: 4, messages: [{ role: 'user', content: 'Hello' }] }
const GEMINI = { contents: [{ role: 'user', parts: [{ text: 'Hello' }] }] }

/** Returns the chunks of the body, as they arrive. */
async function readChunks(t: Test, path: string, body: object, code: 'engine_lost' | 'engine_rejected') {
  const api = await startSessionsApi(t)
  api.backend.script = async function* () {
    yield completeResponse().slice(0, 2)
    const status = code === 'engine_rejected' ? { status: 400 } : {}
    throw new ProxyError(code, 'the connection to the engine was lost', status)
  }
  const response = await fetch(`${api.url}/s/${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  t.equal(response.status, 200, 'the stream has started')
  const chunks: string[] = []
  for await (const chunk of response.body!) chunks.push(Buffer.from(chunk).toString())
  return chunks
}

const parseLastEvent = (chunks: readonly string[]) => JSON.parse(/data: (.*)\n\n$/.exec(chunks.join(''))![1]!)

t.test('the message of a lost engine contains its status, by which agents decide to retry', async (t) => {
  const paths: [string, object, object][] = [
    ['v1/chat/completions', CHAT, { error: { message: LOST, code: 'engine_lost', type: 'server_error' } }],
    ['v1/completions', { ...CHAT, prompt: 'Hello' }, { error: { message: LOST, code: 'engine_lost' } }],
    ['v1/messages', CHAT, { type: 'error', error: { type: 'api_error', message: LOST } }],
    [
      'v1/responses',
      { model: 'm', stream: true, input: 'Hello' },
      { type: 'response.failed', response: { error: { code: 'engine_lost', message: LOST } } },
    ],
  ]
  for (const [path, body, expected] of paths)
    t.match(parseLastEvent(await readChunks(t, path, body, 'engine_lost')), expected, path)
})

t.test("an agent's error has the engine's message", async (t) => {
  const chunks = await readChunks(t, 'v1/chat/completions', CHAT, 'engine_rejected')
  t.match(parseLastEvent(chunks), { error: { message: 'the connection to the engine was lost' } })
})

t.test("Gemini's events end with the error as an event, followed by bare JSON", async (t) => {
  const chunks = await readChunks(t, 'v1beta/models/m:streamGenerateContent?alt=sse', GEMINI, 'engine_lost')
  const error = { error: { code: 502, status: 'INTERNAL', message: LOST } }
  const [, events, rest] = /^(.*\n\n)(.*)$/s.exec(chunks.join(''))!
  t.match(parseLastEvent([events!]), error, 'for clients that read events')
  t.match(JSON.parse(rest!), error, "for Gemini CLI's SDK, which rejects a partial event")
})

t.test('an array of Gemini responses ends with the error, and is JSON', async (t) => {
  const chunks = await readChunks(t, 'v1beta/models/m:streamGenerateContent', GEMINI, 'engine_lost')
  t.match(JSON.parse(chunks.join('')).at(-1), { error: { code: 502, message: LOST } })
})
