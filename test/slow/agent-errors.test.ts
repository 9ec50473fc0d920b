/** The proxy's errors as the official clients raise them: class, type, code, ids, and whether they are retried. */
import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t from 'tap'
import { type ErrorCode, ProxyError, type ProxyErrorOptions } from '../../src/base/errors.ts'
import { startEngine } from '../helpers/engine.ts'
import { startProxy } from '../helpers/proxy.ts'
import { type SessionsApi, startSessionsApi } from '../helpers/sessions-api.ts'

type Client = (api: SessionsApi, maxRetries: number) => (stream: boolean) => Promise<unknown>

const openAi = ({ url }: SessionsApi, maxRetries: number) =>
  new OpenAI({ baseURL: `${url}/s/v1`, apiKey: 'none', maxRetries })
const messages = [{ role: 'user' as const, content: 'hi' }]
const model = 'x'

/** Reads a stream to its end. */
async function drain(stream: AsyncIterable<unknown>): Promise<void> {
  for await (const _ of stream);
}

const OPENAI_CLIENTS: Record<string, Client> = {
  chat: (api, maxRetries) => {
    const { completions } = openAi(api, maxRetries).chat
    return async (stream) =>
      stream
        ? drain(await completions.create({ model, messages, stream }))
        : completions.create({ model, messages })
  },
  completions: (api, maxRetries) => {
    const { completions } = openAi(api, maxRetries)
    return async (stream) =>
      stream
        ? drain(await completions.create({ model, prompt: 'x', stream }))
        : completions.create({ model, prompt: 'x' })
  },
  responses: (api, maxRetries) => {
    const { responses } = openAi(api, maxRetries)
    return async (stream) =>
      stream
        ? drain(await responses.create({ model, input: 'x', stream }))
        : responses.create({ model, input: 'x' })
  },
}

const anthropic: Client = ({ url }, maxRetries) => {
  const { messages: api } = new Anthropic({ baseURL: `${url}/s`, apiKey: 'none', maxRetries })
  const body = { model, messages, max_tokens: 5 }
  return async (stream) => (stream ? api.stream(body).finalMessage() : api.create(body))
}

type ErrorClass = abstract new (...args: never[]) => Error

interface Expected {
  code: ErrorCode
  options?: ProxyErrorOptions
  status: number
  openAiClass: ErrorClass
  openAiType: string
  anthropicClass: ErrorClass
  anthropicType: string
  anthropicStatus?: number
  retryAfter?: string
  isFinal?: boolean
}

const invalidRequest = {
  openAiType: 'invalid_request_error',
  anthropicType: 'invalid_request_error',
  isFinal: true,
}
const fault = {
  openAiClass: OpenAI.InternalServerError,
  openAiType: 'server_error',
  anthropicClass: Anthropic.InternalServerError,
  anthropicType: 'api_error',
}
const conflict = {
  status: 409,
  openAiClass: OpenAI.ConflictError,
  openAiType: 'invalid_request_error',
  anthropicClass: Anthropic.ConflictError,
  anthropicType: 'conflict_error',
  isFinal: true,
}
const badRequest = {
  openAiClass: OpenAI.BadRequestError,
  anthropicClass: Anthropic.BadRequestError,
  ...invalidRequest,
}

