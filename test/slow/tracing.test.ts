/** Spans of requests, as an OTLP receiver gets them. */
import t, { type Test } from 'tap'
import type { Logger } from '../../src/base/logger.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { getTraceId } from '../../src/proxy/tracing/trace-ids.ts'
import { type FakeVllm, startFakeVllm } from '../helpers/fake-vllm.ts'
import { createListingLogger } from '../helpers/listing-logger.ts'
import { type OtlpReceiver, type ReceivedSpan, startOtlpReceiver } from '../helpers/otlp-receiver.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { joinWorker, untilWorkers } from '../helpers/relay-rig.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const PARENT = '00f067aa0ba902b7'
/** The headers of an agent that is traced itself. */
const TRACED = { traceparent: `00-${TRACE}-${PARENT}-01`, tracestate: 'rojo=1', baggage: 'user=secret-user' }
const SECRET = 'the launch code is 7421'

/** Sets the environment of this process while a proxy starts. */
async function tracedProxy(
  t: Test,
  endpoint: string,
  config: Partial<ServeConfig>,
  { env = {}, logger = silentLogger }: { env?: Record<string, string>; logger?: Logger } = {},
): Promise<TestProxy> {
  const all = { OTEL_EXPORTER_OTLP_ENDPOINT: endpoint, ...env }
  Object.assign(process.env, all)
  try {
    return await startProxy(t, config, logger)
  } finally {
    for (const name of Object.keys(all)) delete process.env[name]
  }
}

async function startTestEngine(t: Test): Promise<FakeVllm> {
  const engine = await startFakeVllm()
  t.teardown(() => engine.close())
  return engine
}

function local(engine: FakeVllm): Partial<ServeConfig> {
  return { engineUrls: [engine.url], engineKind: 'vllm' }
}

async function startWorker(t: Test, proxy: TestProxy, engine: FakeVllm): Promise<void> {
  joinWorker(t, { ...local(engine), proxyUrls: [proxy.url], workerId: 'w1' })
  await untilWorkers(proxy, 'w1')
}

interface RequestOptions {
  session?: string
  headers?: Record<string, string>
  body?: object
}

async function sendRequest(
  proxy: TestProxy,
  { session = 's1', headers = {}, body = {} }: RequestOptions = {},
) {
  const response = await fetch(`${proxy.baseUrl(session)}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer sk-agents-own', ...headers },
    body: JSON.stringify({
      model: 'fake',
      messages: [{ role: 'user', content: SECRET }],
      temperature: 0.5,
      ...body,
    }),
  })
  return { status: response.status, text: await response.text() }
}

/** Stops the proxy, after which all spans are exported. */
async function getSpans(proxy: TestProxy, receiver: OtlpReceiver): Promise<ReceivedSpan[]> {
  await proxy.server.stop(0)
  return receiver.spans
}

/** Returns the headers of the agent's first request: requests that measure logprobs have a limit of one token. */
const getFirstHeaders = ({ requests }: FakeVllm) =>
  requests.find(({ path, body }) => path.endsWith('/completions') && body.max_tokens !== 1)!.headers
const findNamed = (spans: readonly ReceivedSpan[], name: string) => spans.filter((span) => span.name === name)
const ROUTE = 'POST /:sessionId/v1/chat/completions'

for (const mode of ['local', 'relay'] as const) {
  for (const stream of [false, true]) {
    const how = `${stream ? 'streamed' : 'complete'}, in ${mode} mode`
    t.test(`a request is a span of its agent's trace, with its steps below it: ${how}`, async (t) => {
      const receiver = await startOtlpReceiver(t)
      const engine = await startTestEngine(t)
      const proxy = await tracedProxy(t, receiver.url, mode === 'local' ? local(engine) : { mode })
      if (mode === 'relay') await startWorker(t, proxy, engine)
      t.equal((await sendRequest(proxy, { headers: TRACED, body: { stream } })).status, 200)
      const { turns } = await proxy.get('/sessions/s1')
      const spans = await getSpans(proxy, receiver)

      t.strictSame(spans.map(({ name }) => name).sort(), [ROUTE, 'chat fake', 'commit', 'queue'])
      const [requestSpan] = findNamed(spans, ROUTE)
      t.match(requestSpan, { kind: 'SERVER', traceId: TRACE, parentSpanId: PARENT, isError: false })
      t.match(requestSpan!.attributes, {
        'http.request.method': 'POST',
        'http.route': '/:sessionId/v1/chat/completions',
        'url.path': '/s1/v1/chat/completions',
        'http.response.status_code': 200,
        'session.id': 's1',
        'llm_proxy.dialect': 'chat',
        'llm_proxy.turn.id': turns[0].turn_id,
        'llm_proxy.turn.index': 0,
        'llm_proxy.turn.status': 'completed',
        'llm_proxy.exact': true,
        'llm_proxy.prompt.reason': 'first',
      })
      t.notHas(requestSpan!.attributes, 'error.type')
      for (const span of spans.filter((each) => each !== requestSpan)) {
        t.match(span, { traceId: TRACE, parentSpanId: requestSpan!.spanId, isError: false }, span.name)
        t.ok(
          requestSpan!.startMs <= span.startMs && span.startMs <= span.endMs,
          `${span.name} has its duration`,
        )
        t.ok(span.endMs <= requestSpan!.endMs, `${span.name} ends before the request's span`)
      }

      const [engineSpan] = findNamed(spans, 'chat fake')
      t.equal(engineSpan!.kind, 'CLIENT')
      t.match(engineSpan!.attributes, {
        'gen_ai.operation.name': 'chat',
        'gen_ai.provider.name': mode === 'local' ? 'vllm' : 'worker',
        'gen_ai.conversation.id': 's1',
        'gen_ai.request.model': 'fake',
        'gen_ai.request.temperature': 0.5,
        'gen_ai.request.stream': stream,
        'gen_ai.response.id': turns[0].turn_id,
        'gen_ai.response.model': 'fake',
        'gen_ai.response.finish_reasons': ['stop'],
        'gen_ai.usage.input_tokens': turns[0].prompt_token_ids.length,
        'gen_ai.usage.output_tokens': turns[0].completion_token_ids.length,
        'llm_proxy.turn.index': 0,
        'llm_proxy.engine': mode === 'local' ? engine.url : `w1/${engine.url}`,
      })
      if (mode === 'local')
        t.match(engineSpan!.attributes, { 'server.address': '127.0.0.1', 'server.port': engine.port })

      const headers = getFirstHeaders(engine)
      t.equal(headers.traceparent, `00-${TRACE}-${engineSpan!.spanId}-01`, 'the engine receives its span')
      t.notHas(headers, 'baggage')
      t.notHas(headers, 'tracestate')
      t.match(requestSpan!.resource, { 'service.name': 'llm-proxy' })
      for (const content of [SECRET, 'agent!', 'secret-user', 'sk-agents-own'])
        t.notOk(receiver.text().includes(content), `nothing of ${content}`)
    })
  }
}

