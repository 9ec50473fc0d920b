import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { type AddressInfo, createServer } from 'node:net'
import t, { type Test } from 'tap'
import { ProxyError } from '../../src/base/errors.ts'
import type { GenerationEvent } from '../../src/protocol/canonical/events.ts'
import { createSglangClient } from '../../src/proxy/engines/clients/sglang/client.ts'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { chatRequest, collect, eventually, noAbort } from '../conformance/engine-client.ts'
import { pull } from '../helpers/event-stream.ts'
import { openEventStream, type Script, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

/** Sends a request to an engine that responds as `script` does. @returns the failure, and the events before it */
async function getOutcome(
  t: Test,
  script: Script,
  { stream = true, ...options }: { stream?: boolean; maxSilenceMs?: number; maxResponseBytes?: number } = {},
): Promise<{ events: GenerationEvent[]; failure: ProxyError }> {
  const server = await startScriptedServer(script)
  const client = createVllmClient({ url: server.url.replace('//', '//me:s3cret@'), ...options })
  t.teardown(async () => {
    await client.close()
    await server.close()
  })
  const events: GenerationEvent[] = []
  try {
    for await (const batch of pull(client, chatRequest({}, stream), noAbort)) events.push(...batch)
  } catch (failure) {
    if (failure instanceof ProxyError) return { events, failure }
    throw failure
  }
  throw new Error('the request did not fail')
}

const respondWith =
  (status: number, body: string, headers = {}) =>
  (_: unknown, response: ServerResponse) => {
    response.writeHead(status, headers).end(body)
  }
const token = { choices: [{ index: 0, delta: { content: 'a' }, token_ids: [1] }] }
const tokenEvents = [{ type: 'start' }, { type: 'delta', content: 'a', tokenIds: [1] }]

t.test("the engine's error keeps its status, its message and its body", async (t) => {
  const bodies: [object, string][] = [
    [{ error: { message: 'too long', type: 'BadRequestError', param: null, code: 400 } }, 'too long'],
    [{ object: 'error', message: 'too long', type: 'BadRequestError', code: 400 }, 'too long'],
    [{ error: 'Unauthorized' }, 'Unauthorized'],
    [{ detail: [{ loc: ['body'], msg: 'bad' }] }, '[{"loc":["body"],"msg":"bad"}]'],
  ]
  for (const [body, message] of bodies) {
    const { failure } = await getOutcome(t, (_, response) => sendJson(response, body, 404))
    t.match(failure, { code: 'engine_rejected', status: 404, message, engineBody: body })
  }
})

for (const [status, expected] of [
  [429, { code: 'engine_rejected', status: 429 }],
  [503, { code: 'engine_failed', status: 502 }],
] as const) {
  t.test(`the error of an HTTP ${status} has the engine's Retry-After in seconds`, async (t) => {
    const seconds = await getOutcome(t, respondWith(status, '{}', { 'retry-after': '7' }))
    t.match(seconds.failure, { ...expected, retryAfterS: 7 })
    const inAMinute = new Date(Date.now() + 60_000).toUTCString()
    const date = await getOutcome(t, respondWith(status, '', { 'retry-after': inAMinute }))
    t.ok(date.failure.retryAfterS! > 55 && date.failure.retryAfterS! <= 60)
    const nonsense = await getOutcome(t, respondWith(status, '', { 'retry-after': 'soon' }))
    t.match(nonsense.failure, { ...expected, retryAfterS: undefined })
  })
}

t.test('credentials that the engine echoes are in no error', async (t) => {
  const { failure } = await getOutcome(t, (request, response) =>
    sendJson(response, { error: { message: `s3cret ${request.headers.authorization}` } }, 401),
  )
  t.equal(failure.message, '*** Basic ***')
  t.same(failure.engineBody, { error: { message: '*** Basic ***' } })
  t.notMatch(JSON.stringify(failure), 's3cret')
})

t.test('an HTTP error of the engine is a failure, with the beginning of its text', async (t) => {
  const { failure } = await getOutcome(t, respondWith(502, `<html>\n${'bad gateway '.repeat(100)}`))
  t.match(failure, { code: 'engine_failed', status: 502, message: /HTTP 502: <html> bad gateway/ })
  t.ok(failure.message.length < 300)
  t.match((await getOutcome(t, respondWith(302, ''))).failure, { code: 'engine_failed' }, 'so is a redirect')
})

t.test('an invalid response is a failure', async (t) => {
  for (const stream of [true, false]) {
    const html = await getOutcome(
      t,
      respondWith(200, '<html>login</html>', { 'content-type': 'text/html' }),
      {
        stream,
      },
    )
    t.match(html.failure, { code: 'engine_failed', message: /did not respond with JSON: <html>login/ })
    const empty = await getOutcome(t, respondWith(200, ''), { stream })
    t.match(empty.failure, { code: 'engine_failed' })
  }
})

t.test("an error in a stream comes after the tokens before it, with the engine's message", async (t) => {
  for (const error of [
    { message: 'out of memory', code: 500 },
    { object: 'error', message: 'out of memory' },
  ]) {
    const { events, failure } = await getOutcome(t, (_, response) => {
      const send = openEventStream(response)
      send(token)
      send({ error })
      send('[DONE]')
      response.end()
    })
    t.match(events, tokenEvents)
    t.match(failure, { code: 'engine_lost', message: /out of memory/ })
  }
})

t.test(
  'a client error in a stream is a rejection with its status, before the tokens and after',
  async (t) => {
    // The errors of vLLM 0.32.0 and SGLang 0.5.23 for an invalid regular expression.
    const errors = [
      { message: 'bad regex', type: 'BadRequestError', param: null, code: 400 },
      { object: 'error', message: 'bad regex', type: 'BAD_REQUEST', param: null, code: 400 },
    ]
    for (const error of errors) {
      for (const before of [[], [token]]) {
        const { events, failure } = await getOutcome(t, (_, response) => {
          const send = openEventStream(response)
          for (const each of [...before, { error }, '[DONE]']) send(each)
          response.end()
        })
        t.equal(events.length, before.length === 0 ? 0 : 2)
        t.match(failure, { code: 'engine_rejected', status: 400, message: 'bad regex' })
      }
    }
  },
)

t.test('a request that the engine aborted is a failure, after the tokens before it', async (t) => {
  const { events, failure } = await getOutcome(t, (_, response) => {
    const send = openEventStream(response)
    send(token)
    send({ choices: [{ index: 0, delta: {}, finish_reason: 'abort' }] })
    send('[DONE]')
    response.end()
  })
  t.match(events, tokenEvents)
  t.match(failure, { code: 'engine_aborted', message: /aborted the request/ })
})

t.test('a stream that ends without a finish reason is lost, with or without [DONE]', async (t) => {
  for (const end of [
    'data: [DONE]\n\n',
    '',
    'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n',
  ]) {
    const { events, failure } = await getOutcome(t, (_, response) => {
      openEventStream(response)(token)
      response.end(end)
    })
    t.match(events, tokenEvents)
    t.match(failure, { code: 'engine_lost' })
  }
})

t.test("spaces around [DONE], events without data and a gateway's own events fail no stream", async (t) => {
  const responses = { vllm: token, sglang: { ...token, error: {} } }
  for (const [kind, first] of Object.entries(responses)) {
    const server = await startScriptedServer((_, response) => {
      const send = openEventStream(response)
      const finish = { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] }
      for (const each of [first, finish, { warning: 'quota' }]) send(each)
      response.end('data:\n\ndata: [DONE] \n\n')
    })
    const client =
      kind === 'vllm' ? createVllmClient({ url: server.url }) : createSglangClient({ url: server.url })
    t.match(await collect(pull(client, chatRequest({}), noAbort)), [
      ...tokenEvents,
      { type: 'end', finishReason: 'stop' },
    ])
    await client.close()
    await server.close()
  }
})

