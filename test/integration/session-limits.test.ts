/** Budgets of a session: the response at a limit, what is recorded of it, and what counts. */
import fc from 'fast-check'
import t from 'tap'
import type { GenerationEvent } from '../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { limitToBudget, parseLimits, SessionUsage } from '../../src/proxy/session/state/limits.ts'
import { startProxy } from '../helpers/proxy.ts'
import { completeResponse, respond, untilAborted } from '../helpers/scripted-backend.ts'
import { type SessionsApi, startSessionsApi } from '../helpers/sessions-api.ts'
import { openMemoryStore } from '../helpers/store-in-process.ts'

const REQUEST = { model: 'm', messages: [{ role: 'user', content: 'hello' }] }

const sendRequest = ({ call }: Pick<SessionsApi, 'call'>, more = {}, session = 's') =>
  call('POST', `/${session}/v1/chat/completions`, { ...REQUEST, ...more })

const LIMIT_REACHED = { status: 400, body: { error: { code: 'limit_reached' } } }

/** Makes the engine sample as many tokens as the request permits. */
function sampleUpToLimit(api: SessionsApi): void {
  api.backend.script = ({ body: { max_tokens, max_completion_tokens } }) => {
    const count = max_completion_tokens ?? max_tokens ?? 3
    const [start] = completeResponse()
    const tokenIds = Array.from({ length: count }, (_, index) => index)
    return respond([
      start!,
      { type: 'delta', content: 'x', tokenIds, logprobs: tokenIds.map(() => -1) },
      { type: 'end', finishReason: 'length' },
    ] satisfies GenerationEvent[])
  }
}

t.test(`at a limit of turns the agent of each dialect gets an ordinary final response`, async (t) => {
  const api = await startSessionsApi(t)
  await api.call('POST', '/sessions/s', { limits: { turns: 2 } })
  for (const _ of [1, 2])
    t.match(await sendRequest(api), { body: { choices: [{ message: { content: 'hi there' } }] } })
  const end = await sendRequest(api)
  t.match(end, {
    status: 200,
    body: {
      choices: [{ message: { content: '' }, finish_reason: 'stop' }],
      usage: { prompt_tokens: 0, completion_tokens: 0 },
    },
  })
  const anthropic = await api.call('POST', '/s/v1/messages', { ...REQUEST, max_tokens: 9 })
  t.match(anthropic, { status: 200, body: { stop_reason: 'end_turn', usage: { output_tokens: 0 } } })
  const responses = await api.call('POST', '/s/v1/responses', { model: 'm', input: 'hello' })
  t.match(responses, { status: 200, body: { status: 'completed', usage: { output_tokens: 0 } } })
  const completion = await api.call('POST', '/s/v1/completions', { model: 'm', prompt: 'hello' })
  t.match(completion, { status: 200, body: { choices: [{ text: '', finish_reason: 'stop' }] } })
  t.equal(api.backend.requests.length, 2, 'no engine received a request')

  const traces = (await api.call('GET', '/sessions/s/traces')).body
  t.equal(traces.length ?? traces.traces.length, 2, 'the other requests have no traces')
  const { turns, ...session } = (await api.call('GET', '/sessions/s')).body
  t.match(session, { limits: { turns: 2 }, turn_count: 6, inexact_turns: 0, failed_turns: 0 })
  const ended = { status: 'completed', finish_reason: 'stop', engine: 'none', exact: true }
  t.match(turns[2], { ...ended, completion_text: '', annotations: { limit: 'turns' } })
  t.same([turns[2].prompt_token_ids, turns[2].completion_token_ids], [[], []])
  const rows = (await api.call('GET', '/sessions/s/trajectories')).body
  t.match(rows.excluded_turns, { empty: 4 })
  const inRows = rows.trajectories.flatMap((row: { turns: { index: number }[] }) => row.turns)
  t.same(
    inRows.map(({ index }: { index: number }) => index),
    [0, 1],
  )
})

t.test(`tokens are sampled up to the limit of a budget, and no more`, async (t) => {
  const api = await startSessionsApi(t)
  sampleUpToLimit(api)
  await api.call('POST', '/sessions/s', { limits: { sampled_tokens: 12 } })
  for (const field of ['max_tokens', 'max_completion_tokens', 'max_tokens', 'max_tokens'])
    t.equal((await sendRequest(api, { [field]: 5 })).status, 200)
  const { turns, sampled_tokens } = (await api.call('GET', '/sessions/s')).body
  t.same(
    turns.map((turn: { completion_token_ids: number[] }) => turn.completion_token_ids.length),
    [5, 5, 2, 0],
  )
  t.equal(sampled_tokens, 12)
  t.same(turns[2].params.max_tokens, 5, 'the limit that the agent requested is recorded')
  t.match(turns[3].annotations, { limit: 'sampled_tokens' })
})

