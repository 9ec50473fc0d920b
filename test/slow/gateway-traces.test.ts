/** Recorded requests as traces for rLLM's gateway client. */
import fc from 'fast-check'
import OpenAI from 'openai'
import t from 'tap'
import { ProxyError } from '../../src/base/errors.ts'
import { Trace } from '../../src/proxy/http/trainer/traces/schemas.ts'
import type { OpenTurn, TurnOutcome } from '../../src/proxy/store/port/turn-store.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import type { OutcomeFields } from '../helpers/prompt-ids.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { startRelayProxy, startWorkerClient, untilWorkers } from '../helpers/relay-rig.ts'
import { findSchemaErrors, recordTurn, startSessionsApi } from '../helpers/sessions-api.ts'
import { limitRuns } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'

// biome-ignore lint/suspicious/noExplicitAny: tests read responses of any shape
type Json = any

const createAgent = (proxy: TestProxy, session: string) =>
  new OpenAI({ baseURL: `${proxy.url}/sessions/${session}/v1`, apiKey: 'none', maxRetries: 0 })

/** Sends two requests, the second of which is streamed and extends the first, and one in another dialect. */
async function runConversation(proxy: TestProxy, session: string): Promise<void> {
  const agent = createAgent(proxy, session)
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'What is the sea?' }]
  const full = await agent.chat.completions.create({ model: 'm', messages, max_tokens: 8 })
  messages.push(full.choices[0]!.message, { role: 'user', content: 'And a river?' })
  const stream = await agent.chat.completions.create({ model: 'm', messages, max_tokens: 8, stream: true })
  for await (const _ of stream);
  await agent.responses.create({ model: 'm', input: 'Hello', max_output_tokens: 8 })
}

for (const mode of ['local', 'relay'] as const) {
  t.test(`in ${mode} mode the traces of a session are its turns, in their order`, async (t) => {
    const proxy = mode === 'local' ? await startProxy(t) : await startRelayProxy(t)
    if (mode === 'relay') {
      const { createLocalBackend } = await import('../../src/proxy/engines/dispatch/local-backend.ts')
      const { openEngines } = await import('../../src/open-engines.ts')
      const backend = createLocalBackend({ clients: openEngines({ engineUrls: [], engineKind: 'auto' }) })
      t.teardown(() => backend.close())
      startWorkerClient(t, proxy.url, 'w', backend)
      await untilWorkers(proxy, 'w')
    }
    await proxy.post('/admin/weight_version', { weight_version: 17 })
    await runConversation(proxy, 'task:0')
    t.strictSame(await proxy.post('/admin/flush'), { status: 'flushed' })
    const { turns, trace_count: count } = await proxy.get('/sessions/task:0')
    const traces = await proxy.get('/sessions/task:0/traces')
    t.equal(count, 3)
    t.equal(traces.length, 3)
    for (const [index, trace] of traces.entries()) {
      const turn = turns[index]
      t.strictSame(findSchemaErrors(Trace, trace), [])
      t.match(trace, {
        session_id: 'task:0',
        turn_id: turn.turn_id,
        model: turn.model,
        messages: turn.request_messages,
        prompt_token_ids: turn.prompt_token_ids,
        completion_token_ids: turn.completion_token_ids,
        logprobs: turn.completion_logprobs,
        response_message: { role: 'assistant', content: turn.completion_text },
        finish_reason: turn.finish_reason,
        weight_version: 17,
        latency_ms: turn.latency_ms,
        timestamp: turn.ended_at,
        token_counts: {
          prompt: turn.prompt_token_ids.length,
          completion: turn.completion_token_ids.length,
        },
        metadata: { index, dialect: turn.dialect, exact: true, weight_version_start: '17' },
      })
      t.ok(trace.prompt_token_ids.length > 0 && trace.logprobs.length === trace.completion_token_ids.length)
      t.strictSame(await proxy.get(`/traces/${trace.trace_id}`), trace)
    }
  })
}

t.test('requests that failed upstream, or that their agent cancelled, are not traces', async (t) => {
  const engine = await startFakeVllm()
  const proxy = await startProxy(t, {
    engineUrls: [engine.url],
    queueWaitMs: 50,
    healthIntervalMs: 100,
  })
  const agent = createAgent(proxy, 's')
  const body = { model: 'fake', messages: [{ role: 'user' as const, content: 'x' }] }
  await agent.chat.completions.create(body)
  await engine.close()
  await t.rejects(agent.chat.completions.create(body), /no engine|connect/)
  const restarted = await startFakeVllm({ port: Number(new URL(engine.url).port) })
  t.teardown(restarted.close)
  await until(async () => (await proxy.get('/health/workers')).healthy === 1)
  const endless = { ...body, stream: true, ignore_eos: true } as OpenAI.ChatCompletionCreateParamsStreaming
  for await (const _ of await agent.chat.completions.create(endless)) break
  await agent.chat.completions.create(body)
  const isOpen = (turn: Json) => turn.status === 'open'
  await until(async () => !(await proxy.get('/sessions/s')).turns.some(isOpen))
  const { turns, trace_count: count } = await proxy.get('/sessions/s')
  t.same(
    turns.map((turn: Json) => turn.status),
    ['completed', 'failed', 'aborted', 'completed'],
  )
  t.equal(count, 2)
  t.match(await proxy.get('/sessions/s/traces'), [{ metadata: { index: 0 } }, { metadata: { index: 3 } }])
  t.match(await proxy.get(`/traces/s:${turns[1].turn_id}`), { code: 'trace_not_found' })
})