const EXPECTED: Expected[] = [
  { code: 'engine_rejected', status: 400, ...badRequest },
  { code: 'unsupported', status: 400, ...badRequest },
  {
    code: 'engine_rejected',
    options: { status: 404 },
    status: 404,
    openAiClass: OpenAI.NotFoundError,
    openAiType: 'not_found_error',
    anthropicClass: Anthropic.NotFoundError,
    anthropicType: 'not_found_error',
    isFinal: true,
  },
  {
    ...invalidRequest,
    code: 'engine_rejected',
    options: { status: 422 },
    status: 422,
    openAiClass: OpenAI.UnprocessableEntityError,
    anthropicClass: Anthropic.UnprocessableEntityError,
  },
  {
    code: 'engine_rejected',
    options: { status: 429, retryAfterS: 7 },
    status: 429,
    openAiClass: OpenAI.RateLimitError,
    openAiType: 'rate_limit_error',
    anthropicClass: Anthropic.RateLimitError,
    anthropicType: 'rate_limit_error',
    retryAfter: '7',
  },
  {
    ...fault,
    code: 'queue_full',
    options: { retryAfterS: 1 },
    status: 503,
    anthropicType: 'overloaded_error',
    anthropicStatus: 529,
    retryAfter: '1',
  },
  {
    ...fault,
    code: 'no_worker',
    status: 503,
    anthropicType: 'overloaded_error',
    anthropicStatus: 529,
    retryAfter: '5',
  },
  { ...fault, code: 'engine_unreachable', status: 503, retryAfter: '5' },
  { ...fault, code: 'store_failed', status: 503, retryAfter: '5' },
  { ...fault, code: 'engine_failed', status: 502 },
  { ...fault, code: 'engine_lost', status: 502 },
  { ...fault, code: 'worker_lost', status: 502 },
  { ...fault, code: 'engine_timeout', status: 504, anthropicType: 'timeout_error' },
  { ...fault, code: 'unsupported', options: { status: 501 }, status: 501, isFinal: true },
  { ...fault, code: 'internal', status: 500, isFinal: true },
  { ...conflict, code: 'session_ended' },
  { ...conflict, code: 'turn_cancelled' },
]

/** Makes the engine fail with `error`. @returns the number of attempts, and the client's error */
async function failRequest(
  api: SessionsApi,
  client: Client,
  error: ProxyError,
  { maxRetries, stream }: { maxRetries: number; stream: boolean },
): Promise<{ attempts: number; thrown: unknown }> {
  let attempts = 0
  // biome-ignore lint/correctness/useYield: it fails before it yields
  api.backend.script = async function* () {
    attempts += 1
    throw error
  }
  const thrown = await client(
    api,
    maxRetries,
  )(stream).then(
    () => assert.fail('the request succeeded'),
    (rejected: unknown) => rejected,
  )
  return { attempts, thrown }
}

for (const [name, client] of Object.entries({ ...OPENAI_CLIENTS, messages: anthropic })) {
  t.test(
    `${name}: each error is of the client's class for it, with its type, code and ids, streamed or not`,
    async (t) => {
      const api = await startSessionsApi(t)
      for (const expected of EXPECTED) {
        const { code, options = {}, retryAfter, isFinal } = expected
        const error = new ProxyError(code, 'test failure', options)
        for (const stream of [false, true]) {
          const { thrown } = await failRequest(api, client, error, { maxRetries: 0, stream })
          const label = `${code} ${expected.status}${stream ? ' streamed' : ''}`
          const id = await latestTurnId(api)
          if (name === 'messages') {
            t.ok(thrown instanceof expected.anthropicClass, label)
            t.match(
              thrown,
              {
                status: expected.anthropicStatus ?? expected.status,
                type: expected.anthropicType,
                requestID: `req_${id}`,
                error: {
                  type: 'error',
                  error: {
                    type: expected.anthropicType,
                    message: 'test failure',
                    details: { error_code: code },
                  },
                  request_id: `req_${id}`,
                },
              },
              label,
            )
          } else {
            t.ok(thrown instanceof expected.openAiClass, label)
            const { status, openAiType: type } = expected
            t.match(thrown, { status, type, code, requestID: id, message: `${status} test failure` }, label)
          }
          const { headers } = thrown as { headers: Headers }
          t.equal(headers.get('retry-after') ?? undefined, retryAfter, label)
          if (isFinal && expected.status >= 409 && expected.status !== 422)
            t.equal(headers.get('x-should-retry'), 'false', label)
        }
      }
    },
  )

  t.test(`${name}: the client retries what a retry may fix, and nothing else`, async (t) => {
    const api = await startSessionsApi(t)
    for (const { code, options = {}, isFinal = false } of EXPECTED) {
      const retry = isFinal ? {} : { retryAfterS: 0.001 }
      const error = new ProxyError(code, 'test failure', { ...options, ...retry })
      const { attempts } = await failRequest(api, client, error, { maxRetries: 2, stream: true })
      t.equal(attempts, isFinal ? 1 : 3, `${code} ${error.status}`)
    }
  })

  t.test(`${name}: the client waits for the time in retry-after`, async (t) => {
    const api = await startSessionsApi(t)
    const startedAtMs = performance.now()
    const busy = new ProxyError('engine_rejected', 'slow down', { status: 429, retryAfterS: 0.25 })
    t.equal((await failRequest(api, client, busy, { maxRetries: 1, stream: false })).attempts, 2)
    t.ok(performance.now() - startedAtMs >= 250)
  })

  t.test(`${name}: a request without a turn has an id, too`, async (t) => {
    const api = await startSessionsApi(t)
    await api.call('POST', '/sessions/s')
    await api.call('POST', '/sessions/s/complete')
    const ended = (await client(api, 3)(false).catch((error: unknown) => error)) as { requestID: string }
    t.match(ended, { status: 409, requestID: /^[0-9a-f-]{36}$/ })
    t.equal(api.backend.requests.length, 0)
  })
}