const CONTENT = { OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT: 'span_only' }
const getContent = (span: ReceivedSpan | undefined, name: string) =>
  JSON.parse(String(span?.attributes[`gen_ai.${name}`]))

t.test('spans have content on request, by the conventions, and no key', async (t) => {
  const receiver = await startOtlpReceiver(t)
  const engine = await startTestEngine(t)
  const proxy = await tracedProxy(t, receiver.url, local(engine), { env: CONTENT })
  const call = { id: 'c1', type: 'function', function: { name: 'run', arguments: '{"a":1}' } }
  const tools = [{ type: 'function', function: { name: 'run', parameters: { type: 'object' } } }]
  const messages = [
    { role: 'system', content: 'Be brief.' },
    {
      role: 'user',
      content: [
        { type: 'text', text: SECRET },
        { type: 'image_url', image_url: { url: 'data:image/png;base64,QUJD' } },
      ],
    },
    { role: 'assistant', content: null, reasoning_content: 'Hm.', tool_calls: [call] },
    { role: 'tool', tool_call_id: 'c1', content: 'done' },
  ]
  await sendRequest(proxy, { body: { messages, tools } })
  const { turns } = await proxy.get('/sessions/s1')
  const spans = await getSpans(proxy, receiver)
  const [engineSpan] = findNamed(spans, 'chat fake')
  t.strictSame(getContent(engineSpan, 'input.messages'), [
    { role: 'system', parts: [{ type: 'text', content: 'Be brief.' }] },
    {
      role: 'user',
      parts: [
        { type: 'text', content: SECRET },
        { type: 'text', content: '(an image)' },
      ],
    },
    {
      role: 'assistant',
      parts: [
        { type: 'reasoning', content: 'Hm.' },
        { type: 'tool_call', id: 'c1', name: 'run', arguments: { a: 1 } },
      ],
    },
    { role: 'tool', parts: [{ type: 'tool_call_response', id: 'c1', response: 'done' }] },
  ])
  t.strictSame(getContent(engineSpan, 'output.messages'), [
    {
      role: 'assistant',
      parts: [{ type: 'text', content: turns[0].completion_text }],
      finish_reason: 'stop',
    },
  ])
  t.strictSame(getContent(engineSpan, 'tool.definitions'), [{ type: 'function', ...tools[0]!.function }])
  for (const span of spans.filter((each) => each !== engineSpan))
    t.notHas(span.attributes, 'gen_ai.input.messages')
  t.notOk(receiver.text().includes('sk-agents-own'))
})