t.test(`the traces of any session are its completed turns`, async (t) => {
  const { store, call } = await startSessionsApi(t)
  const number = fc.nat({ max: 200_000 })
  const turn = fc.record({
    status: fc.constantFrom<TurnOutcome['status']>('completed', 'completed', 'failed', 'aborted'),
    ids: fc.array(number, { minLength: 1, maxLength: 6 }),
    completion: fc.array(fc.tuple(number, fc.double({ max: 0, noNaN: true })), { maxLength: 6 }),
    exact: fc.boolean(),
    reasoning: fc.option(fc.string()),
    text: fc.option(fc.string()),
    endedAtMs: fc.integer({ min: 1_000, max: 9_000 }),
  })
  let session = 0
  await fc.assert(
    fc.asyncProperty(fc.array(turn, { maxLength: 8 }), async (turns) => {
      session += 1
      const sessionId = `s.${session}`
      await call('POST', `/sessions/${sessionId}`, {})
      for (const [index, fields] of turns.entries()) {
        await recordTurn(store, sessionId, index, {
          status: fields.status,
          promptTokenIds: Int32Array.from(fields.ids),
          completionTokenIds: Int32Array.from(fields.completion, ([id]) => id),
          completionLogprobs: Float64Array.from(fields.completion, ([, logprob]) => logprob),
          exact: fields.exact,
          reasoning: fields.reasoning,
          completionText: fields.text,
          endedAtMs: fields.endedAtMs,
        })
      }
      const { body: traces } = await call('GET', `/sessions/${sessionId}/traces`)
      const completed = turns.flatMap((fields, index) =>
        fields.status === 'completed' ? [{ index, ...fields }] : [],
      )
      t.strictSame(
        traces.map((trace: Json) => [
          trace.metadata.index,
          trace.prompt_token_ids,
          trace.completion_token_ids,
          trace.logprobs,
          trace.response_message.content,
        ]),
        completed.map(({ index, exact, ids, completion, text }) => [
          index,
          exact ? ids : [],
          exact ? completion.map(([id]) => id) : [],
          exact ? completion.map(([, logprob]) => Math.max(logprob, -Number.MAX_VALUE) + 0) : [],
          text ?? '',
        ]),
      )
      t.strictSame(
        traces.flatMap((trace: Json) => findSchemaErrors(Trace, trace)),
        [],
      )
    }),
    { numRuns: limitRuns(40) },
  )
})

async function startApiWith(
  t: Parameters<typeof startSessionsApi>[0],
  turns: (Partial<OpenTurn> & OutcomeFields)[],
) {
  const api = await startSessionsApi(t)
  await api.call('POST', '/sessions/s', {})
  for (const [index, fields] of turns.entries()) await recordTurn(api.store, 's', index, fields)
  return api
}

t.test('a weight version that is not an integer is null, and is in the metadata', async (t) => {
  const versions = ['17', '-1', 'step-17', '1.5', '', '9007199254740993', null]
  const { call } = await startApiWith(
    t,
    versions.map((weightVersionStart) => ({ weightVersionStart, weightVersionEnd: 'end' })),
  )
  const { body } = await call('GET', '/sessions/s/traces')
  t.strictSame(
    body.map((trace: Json) => trace.weight_version),
    [17, -1, null, null, null, null, null],
  )
  t.match(body[2].metadata, { weight_version_start: 'step-17', weight_version_end: 'end' })
})

t.test('a turn without exact ids has no ids in its trace, and reports the reason', async (t) => {
  const { call } = await startApiWith(t, [{ exact: false, inexactReason: 'no ids' }])
  t.match((await call('GET', '/sessions/s/traces')).body, [
    {
      prompt_token_ids: { length: 0 },
      completion_token_ids: { length: 0 },
      logprobs: { length: 0 },
      metadata: { exact: false, inexact_reason: 'no ids' },
    },
  ])
})

t.test('a turn that was superseded by a retry is not a trace', async (t) => {
  const second = { promptTokenIds: Int32Array.of(1, 2) }
  const { call } = await startApiWith(t, [second, { ...second, retryCount: 1 }])
  t.match((await call('GET', '/sessions/s/traces')).body, [{ metadata: { index: 1 } }])
})