async function latestTurnId(api: SessionsApi): Promise<string> {
  return (await api.call('GET', '/sessions/s')).body.turns.at(-1).turn_id
}

t.test(
  'a prompt that exceeds the context has the code that agents know, in chat and in token mode',
  async (t) => {
    // A short context: after 15 s of silence, as on a busy machine, a stream reports its errors in events.
    const engine = await startEngine(t, { model, contextLength: 512 })
    const content = 'word '.repeat(1_000)
    for (const config of [{}, { tokenizer: 'embedded' }]) {
      const proxy = await startProxy(t, { db: 'memory', engineUrls: [engine.url], ...config })
      const openai = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none', maxRetries: 0 })
      const long = [{ role: 'user' as const, content }]
      const requests = {
        chat: openai.chat.completions.create({ model, messages: long, max_tokens: 5 }),
        responses: openai.responses.create({ model, input: content }),
        streamed: openai.responses.stream({ model, input: content }).finalResponse(),
      }
      // All requests are in flight: each rejection needs a handler at once.
      const outcomes = await Promise.allSettled(Object.values(requests))
      for (const [index, name] of Object.keys(requests).entries()) {
        const rejected = (outcomes[index] as PromiseRejectedResult).reason
        t.ok(rejected instanceof OpenAI.BadRequestError, name)
        t.match(rejected, { code: 'context_length_exceeded', type: 'invalid_request_error' }, name)
      }
    }
  },
)

t.test('a missing object is an error with an id, in the format of the requested API', async (t) => {
  const api = await startSessionsApi(t)
  const sendRequest = async (path: string) => {
    const response = await fetch(`${api.url}${path}`, { method: 'POST' })
    return { headers: response.headers, body: (await response.json()) as Record<string, unknown> }
  }
  const openAiResponse = await sendRequest('/s/v1/nowhere')
  t.match(openAiResponse.body, { error: { code: 'route_not_found' } })
  t.match(openAiResponse.headers.get('x-request-id'), /^[0-9a-f-]{36}$/)
  const withoutV1 = await sendRequest('/s/chat/completions')
  t.match(withoutV1.body, {
    error: { message: /the base URL of an OpenAI client ends in \/\{session_id\}\/v1/ },
  })
  const anthropicResponse = await sendRequest('/s/v1/messages/batches')
  t.match(anthropicResponse.body, { type: 'error', request_id: anthropicResponse.headers.get('request-id') })
})