t.test('for a long conversation spans have the latest messages, up to their limit', async (t) => {
  const receiver = await startOtlpReceiver(t)
  const proxy = await tracedProxy(t, receiver.url, local(await startTestEngine(t)), { env: CONTENT })
  const messages = [
    { role: 'user', content: 'first' },
    { role: 'assistant', content: 'x'.repeat(40_000) },
    { role: 'user', content: 'last' },
  ]
  await sendRequest(proxy, { body: { messages, max_tokens: 4 } })
  await sendRequest(proxy, {
    session: 's2',
    body: { messages: [{ role: 'user', content: 'y'.repeat(60_000) }], max_tokens: 4 },
  })
  const spans = (await getSpans(proxy, receiver)).filter(({ name }) => name.startsWith('chat '))
  const [cut, full] = spans.map((span) => getContent(span, 'input.messages'))
  t.match(cut.at(-1), { role: 'user', parts: [{ content: 'last' }] })
  t.equal(cut.length, 2)
  const getText = ([message]: typeof cut): string => message.parts[0].content
  t.strictSame(
    getText(cut).replace(/x+/, ({ length }) => String(length)),
    '32700… (7300 more characters)',
  )
  t.equal(spans[0]!.attributes['llm_proxy.input.left_out'], 1)
  t.strictSame(
    getText(full).replace(/y+/, ({ length }) => String(length)),
    '32768… (27232 more characters)',
  )
})

t.test('a setting for events only, or for none, leaves spans without content', async (t) => {
  for (const value of ['event_only', 'no_content', 'false', '']) {
    const receiver = await startOtlpReceiver(t)
    const env = { OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT: value }
    const proxy = await tracedProxy(t, receiver.url, {}, { env })
    await sendRequest(proxy, { body: { max_tokens: 4 } })
    await getSpans(proxy, receiver)
    t.notOk(receiver.text().includes(SECRET), value)
  }
})

t.test('requests without a trace are in one trace, which is derived from the session', async (t) => {
  const receiver = await startOtlpReceiver(t)
  const proxy = await tracedProxy(t, receiver.url, { tokenizer: 'embedded' })
  await proxy.post('/admin/weight_version', { weight_version: 'step-7' })
  const first = { role: 'user', content: 'What is 2 + 2?' }
  const { text } = await sendRequest(proxy, { session: 'task~1', body: { messages: [first], max_tokens: 4 } })
  const { message } = JSON.parse(text).choices[0]
  const messages = [first, message, { role: 'user', content: 'And 3 + 3?' }]
  // An invalid trace counts as none.
  const headers = { traceparent: '00-not-a-trace-01', 'x-llm-proxy-line': 'main' }
  await sendRequest(proxy, { session: 'task~1', headers, body: { messages, max_tokens: 4 } })
  await sendRequest(proxy, { session: 'task~2', body: { messages: [first], max_tokens: 4 } })
  const requestSpans = findNamed(await getSpans(proxy, receiver), ROUTE)
  t.strictSame(
    requestSpans.map(({ traceId, parentSpanId, attributes }) => [
      traceId,
      parentSpanId,
      attributes['session.id'],
      attributes['llm_proxy.turn.index'],
    ]),
    [
      [getTraceId('task~1'), '', 'task~1', 0],
      [getTraceId('task~1'), '', 'task~1', 1],
      [getTraceId('task~2'), '', 'task~2', 0],
    ],
  )
  t.match(requestSpans[1]!.attributes, {
    'llm_proxy.prompt.reason': 'extended',
    'llm_proxy.weight_version': 'step-7',
  })
  t.ok(Number(requestSpans[1]!.attributes['llm_proxy.prompt.reused_tokens']) > 0)
  t.not(getTraceId('task~1'), getTraceId('task~2'))
})

t.test('a failed request has its error, and each engine that was tried has a span', async (t) => {
  const receiver = await startOtlpReceiver(t)
  const engine = await startFakeVllm()
  const proxy = await tracedProxy(t, receiver.url, { ...local(engine), queueWaitMs: 100 })
  t.equal((await sendRequest(proxy, { session: 's0' })).status, 200)
  engine.rejectNext(1)
  t.equal((await sendRequest(proxy)).status, 400)
  t.equal((await sendRequest(proxy, { session: 's2', body: { messages: 'none' } })).status, 400)
  await engine.close()
  t.ok((await sendRequest(proxy, { session: 's3', headers: TRACED })).status >= 500)
  const spans = await getSpans(proxy, receiver)
  const of = (session: string) => spans.filter(({ attributes }) => attributes['session.id'] === session)

  const [rejected] = findNamed(of('s1'), ROUTE)
  t.match(rejected!.attributes, {
    'error.type': 'engine_rejected',
    'http.response.status_code': 400,
    'llm_proxy.turn.status': 'failed',
  })
  t.match(findNamed(of('s1'), 'chat fake'), [
    { isError: true, attributes: { 'error.type': 'engine_rejected' } },
  ])

  t.match(of('s2'), [{ name: ROUTE, isError: false, attributes: { 'error.type': 'invalid_request' } }])
  t.equal(of('s2').length, 1, 'no engine received a request')

  const [lost] = findNamed(of('s3'), ROUTE)
  t.match(lost, { isError: true, traceId: TRACE, attributes: { 'llm_proxy.turn.status': 'failed' } })
  t.ok(lost!.attributes['error.type'])
  const attempts = findNamed(of('s3'), 'chat fake')
  t.ok(attempts.length > 0 && attempts.every(({ isError }) => isError))
})