t.test(
  'samples of one prompt stay in the traces and the rows when one of their requests is retried',
  async (t) => {
    const { url, backend, call } = await startSessionsApi(t)
    let requests = 0
    const script = backend.script
    backend.script = (request, signal) => {
      requests += 1
      if (requests === 4) throw new ProxyError('engine_unreachable', 'busy', { retryAfterS: 0.001 })
      return script(request, signal)
    }
    const agent = new OpenAI({ baseURL: `${url}/s/v1`, apiKey: 'none' })
    for (let sample = 0; sample < 4; sample += 1) {
      await agent.chat.completions.create({ model: 'm', messages: [{ role: 'user', content: 'Vote!' }] })
    }
    const { turns } = (await call('GET', '/sessions/s')).body
    t.match(turns[4], { status: 'completed', retry_count: 1 })
    const traces = (await call('GET', '/sessions/s/traces')).body
    t.same(
      traces.map((trace: Json) => trace.metadata.index),
      [0, 1, 2, 4],
    )
    const { trajectories, excluded_turns: excluded } = (await call('GET', '/sessions/s/trajectories')).body
    t.equal(trajectories.length, 4)
    t.match(excluded, { failed: 1, superseded: 0 })
  },
)

t.test('tool calls and reasoning are in the response message, reasoning under both its names', async (t) => {
  const toolCalls = [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }]
  const { call } = await startApiWith(t, [
    { toolCalls: JSON.stringify(toolCalls), completionText: null, reasoning: 'hm' },
    {},
    { completionText: null },
  ])
  const { body } = await call('GET', '/sessions/s/traces')
  t.strictSame(body[0].response_message, {
    role: 'assistant',
    content: null,
    reasoning_content: 'hm',
    reasoning: 'hm',
    tool_calls: toolCalls,
  })
  t.strictSame(body[1].response_message, { role: 'assistant', content: 'hello' })
  t.strictSame(body[2].response_message, { role: 'assistant', content: '' }, 'as the agent received it')
})

t.test('since selects the requests from a time on, and limit the first of them', async (t) => {
  const { call } = await startApiWith(
    t,
    [1_000, 2_500, 2_000, 3_000].map((endedAtMs) => ({ endedAtMs })),
  )
  const indexes = async (query: string) =>
    (await call('GET', `/sessions/s/traces?${query}`)).body.map((trace: Json) => trace.metadata.index)
  t.same(await indexes('since=2'), [1, 2, 3])
  t.same(await indexes('since=2&limit=2'), [1, 2])
  t.same(await indexes('limit=0'), [])
  t.same(await indexes('format=default'), [0, 1, 2, 3])
})

t.test('POST /traces/query reads several sessions, in the order of their names', async (t) => {
  const { call, store } = await startApiWith(t, [{}, {}])
  await call('POST', '/sessions/r', {})
  await recordTurn(store, 'r', 0)
  const query = async (body: object) =>
    (await call('POST', '/traces/query', body)).body.map((trace: Json) => [
      trace.session_id,
      trace.metadata.index,
    ])
  t.same(await query({ session_ids: ['r', 'nowhere', 's'] }), [
    ['r', 0],
    ['s', 0],
    ['s', 1],
  ])
  t.same(await query({ session_ids: ['s', 'r'], limit: 1, since: 1 }), [
    ['s', 0],
    ['r', 0],
  ])
  t.same(await query({ session_ids: [] }), [])
})

t.test('POST /sessions/batch_delete removes sessions with their traces', async (t) => {
  const { call } = await startApiWith(t, [{}])
  await call('POST', '/sessions/r', {})
  t.match(await call('POST', '/sessions/batch_delete', { session_ids: ['s', 'nowhere', 's', 'r'] }), {
    status: 200,
    body: { deleted: 2 },
  })
  for (const session of ['s', 'r']) t.equal((await call('GET', `/sessions/${session}`)).status, 404)
  t.equal((await call('GET', '/traces/s:s-0')).status, 404)
})

t.test('an unknown session, or one without requests, has no traces', async (t) => {
  const { call } = await startApiWith(t, [])
  await call('POST', '/sessions/unused', {})
  for (const session of ['nowhere', 'unused']) {
    t.same(await call('GET', `/sessions/${session}/traces`), { status: 200, body: [] })
  }
})

t.test('unknown traces and invalid requests are rejected with their code', async (t) => {
  const { call } = await startApiWith(t, [{}])
  for (const [method, path, body, status, code] of [
    ['GET', '/traces/s:none', undefined, 404, 'trace_not_found'],
    ['GET', '/traces/nowhere:s-0', undefined, 404, 'trace_not_found'],
    ['GET', '/traces/s-0', undefined, 404, 'trace_not_found'],
    ['GET', '/sessions/s/traces?limit=-1', undefined, 400, 'invalid_request'],
    ['GET', '/sessions/s/traces?sicne=1', undefined, 400, 'invalid_request'],
    ['POST', '/traces/query', {}, 400, 'invalid_request'],
    ['POST', '/traces/query', { session_ids: 's' }, 400, 'invalid_request'],
    ['POST', '/sessions/batch_delete', { session_ids: [1] }, 400, 'invalid_request'],
    ['POST', '/admin/flush', { now: true }, 400, 'invalid_request'],
  ] as const) {
    t.match(await call(method, path, body), { status, body: { code } }, `${method} ${path}`)
  }
})