t.test(
  'a response that exceeds the size limit fails the request: complete, in one line, in many, and as an error',
  async (t) => {
    const maxResponseBytes = 100_000
    const endless = (response: ServerResponse, chunk: string) => {
      const write = () => {
        while (!response.destroyed && response.write(chunk));
      }
      response.on('drain', write)
      write()
    }
    const padding = 'x'.repeat(10_000)
    const scripts: [string, Script, boolean][] = [
      ['a complete response', (_, response) => endless(response, padding), false],
      ['a rejection', (_, response) => endless(response.writeHead(500), padding), false],
      [
        'a line',
        (_, response) => {
          openEventStream(response)(token)
          endless(response, padding)
        },
        true,
      ],
      [
        'an event of many lines',
        (_, response) => {
          openEventStream(response)(token)
          endless(response, `data: ${padding}\n`)
        },
        true,
      ],
    ]
    for (const [what, script, stream] of scripts) {
      const { events, failure } = await getOutcome(t, script, { stream, maxResponseBytes })
      t.match(failure, { code: 'engine_failed', message: /more than 100000 bytes/ }, what)
      t.match(
        events,
        stream ? tokenEvents : { length: 0 },
        `${what}: the tokens sampled before are delivered`,
      )
    }
  },
)

t.test('a broken connection is lost, before the response, in a stream, in a complete response', async (t) => {
  const before = await getOutcome(t, (_, response) => void response.destroy())
  t.match(before.failure, { code: 'engine_lost', status: 502 })
  const streamed = await getOutcome(t, (_, response) => {
    openEventStream(response)(token)
    setTimeout(() => response.destroy(), 20)
  })
  t.match(streamed.events, tokenEvents)
  t.match(streamed.failure, { code: 'engine_lost' })
  const cut = (_: unknown, response: ServerResponse) => {
    response.writeHead(200, { 'content-length': 1_000 }).write('{"choices":')
    setTimeout(() => response.destroy(), 20)
  }
  t.match((await getOutcome(t, cut, { stream: false })).failure, { code: 'engine_lost' })
})