t.test('an agent that disconnects ends its span, and the cut turn is marked', async (t) => {
  const receiver = await startOtlpReceiver(t)
  const engine = await startTestEngine(t)
  const proxy = await tracedProxy(t, receiver.url, { ...local(engine), retryGraceMs: 0 })
  const controller = new AbortController()
  const response = await fetch(`${proxy.baseUrl('s1')}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ messages: [{ role: 'user', content: 'go on' }], stream: true, ignore_eos: true }),
    signal: controller.signal,
  })
  await response.body!.getReader().read()
  controller.abort()
  await until(async () => (await proxy.get('/sessions/s1')).turns[0]?.status === 'aborted')
  const spans = await getSpans(proxy, receiver)
  t.match(findNamed(spans, ROUTE), [
    { attributes: { 'error.type': 'agent_gone', 'llm_proxy.turn.status': 'aborted' }, isError: false },
  ])
  t.match(findNamed(spans, 'chat'), [{ attributes: { 'error.type': 'agent_gone' } }])
})

t.test('the standard variables are honoured: service, headers, sampler', async (t) => {
  const receiver = await startOtlpReceiver(t)
  const engine = await startTestEngine(t)
  const env = {
    OTEL_SERVICE_NAME: 'rollouts',
    OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment.name=lab',
    OTEL_EXPORTER_OTLP_HEADERS: 'x-tenant=t1',
    OTEL_TRACES_SAMPLER: 'parentbased_always_off',
  }
  const proxy = await tracedProxy(t, receiver.url, local(engine), { env })
  await sendRequest(proxy, { session: 'unsampled' })
  await sendRequest(proxy, { session: 'sampled', headers: TRACED })
  const spans = await getSpans(proxy, receiver)
  t.strictSame(
    findNamed(spans, ROUTE).map(({ attributes }) => attributes['session.id']),
    ['sampled'],
  )
  t.match(spans[0]!.resource, { 'service.name': 'rollouts', 'deployment.environment.name': 'lab' })
  t.match(receiver.headers, [{ 'x-tenant': 't1' }])
  t.match(
    String(getFirstHeaders(engine).traceparent),
    new RegExp(`^00-${getTraceId('unsampled')}-[0-9a-f]{16}-00$`),
  )
})

t.test('without tracing no engine receives a trace', async (t) => {
  const engine = await startTestEngine(t)
  const proxy = await startProxy(t, local(engine))
  t.equal((await sendRequest(proxy, { headers: TRACED })).status, 200)
  const headers = getFirstHeaders(engine)
  for (const name of ['traceparent', 'tracestate', 'baggage']) t.notHas(headers, name)
})

t.test('an unreachable receiver costs requests nothing, and is reported once', async (t) => {
  const { logger, lines } = createListingLogger()
  const env = { OTEL_BSP_SCHEDULE_DELAY: '1', OTEL_EXPORTER_OTLP_TIMEOUT: '500' }
  // No server listens there: the port was free, and is again.
  const gone = await startFakeVllm()
  await gone.close()
  const proxy = await tracedProxy(t, gone.url, {}, { env, logger })
  const failedExports = () => lines.filter(({ event }) => event === 'span_export_failed').length
  t.equal((await sendRequest(proxy, { body: { max_tokens: 2 } })).status, 200)
  await until(() => failedExports() > 0)
  for (const session of ['s2', 's3'])
    t.equal((await sendRequest(proxy, { session, body: { max_tokens: 2 } })).status, 200)
  t.match((await proxy.get('/sessions')).sessions.length, 3)
  await proxy.server.stop(0)
  t.equal(failedExports(), 1)
})

t.test(
  'a receiver that accepts spans without responding does not keep the proxy from stopping',
  async (t) => {
    const receiver = await startOtlpReceiver(t, false)
    const proxy = await tracedProxy(t, receiver.url, {}, { env: { OTEL_EXPORTER_OTLP_TIMEOUT: '120000' } })
    t.equal((await sendRequest(proxy, { body: { max_tokens: 2 } })).status, 200)
    await proxy.server.stop(0)
    t.equal(receiver.waiting(), 1, 'it has the spans, and has not responded yet')
  },
)