t.test(`a restarted proxy knows the usage of a session`, async (t) => {
  const store = await openMemoryStore()
  const limits = { prompt_tokens: 4, seconds: 3_600 }
  const before = await startSessionsApi(t, store)
  await before.call('POST', '/sessions/s', { limits })
  await sendRequest(before)
  await before.sessions.close()
  const after = await startSessionsApi(t, store)
  t.match(
    await sendRequest(after),
    { body: { choices: [{ message: { content: 'hi there' } }] } },
    '3 of 4 tokens are used',
  )
  await sendRequest(after)
  const { turns } = (await after.call('GET', '/sessions/s')).body
  t.match(turns[2].annotations, { limit: 'prompt_tokens' })
})

t.test('requests in flight count, failed ones do not', async (t) => {
  const api = await startSessionsApi(t)
  const { promise: hasArrived, resolve: arrived } = Promise.withResolvers<void>()
  const { promise: mayFail, resolve: fail } = Promise.withResolvers<void>()
  api.backend.script = async function* () {
    arrived()
    await mayFail
    yield []
    throw new Error('the engine broke')
  }
  await api.call('POST', '/sessions/s', { limits: { turns: 1 } })
  const running = sendRequest(api)
  await hasArrived
  t.match(await sendRequest(api), { body: { choices: [{ message: { content: '' } }] } })
  fail()
  t.equal((await running).status, 500)
  api.backend.script = () => respond(completeResponse())
  t.match(await sendRequest(api), { body: { choices: [{ message: { content: 'hi there' } }] } })
  t.match(await sendRequest(api), { body: { choices: [{ message: { content: '' } }] } })
})

t.test('tokens that a request in flight has sampled so far count', async (t) => {
  const api = await startSessionsApi(t)
  const { promise: hasSampled, resolve: sampled } = Promise.withResolvers<void>()
  api.backend.script = async function* (_request, signal) {
    const [start, ...deltas] = completeResponse()
    yield [start!, ...deltas.slice(0, 2)]
    sampled()
    await untilAborted(signal)
  }
  await api.call('POST', '/sessions/s', { limits: { sampled_tokens: 3 } })
  const gone = new AbortController()
  const body = JSON.stringify({ ...REQUEST, stream: true })
  const running = fetch(`${api.url}/s/v1/chat/completions`, { method: 'POST', body, signal: gone.signal })
  await hasSampled
  t.match(await sendRequest(api), { body: { choices: [{ message: { content: '' } }] } })
  gone.abort()
  await running.then((response) => response.text()).catch(() => {})
})

t.test('at a limit, each of several choices of one request is an end', async (t) => {
  const api = await startSessionsApi(t)
  await api.call('POST', '/sessions/s', { limits: { turns: 1 } })
  await sendRequest(api)
  const { status, body } = await sendRequest(api, { n: 16 })
  t.equal(status, 200)
  t.same(
    [...new Set(body.choices.map((choice: { finish_reason: string }) => choice.finish_reason))],
    ['stop'],
  )
  t.match(await sendRequest(api), LIMIT_REACHED, 'the choices count as ends')
})

t.test('sequential requests never exceed a budget, and the last one ends at it', () => {
  const randomRequest = fc.record({
    requested: fc.option(fc.integer({ min: 1, max: 9 })),
    available: fc.integer({ min: 0, max: 9 }),
  })
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 40 }),
      fc.array(randomRequest, { maxLength: 30 }),
      (budget, requests) => {
        const usage = new SessionUsage()
        let sampled = 0
        for (const { requested, available } of requests) {
          const budgetState = usage.begin({ sampled_tokens: budget }, [], 0)
          if ((budgetState.reached !== undefined) !== sampled >= budget) return false
          if (budgetState.reached !== undefined) continue
          const request = {
            body: { messages: [], max_tokens: requested ?? 9 },
          } as unknown as GenerationRequest
          const { max_tokens: maxTokens } = limitToBudget(request, budgetState).body
          const sampledTokens = Math.min(available, maxTokens!)
          if (maxTokens !== Math.min(requested ?? 9, budget - sampled)) return false
          sampled += sampledTokens
          usage.add({ status: 'completed', engine: 'e', startedAtMs: 0, promptTokens: 1, sampledTokens })
        }
        return sampled <= budget
      },
    ),
  )
  return Promise.resolve()
})

