/** A connection survives a rejection: an agent shortens its request, and continues on the same connection. */
import { mock } from 'node:test'
import t from 'tap'
import { ProxyError } from '../../src/base/errors.ts'
import { BODY_VALUES } from '../../src/proxy/http/transport/json-body.ts'
import { RawConnection } from '../helpers/raw-connection.ts'
import { completeResponse, respond, type Script } from '../helpers/scripted-backend.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'
import { until } from '../helpers/until.ts'

/** Longer than the wait for the rest of a rejected body. */
const LONG_WAIT_MS = 60_000

const createPost = (body: string) =>
  `POST /s/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n${body}`
const createRequest = (fields = '') => createPost(`{"messages":[{"role":"user","content":"hi"}]${fields}}`)
const tooManyMembers = Array.from({ length: BODY_VALUES.members + 1 }, (_, index) => `"${index}":0`).join()

const rejectedByEngine: Script = async function* () {
  yield* []
  throw new ProxyError('engine_rejected', '<h1>413 Request Entity Too Large</h1>', { status: 413 })
}

const REJECTIONS = {
  'the proxy finds too many values in': { request: createRequest(`,"logit_bias":{${tooManyMembers}}`) },
  'a router before the engine finds too large': { request: createRequest(), script: rejectedByEngine },
}

for (const [rejected, { request, ...engine }] of Object.entries(REJECTIONS)) {
  t.test(`a request is served long after one that ${rejected}, on its connection`, async (t) => {
    const { url, backend, call: sendRequest } = await startSessionsApi(t)
    if ('script' in engine) backend.script = engine.script
    const connection = await RawConnection.open(url)
    t.teardown(() => connection.socket.destroy())
    mock.timers.enable({ apis: ['setTimeout'] })
    t.teardown(() => mock.timers.reset())
    await connection.send(request).until('413')

    const before = backend.requests.length
    const { promise: opened, resolve: open } = Promise.withResolvers<void>()
    backend.script = async function* () {
      await opened
      yield* respond(completeResponse())
    }
    connection.send(createRequest())
    await until(() => backend.requests.length > before)
    mock.timers.tick(LONG_WAIT_MS)
    open()
    await connection.until('hi there')
    const { body } = await sendRequest('GET', '/sessions/s')
    t.match(body.turns.at(-1), { status: 'completed', completion_text: 'hi there' })
  })
}

t.test('a rejected endless body is closed with its connection', async (t) => {
  const { url } = await startSessionsApi(t, undefined, {}, { bodyLimitBytes: 100 })
  const connection = await RawConnection.open(url)
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  await connection.send(createRequest('x'.repeat(100)).slice(0, -1)).until('413')
  mock.timers.tick(LONG_WAIT_MS)
  t.match(await connection.closed, /body_too_large/)
})
