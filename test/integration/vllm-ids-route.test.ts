/** vLLM's `/inference/v1/generate`: which requests without images use it, and where the others go. */
import type { ServerResponse } from 'node:http'
import t, { type Test } from 'tap'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { findInexactReason } from '../../src/proxy/session/prompts/exactness.ts'
import { collect, fold, noAbort, tokenRequest } from '../conformance/engine-client.ts'
import { pull } from '../helpers/event-stream.ts'
import { openEventStream, type Script, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

const PROMPT = [1, 2, 3]
const BY_IDS = '/inference/v1/generate'
const COMPLETIONS = '/v1/completions'
const RENDER = '/v1/completions/render'

const usage = { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 }

/** Responses of vLLM at 006ebac2. */
const respond: Script = ({ path }, response) => {
  if (path === '/health') return void response.end()
  if (path === '/v1/models') return sendJson(response, { object: 'list', data: [{ id: 'm' }] })
  if (path === '/version' || path === RENDER) return sendJson(response, { detail: 'Not Found' }, 404)
  const choice = { index: 0, finish_reason: 'stop', token_ids: [5, 2] }
  if (path === BY_IDS) {
    const top = (id: number) => ({ token_id: id, logprob: -0.25, rank: 1 })
    const content = [5, 2].map((id) => ({ ...top(id), top_logprobs: [top(id), top(id + 1)] }))
    const weight_versions = [
      { version: 'v1', start: 0, end: 1 },
      { version: 'v2', start: 1, end: 2 },
    ]
    const fields = { logprobs: { content }, sampling_mask: [[5, 6], [2]], weight_versions }
    return sendJson(response, { prompt_token_ids: PROMPT, choices: [{ ...choice, ...fields }], usage })
  }
  const logprobs = { tokens: ['a', 'b'], token_logprobs: [-0.5, -0.5] }
  sendJson(response, { choices: [{ ...choice, text: 'ab', logprobs, prompt_token_ids: PROMPT }], usage })
}

async function startServer(t: Test, script: Script = respond) {
  const server = await startScriptedServer(script)
  const client = createVllmClient({ url: server.url })
  t.teardown(async () => {
    await client.close()
    await server.close()
  })
  const getSampled = () => server.requests.filter(({ path }) => path === BY_IDS || path === COMPLETIONS)
  const takePaths = () => {
    const sampledPaths = getSampled().map(({ path }) => path)
    server.requests.length = 0
    return sampledPaths
  }
  return { client, server, getSampled, takePaths }
}

function createRequest(
  body: Record<string, unknown> = {},
  record: GenerationRequest['record'] = { samplingMask: true },
) {
  const tokensRequest = tokenRequest(PROMPT, { model: 'm', max_tokens: 7, top_k: 8, ...body }, true)
  return { ...tokensRequest, record } as GenerationRequest
}

t.test(
  'a request with a recorded mask is sent by ids, without streaming, and returns all data',
  async (t) => {
    const { client, getSampled } = await startServer(t)
    const record = { samplingMask: true, topLogprobs: 2, promptLogprobs: 1, weightVersions: true }
    const harmless = { user: 'me', response_format: { type: 'text' }, stop: [], stream_options: {}, seed: 4 }
    const events = await collect(pull(client, createRequest(harmless, record), noAbort))
    t.equal(getSampled().length, 1)
    t.equal(getSampled()[0]?.path, BY_IDS)
    t.strictSame(getSampled()[0]?.body, {
      model: 'm',
      sampling_params: { top_k: 8, seed: 4, max_tokens: 7, logprobs: 2, prompt_logprobs: 1 },
      stream: false,
      return_token_ids: true,
      token_ids: PROMPT,
    })
    const completion = fold(events)
    t.strictSame(completion.tokenIds, [5, 2])
    t.strictSame(completion.logprobs, [-0.25, -0.25])
    t.equal(findInexactReason(completion), null)
    const sampling = { defaults: { temperature: 1 } }
    t.match(events.at(0), { type: 'start', weightVersion: 'v1', sampling })
    t.match(events.at(-1), { type: 'end', weightVersion: 'v2', finishReason: 'stop' })
    const details = events.flatMap((event) => (event.type === 'delta' ? (event.details ?? []) : []))
    t.match(details, [
      {
        sampling_mask: { counts: [2, 1], ids: [5, 6, 2] },
        top_logprobs: { counts: [2, 2], ids: [5, 6, 2, 3] },
        weight_versions: [{ version: 'v1' }, { version: 'v2', start: 1, end: 2 }],
      },
    ])
  },
)

t.test('a request with a feature that the route lacks uses another route', async (t) => {
  const { client, takePaths } = await startServer(t)
  for (const body of [
    { stop: ['x'] },
    { stop_token_ids: [9] },
    { logprobs: true },
    { response_format: { type: 'json_object' } },
    { structured_outputs: { choice: ['a'] } },
    { guided_regex: 'a' },
    { allowed_token_ids: [5, 2] },
    { top_k: -1 },
  ]) {
    t.equal(fold(await collect(pull(client, createRequest(body), noAbort))).tokenIds.length, 2)
    t.strictSame(takePaths(), [COMPLETIONS], JSON.stringify(body))
  }
  await collect(pull(client, createRequest({}, { topLogprobs: 1 }), noAbort))
  t.strictSame(takePaths(), [COMPLETIONS], 'no mask is recorded')
})

/** The error of vLLM 0.32.0 without `--enable-scale-out`. */
const SCALE_OUT_DISABLED = {
  error: {
    message: 'Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.',
    type: 'PermissionDeniedError',
    code: 403,
  },
}

for (const [status, message] of [
  [404, { detail: 'Not Found' }],
  [403, SCALE_OUT_DISABLED],
] as const) {
  t.test(`a server without the route (${status}) gets the other one, until it was unavailable`, async (t) => {
    let isDown = false
    const { client, takePaths } = await startServer(t, (received, response) => {
      if (isDown) return sendJson(response, {}, 500)
      return received.path === BY_IDS ? sendJson(response, message, status) : respond(received, response)
    })
    for (const expected of [[BY_IDS, COMPLETIONS], [COMPLETIONS]]) {
      t.strictSame(fold(await collect(pull(client, createRequest(), noAbort))).tokenIds, [5, 2])
      t.strictSame(takePaths(), expected)
      t.match(client.warning, /sampling masks are not recorded.*--enable-scale-out/)
      await client.checkHealth(noAbort)
      takePaths()
    }
    isDown = true
    await t.rejects(client.checkHealth(noAbort))
    isDown = false
    takePaths()
    t.equal(client.warning, undefined)
    await collect(pull(client, createRequest(), noAbort))
    t.strictSame(takePaths(), [BY_IDS, COMPLETIONS])
  })
}

t.test('a server that runs without masks gets no further requests without streaming', async (t) => {
  const { client, takePaths } = await startServer(t, (received, response) => {
    if (received.path !== BY_IDS) return respond(received, response)
    const content = [5, 2].map((id) => ({ token_id: id, logprob: -0.25, top_logprobs: [] }))
    const choice = { index: 0, finish_reason: 'stop', token_ids: [5, 2], sampling_mask: null }
    sendJson(response, { choices: [{ ...choice, logprobs: { content } }], usage })
  })
  for (const expected of [BY_IDS, COMPLETIONS]) {
    t.strictSame(fold(await collect(pull(client, createRequest(), noAbort))).tokenIds, [5, 2])
    t.strictSame(takePaths(), [expected])
    await client.checkHealth(noAbort)
    takePaths()
  }
  t.match(client.warning, /--return-sampling-mask/)
})

t.test('a model that the server does not know does not mean that the route is missing', async (t) => {
  const { client, takePaths } = await startServer(t, (received, response) => {
    if (received.body?.model !== 'other') return respond(received, response)
    sendJson(response, { error: { message: 'The model `other` does not exist.', code: 404 } }, 404)
  })
  await t.rejects(collect(pull(client, createRequest({ model: 'other' }), noAbort)), {
    code: 'engine_rejected',
    message: /does not exist/,
  })
  t.strictSame(takePaths(), [BY_IDS, COMPLETIONS])
  await collect(pull(client, createRequest(), noAbort))
  t.strictSame(takePaths(), [BY_IDS])
})

t.test('a request that the server rejects there is rejected: it is not sent twice', async (t) => {
  const { client, takePaths } = await startServer(t, (received, response) => {
    if (received.path !== BY_IDS) return respond(received, response)
    sendJson(response, { error: { message: 'top_k is too large', code: 400 } }, 400)
  })
  await t.rejects(collect(pull(client, createRequest(), noAbort)), { code: 'engine_rejected' })
  t.strictSame(takePaths(), [BY_IDS])
})

t.test('versions that are recorded without a mask are requested in a stream', async (t) => {
  const spans = [
    { version: 'v1', start: 0, end: 1 },
    { version: 'v2', start: 1, end: 2 },
  ]
  /** In vLLM 0.33, according to its sources, the last chunk of a stream has them. */
  const { client, server } = await startServer(t, ({ path, body }, response) => {
    if (path === '/version') return sendJson(response, { version: '0.33.0' })
    const choice = (id: number, last: object) => ({
      index: 0,
      token_ids: [id],
      text: 'a',
      logprobs: { tokens: ['a'], token_logprobs: [-0.5] },
      ...last,
    })
    const send = openEventStream(response)
    const versions = body.return_weight_versions === true && { weight_versions: spans }
    send({ choices: [{ ...choice(5, { finish_reason: null }), prompt_token_ids: PROMPT }] })
    send({ choices: [choice(2, { finish_reason: 'stop', ...versions })], usage })
    send('[DONE]')
    response.end()
  })
  const getCapture = async (record: GenerationRequest['record'], body = {}) => {
    const completion = fold(await collect(pull(client, createRequest(body, record), noAbort)))
    t.equal(server.requests.at(-1)?.path, COMPLETIONS)
    t.equal(findInexactReason(completion), null)
    return completion.details?.buildTokenData(2).weight_versions
  }
  t.same(await getCapture({ weightVersions: true }), spans)
  t.equal(server.requests.at(-1)?.body.return_weight_versions, true)
  t.equal(await getCapture({ topLogprobs: 2 }), undefined)
  t.notOk('return_weight_versions' in server.requests.at(-1)!.body)
  await getCapture({ weightVersions: true }, { use_beam_search: true })
  t.notOk('return_weight_versions' in server.requests.at(-1)!.body, 'vLLM rejects it there')
})

/** Streams as vLLM 0.32.0 does: a chunk for each token, and versions in the last one. */
function streamAsVllm032(between: () => Promise<unknown> = async () => {}): Script {
  return async ({ path, body }, response) => {
    if (path === '/version') return sendJson(response, { version: '0.32.0' })
    if (path === RENDER) return sendJson(response, [{ sampling_params: RENDERED }])
    if (path !== BY_IDS || !body.stream) return respond({ path, body } as never, response)
    const createChunk = (id: number, last: object) => ({
      choices: [
        {
          index: 0,
          finish_reason: null,
          stop_reason: null,
          token_ids: [id],
          routed_experts: null,
          sampling_mask: [[id, id + 1]],
          weight_versions: null,
          logprobs: { content: [{ token_id: id, logprob: -0.25, rank: 1, top_logprobs: [] }] },
          ...last,
        },
      ],
    })
    const send = openEventStream(response)
    send({ ...createChunk(5, {}), prompt_token_ids: PROMPT, usage: null })
    await between()
    const weight_versions = [
      { version: 'v1', start: 0, end: 1 },
      { version: 'v2', start: 1, end: 2 },
    ]
    send(createChunk(2, { finish_reason: 'stop', stop_reason: 'x', weight_versions }))
    send({ choices: [], usage })
    send('[DONE]')
    response.end()
  }
}

const RENDERED = {
  temperature: 0.6,
  top_p: 0.9,
  top_k: 20,
  min_p: 0,
  stop: [],
  stop_token_ids: [],
  max_tokens: 1,
  output_kind: 2,
}

t.test('vLLM 0.32 streams there: the first token arrives while the second is sampled', async (t) => {
  const firstArrived = Promise.withResolvers<void>()
  const { client, getSampled } = await startServer(
    t,
    streamAsVllm032(() => firstArrived.promise),
  )
  const events = []
  for await (const batch of pull(client, createRequest({ stop: ['x'] }), noAbort)) {
    events.push(...batch)
    if (batch.some(({ type }) => type === 'delta')) firstArrived.resolve()
  }
  t.match(getSampled()[0]?.body, { stream: true, stream_options: { include_usage: true } })
  t.strictSame(getSampled()[0]?.body.sampling_params.stop, ['x'])
  const completion = fold(events)
  t.strictSame(completion.tokenIds, [5, 2])
  t.strictSame(completion.logprobs, [-0.25, -0.25])
  t.equal(findInexactReason(completion), null)
  t.match(events.at(-1), { type: 'end', finishReason: 'stop', stopReason: 'x', weightVersion: 'v2' })
  const masks = events.flatMap((event) =>
    event.type === 'delta' ? (event.details?.sampling_mask ?? []) : [],
  )
  t.match(masks, [{ ids: [5, 6] }, { ids: [2, 3] }])
  t.equal(client.warning, undefined)
  const full = { samplingMask: true, promptLogprobs: 1 }
  await collect(pull(client, createRequest({}, full), noAbort))
  t.equal(getSampled().at(-1)?.body.stream, false, 'a stream has no field for data of the prompt')
})

t.test(
  'vLLM 0.32 reports the version of each token only there: requests that record it use the route',
  async (t) => {
    const { client, getSampled } = await startServer(t, streamAsVllm032())
    const record = { weightVersions: true }
    const events = await collect(pull(client, createRequest({ top_k: -1 }, record), noAbort))
    t.equal(getSampled().at(-1)?.path, BY_IDS)
    const captured = events.flatMap((event) =>
      event.type === 'delta' ? (event.details?.weight_versions ?? []) : [],
    )
    t.match(captured, [
      { version: 'v1', start: 0, end: 1 },
      { version: 'v2', start: 1, end: 2 },
    ])
    await collect(pull(client, createRequest({ response_format: { type: 'json_object' } }, record), noAbort))
    t.equal(getSampled().at(-1)?.path, COMPLETIONS, 'this is not supported there')
    const closed = await startServer(t, (received, response) =>
      received.path === BY_IDS
        ? sendJson(response, SCALE_OUT_DISABLED, 403)
        : streamAsVllm032()({ ...received, body: { ...received.body, stream: false } }, response),
    )
    await collect(pull(closed.client, createRequest({}, record), noAbort))
    t.strictSame(closed.takePaths(), [BY_IDS, COMPLETIONS])
    t.match(closed.client.warning, /the weight version of each token is not recorded.*--enable-scale-out/)
    await collect(pull(closed.client, createRequest({}, record), noAbort))
    t.strictSame(closed.takePaths(), [COMPLETIONS])
  },
)

t.test("unset parameters have the engine's defaults there, as on its other routes", async (t) => {
  const { client, server, getSampled } = await startServer(t, streamAsVllm032())
  await collect(pull(client, createRequest({ top_p: 1, top_k: 5 }), noAbort))
  await collect(pull(client, createRequest({ temperature: 0, top_k: 5 }), noAbort))
  t.equal(server.requests.filter(({ path }) => path === RENDER).length, 1, 'requested once')
  const params = getSampled().map(({ body }) => body.sampling_params)
  t.strictSame(params, [
    { temperature: 0.6, top_p: 1, top_k: 5, min_p: 0, max_tokens: 7, logprobs: 0 },
    { temperature: 0, top_p: 0.9, top_k: 5, min_p: 0, max_tokens: 7, logprobs: 0 },
  ])
})

t.test(
  "a request for an unknown model does not prevent others from having the engine's defaults",
  async (t) => {
    const { client, server, getSampled } = await startServer(t, (received, response) => {
      if (received.body === undefined || [undefined, 'm'].includes(received.body.model))
        return streamAsVllm032()(received, response)
      const message = `The model \`${received.body.model}\` does not exist. Valid aliases: m.`
      sendJson(response, { error: { message, type: 'NotFoundError', param: 'model', code: 404 } }, 404)
    })
    await t.rejects(collect(pull(client, createRequest({ model: 'other' }), noAbort)), {
      code: 'engine_rejected',
    })
    await collect(pull(client, createRequest(), noAbort))
    t.match(getSampled().at(-1)?.body.sampling_params, { temperature: 0.6, top_p: 0.9 })
    server.requests.length = 0
    await client.checkHealth(noAbort)
    await collect(pull(client, createRequest(), noAbort))
    t.notOk(
      server.requests.find(({ path }) => path === RENDER),
      'the defaults are known',
    )
  },
)

t.test(
  'the defaults are queried with a model that the server lists, for routers that require one',
  async (t) => {
    const { client, server } = await startServer(t, streamAsVllm032())
    await client.checkHealth(noAbort)
    await collect(pull(client, createRequest({ model: 'an-adapter' }), noAbort))
    t.match(server.requests.find(({ path }) => path === RENDER)?.body, { model: 'm' })
  },
)

for (const [title, fail] of [
  ['HTTP 503', (response) => void sendJson(response, { error: { message: 'busy', code: 503 } }, 503)],
  ['HTTP 429', (response) => void sendJson(response, { error: { message: 'busy', code: 429 } }, 429)],
  ['a lost connection', (response) => void response.destroy()],
] as [string, (response: ServerResponse) => void][]) {
  t.test(`after ${title} in response to the query of the defaults, no request lacks them`, async (t) => {
    let failures = 1
    const { client, getSampled } = await startServer(t, (received, response) => {
      if (received.path === RENDER && failures-- > 0) return fail(response)
      return streamAsVllm032()(received, response)
    })
    await t.rejects(collect(pull(client, createRequest(), noAbort)))
    t.equal(getSampled().length, 0, 'it would be sampled from another distribution')
    await collect(pull(client, createRequest(), noAbort))
    t.match(getSampled().at(-1)?.body.sampling_params, { temperature: 0.6, top_p: 0.9 })
  })
}

t.test('a server without a route for its defaults is queried once', async (t) => {
  const { client, server } = await startServer(t)
  for (let request = 0; request < 2; request += 1) await collect(pull(client, createRequest(), noAbort))
  t.equal(server.requests.filter(({ path }) => path === RENDER).length, 1)
})