t.test('the seconds are counted from the first request, and again after a reset', async (t) => {
  let nowMs = 1_000
  const api = await startSessionsApi(t, undefined, { clock: () => nowMs })
  await api.call('POST', '/sessions/s', { limits: { seconds: 10, at_limit: 'error' } })
  nowMs += 60_000
  t.equal((await sendRequest(api)).status, 200)
  nowMs += 9_999
  t.equal((await sendRequest(api)).status, 200)
  nowMs += 1
  t.match(await sendRequest(api), LIMIT_REACHED)
  t.equal((await api.call('GET', '/sessions/s')).body.turn_count, 2, 'a rejected request is not a turn')
  await api.call('POST', '/sessions/s/reset')
  t.equal((await sendRequest(api)).status, 200)
})

t.test('an agent that continues after its end is eventually rejected, without retries', async (t) => {
  const api = await startSessionsApi(t)
  await api.call('POST', '/sessions/s', { limits: { turns: 1 } })
  for (let count = 0; count < 9; count += 1) t.equal((await sendRequest(api)).status, 200)
  const rejected = await fetch(`${api.url}/s/v1/messages`, {
    method: 'POST',
    body: JSON.stringify({ ...REQUEST, max_tokens: 9 }),
  })
  t.equal(rejected.status, 400)
  t.equal(rejected.headers.get('x-should-retry'), 'false')
  t.match(await rejected.json(), { type: 'error', error: { message: /limit of 1 turns/ } })
})

t.test('sessions without limits have those of the proxy', async (t) => {
  const proxy = await startProxy(t, { sessionLimits: ['turns=1', 'at_limit=error'] })
  const getResponse = (session: string) =>
    proxy.post(`/${session}/v1/chat/completions`, { ...REQUEST, max_tokens: 2 })
  t.match(await getResponse('s'), { choices: [{}] })
  t.match(await getResponse('s'), { error: { code: 'limit_reached' } })
  t.match(await proxy.get('/sessions/s'), { limits: { turns: 1, at_limit: 'error' } })
  await proxy.post('/sessions', { session_id: 'free', limits: {} })
  for (const _ of [1, 2]) t.match(await getResponse('free'), { choices: [{}] })
})

t.test('invalid limits are rejected', async (t) => {
  const { call } = await startSessionsApi(t)
  for (const limits of [
    { turns: 0 },
    { turns: 1.5 },
    { turn: 1 },
    { seconds: 0 },
    { at_limit: 'x' },
    3,
    null,
  ])
    t.match(await call('POST', '/sessions/s', { limits }), { status: 400 }, JSON.stringify(limits))
  t.equal((await call('GET', '/sessions/s')).status, 404)
  t.strictSame(parseLimits(['turns=3', 'seconds=0.5']), { turns: 3, seconds: 0.5 })
  t.equal(parseLimits([]), null)
  for (const text of ['turns', 'turns=', 'turns=0', 'turns=1.5', 'turn=1', 'at_limit=x', 'seconds=-1'])
    t.throws(() => parseLimits([text]), { code: 'config_invalid', message: text })
})

t.test('a context limit of a session bounds prompt and completion together, in token mode', async (t) => {
  const proxy = await startProxy(t, { tokenizer: 'embedded' })
  const chat = (session: string, words: number, more = {}) =>
    proxy.post(`/${session}/v1/chat/completions`, {
      model: 'm',
      messages: [{ role: 'user', content: 'Count on. '.repeat(words) }],
      ignore_eos: true,
      ...more,
    })
  await proxy.post('/sessions/s', { limits: { context_tokens: 64 } })
  t.match(await chat('s', 1), { choices: [{ finish_reason: 'length' }], usage: { total_tokens: 64 } })
  t.match(await chat('s', 1, { max_tokens: 3 }), { usage: { completion_tokens: 3 } })
  t.match(
    await chat('s', 99),
    { choices: [{ finish_reason: 'length', message: { content: '' } }], usage: { completion_tokens: 0 } },
    'the end is that of a full context of the model',
  )
  const overlong = {
    model: 'm',
    max_tokens: 9,
    messages: [{ role: 'user', content: 'Count on. '.repeat(99) }],
  }
  t.match(await proxy.post('/s/v1/messages', overlong), { error: { message: /prompt is too long/ } })
  await proxy.post('/sessions/e', { limits: { context_tokens: 64, at_limit: 'error' } })
  t.match(await chat('e', 99), {
    error: { code: 'context_length_exceeded', message: /maximum context length is 64 tokens/ },
  })
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.ok(trajectories.length > 0)
  for (const { prompt_ids, response_ids } of trajectories) t.ok(prompt_ids.length + response_ids.length <= 64)
})

t.test('a context limit is rejected where the engine renders the prompts', async (t) => {
  const proxy = await startProxy(t)
  await proxy.post('/sessions/s', { limits: { context_tokens: 64 } })
  t.match(await proxy.post('/s/v1/chat/completions', REQUEST), {
    error: { code: 'unsupported', param: 'limits' },
  })
})