t.test('a silent engine times out, before its response and during it', async (t) => {
  const never = await getOutcome(t, () => {}, { maxSilenceMs: 50 })
  t.match(never.failure, { code: 'engine_timeout', status: 504 })
  const midway = await getOutcome(t, (_, response) => void openEventStream(response)(token), {
    maxSilenceMs: 50,
  })
  t.match(midway.events, tokenEvents)
  t.match(midway.failure, { code: 'engine_timeout' })
})

t.test('a server that does not speak HTTP is a failure, and not an engine to wait for', async (t) => {
  const server = createServer((socket) =>
    socket.on('error', () => {}).once('data', () => socket.end('SSH-2.0-OpenSSH_9.7\r\n')),
  )
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  const { port } = server.address() as AddressInfo
  const client = createVllmClient({ url: `http://127.0.0.1:${port}` })
  t.teardown(() => client.close())
  await t.rejects(collect(pull(client, chatRequest({}), noAbort)), {
    code: 'engine_failed',
    message: /does not speak HTTP/,
  })
})

t.test('an engine without a listener is unreachable', async (t) => {
  const server = await startScriptedServer(() => {})
  await server.close()
  for (const url of [server.url, 'http://no-such-host.invalid:1']) {
    const client = createVllmClient({ url, connectTimeoutMs: 500 })
    await t.rejects(collect(pull(client, chatRequest({}), noAbort)), {
      code: 'engine_unreachable',
      status: 503,
    })
    await t.rejects(client.checkHealth(noAbort), { code: 'engine_unreachable' })
    await client.close()
  }
})

t.test('the connection of a completed response stays open for the next request', async (t) => {
  const cut: boolean[] = []
  const server = await startScriptedServer((request, response) => {
    if (request.body === undefined) return sendJson(response, {}, 404)
    response.once('close', () => cut.push(!response.writableFinished))
    const done = { choices: [{ index: 0, message: { content: 'a' }, delta: {}, finish_reason: 'stop' }] }
    if (!request.body.stream) return sendJson(response, done)
    const send = openEventStream(response)
    send(done)
    send('[DONE]')
    // As uvicorn does: the end of the body is a separate packet.
    setTimeout(() => response.end(), 20)
  })
  const client = createVllmClient({ url: server.url })
  for (const stream of [true, false, true]) await collect(pull(client, chatRequest({}, stream), noAbort))
  await eventually(() => cut.length === 3)
  t.same(cut, [false, false, false])
  await client.close()
  await server.close()
})
