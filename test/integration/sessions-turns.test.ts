import t from 'tap'
import * as schemas from '../../src/proxy/http/trainer/sessions/schemas.ts'
import { toPromptChunks } from '../../src/proxy/session/prompts/prompt-chunks.ts'
import { findSchemaErrors, recordTurn, startSessionsApi } from '../helpers/sessions-api.ts'

interface ShownTurn {
  request_messages_from: number
  request_messages_of: string | null
  request_messages: { content: string }[]
}

const user = (content: string) => JSON.stringify({ role: 'user', content })
const assistant = (content: string) => JSON.stringify({ role: 'assistant', content })

t.test('reading a session', async (t) => {
  t.test('shows each turn as it was recorded, lists as lists', async (t) => {
    const { call, store } = await startSessionsApi(t)
    await call('POST', '/sessions/s')
    await recordTurn(store, 's', 0, {
      requestMessages: [user('naïve "quotes" \u2028 🙂'), '{"role":"tool","content":[],"x":null}'],
      tools: '[{"type":"function","function":{"name":"f"}}]',
      params: '{"model":"m","temperature":0.5,"custom":{"a":[1]}}',
      toolCalls: '[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\\"a\\": 1}"}}]',
      completionText: null,
      reasoning: 'because',
      finishReason: 'tool_calls',
      stopReason: '151645',
      promptTokenIds: Int32Array.of(1, 2, 150_000),
      completionTokenIds: Int32Array.of(4, 5),
      completionLogprobs: Float64Array.of(-0.1, -1e-17),
      weightVersionStart: '6',
      weightVersionEnd: '7',
      usage: '{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}',
      retryCount: 1,
    })
    const { status, body } = await call('GET', '/sessions/s')
    t.equal(status, 200)
    t.same(findSchemaErrors(schemas.SessionWithTurns, body), [])
    t.same(body.turns, [
      {
        turn_id: 's-0',
        index: 0,
        agent_role: 'main',
        line: 'main',
        agent_role_rule: 'first',
        line_rule: 'first',
        status: 'completed',
        dialect: 'chat',
        request_messages: [
          { role: 'user', content: 'naïve "quotes" \u2028 🙂' },
          { role: 'tool', content: [], x: null },
        ],
        completion_text: '',
        completion_token_ids: [4, 5],
        completion_logprobs: [-0.1, -1e-17],
        prompt_token_ids: [1, 2, 150_000],
        finish_reason: 'tool_calls',
        stop_reason: 151645,
        tool_calls: [{ id: 'c1', type: 'function', function: { name: 'f', arguments: '{"a": 1}' } }],
        reasoning_content: 'because',
        tools: [{ type: 'function', function: { name: 'f' } }],
        params: { model: 'm', temperature: 0.5, custom: { a: [1] } },
        model: 'm',
        engine: 'e',
        usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
        annotations: {},
        exact: true,
        inexact_reason: null,
        weight_version_start: '6',
        weight_version_end: '7',
        started_at: 1,
        first_token_at: 1.25,
        ended_at: 1.5,
        latency_ms: 500,
        error: null,
        retry_count: 1,
        labels: [],
        note: null,
      },
    ])
  })

  t.test('shows turns that are open or have failed with empty lists, and with the error', async (t) => {
    const { call, store } = await startSessionsApi(t)
    await call('POST', '/sessions/s')
    await recordTurn(store, 's', 0, {
      status: 'failed',
      error: { code: 'engine_lost', message: 'gone' },
      exact: false,
      inexactReason: 'no ids',
      promptTokenIds: new Int32Array(),
      completionTokenIds: new Int32Array(),
      completionLogprobs: new Float64Array(),
      firstTokenAtMs: null,
    })
    await store.openTurn({
      turnId: 'open',
      sessionId: 's',
      index: 1,
      dialect: 'completions',
      startedAtMs: 2_000,
      lastMessage: undefined,
      tools: null,
      params: '{"model":"m"}',
      promptPieces: ['"On', 'ce'],
      retryCount: 0,
    })
    const { body } = await call('GET', '/sessions/s')
    t.same(findSchemaErrors(schemas.SessionWithTurns, body), [])
    t.match(body.turns[0], { status: 'failed', error: { code: 'engine_lost', message: 'gone' } })
    t.match(body.turns[1], { status: 'open', ended_at: null, latency_ms: null, params: { prompt: 'Once' } })
    for (const turn of body.turns) {
      const { tool_calls, tools, completion_token_ids, completion_logprobs } = turn
      t.strictSame([tool_calls, tools, completion_token_ids, completion_logprobs], [[], [], [], []])
    }
  })

  t.test('counts aborted turns separately from failed ones', async (t) => {
    const { call, store } = await startSessionsApi(t)
    await call('POST', '/sessions/s')
    for (const [index, status] of (['aborted', 'failed', 'completed', 'aborted'] as const).entries())
      await recordTurn(store, 's', index, { status })
    const { body } = await call('GET', '/sessions/s')
    t.match(body, { aborted_turns: 2, failed_turns: 1 })
    t.same(findSchemaErrors(schemas.SessionWithTurns, body), [])
  })

  t.test('returns rows for training', async (t) => {
    const { call, store } = await startSessionsApi(t)
    await call('POST', '/sessions/s')
    await call('POST', '/sessions/s/reward', { reward: 0.5, components: { tests: 1 } })
    await recordTurn(store, 's', 0, { weightVersionStart: '9', weightVersionEnd: '9' })
    await recordTurn(store, 's', 1, {
      promptTokenIds: Int32Array.of(1, 2, 3, 4, 5),
      completionTokenIds: Int32Array.of(6, 7),
      completionLogprobs: Float64Array.of(-0.25, Number.NEGATIVE_INFINITY),
      finishReason: 'length',
      weightVersionStart: '10',
      weightVersionEnd: '10',
    })
    await recordTurn(store, 's', 2, { status: 'aborted' })
    const { body } = await call('GET', '/sessions/s/trajectories')
    t.same(findSchemaErrors(schemas.Trajectories, body), [])
    t.match(body, {
      session_id: 's',
      status: 'active',
      excluded_turns: {
        open: 0,
        aborted: 1,
        failed: 0,
        interrupted: 0,
        side: 0,
        superseded: 0,
        rejected: 0,
        empty: 0,
      },
    })
    const { turns } = (await call('GET', '/sessions/s/tree')).body
    t.same(
      turns.map(({ excluded }: { excluded: string | null }) => excluded),
      [null, null, 'aborted'],
    )
    const span = { finish_reason: 'stop', trained: true, policy: null, reward: null, labels: [] }
    t.same(body.trajectories, [
      {
        agent_role: 'main',
        line: 'main',
        policy: null,
        prompt_ids: [1, 2],
        response_ids: [3, 4, 5, 6, 7],
        response_mask: [1, 0, 0, 1, 1],
        response_logprobs: [-0.5, 0, 0, -0.25, -Number.MAX_VALUE],
        turns: [
          {
            ...span,
            turn_id: 's-0',
            index: 0,
            agent_role: 'main',
            line: 'main',
            start: 0,
            end: 1,
            weight_version_start: '9',
            weight_version_end: '9',
          },
          {
            ...span,
            turn_id: 's-1',
            index: 1,
            agent_role: 'main',
            line: 'main',
            start: 3,
            end: 5,
            finish_reason: 'length',
            weight_version_start: '10',
            weight_version_end: '10',
          },
        ],
        num_turns: 2,
        finish_reason: 'length',
        weight_version_min: '9',
        weight_version_max: '10',
        unversioned_turns: 0,
        reward: 0.5,
        reward_components: { tests: 1 },
        labels: [],
        exact: true,
        inexact_reason: null,
        truncated: false,
        prompt_truncated: false,
        finished: false,
      },
    ])
    const cut = (await call('GET', '/sessions/s/trajectories?prompt_length=1&response_length=2')).body
    t.match(cut.trajectories, [
      {
        prompt_ids: [2],
        response_ids: [3, 4],
        response_mask: [1, 0],
        truncated: true,
        prompt_truncated: true,
      },
    ])
    const perTurn = (await call('GET', '/sessions/s/trajectories?per_turn=true&select=last')).body
    t.match(perTurn.trajectories, [
      { prompt_ids: [1, 2], response_ids: [3] },
      { prompt_ids: [1, 2, 3, 4, 5], response_ids: [6, 7] },
    ])
  })
})

t.test(
  'a row reports whether its session was completed, and finished_only omits the other rows',
  async (t) => {
    const { call, store } = await startSessionsApi(t)
    for (const [id, end] of [
      ['done', 'complete'],
      ['dropped', 'abort'],
      ['under-way', undefined],
    ] as const) {
      await call('POST', `/sessions/${id}`, {})
      await recordTurn(store, id, 0)
      if (end !== undefined) await call('POST', `/sessions/${id}/${end}`, {})
      const rows = async (query: string) =>
        (await call('GET', `/sessions/${id}/trajectories${query}`)).body.trajectories
      t.match(await rows(''), [{ finished: end === 'complete' }], id)
      t.equal((await rows('?finished_only=true')).length, end === 'complete' ? 1 : 0, id)
    }
  },
)

t.test('a session without turns has no rows', async (t) => {
  const { call } = await startSessionsApi(t)
  await call('POST', '/sessions/s')
  t.same((await call('GET', '/sessions/s/trajectories')).body.trajectories, [])
})

t.test('messages=new returns the part of a prompt that no earlier turn contains', async (t) => {
  const { call, store } = await startSessionsApi(t)
  await call('POST', '/sessions/s')
  const prompts = ['Once upon', 'Once upon a time', [1, 2], [1, 2, 3]]
  for (const [index, prompt] of prompts.entries())
    await recordTurn(store, 's', index, {
      dialect: 'completions',
      requestMessages: [],
      promptPieces: toPromptChunks(prompt),
    })
  const show = async (query: string) => {
    const { body } = await call('GET', `/sessions/s${query}`)
    t.same(findSchemaErrors(schemas.SessionWithTurns, body), [])
    return body.turns
  }
  t.match(await show('?messages=new'), [
    { prompt_of: null, params: { model: 'm', prompt: 'Once upon' } },
    { prompt_of: 's-0', params: { model: 'm', prompt: ' a time' } },
    { prompt_of: null, params: { model: 'm', prompt: [1, 2] } },
    { prompt_of: 's-2', params: { model: 'm', prompt: [3] } },
  ])
  t.same(
    (await show('')).map((turn: { params: object }) => turn.params),
    prompts.map((prompt) => ({ model: 'm', prompt })),
    'other reads return the complete prompt',
  )
})

t.test('messages=none returns the completion, and only the parameters of the request', async (t) => {
  const { call, store } = await startSessionsApi(t)
  await call('POST', '/sessions/s')
  const tools = '[{"type":"function","function":{"name":"f"}}]'
  await recordTurn(store, 's', 0, { requestMessages: [user('a')], tools })
  await recordTurn(store, 's', 1, { requestMessages: [], promptPieces: toPromptChunks('Once upon') })
  const { body } = await call('GET', '/sessions/s?messages=none')
  t.same(findSchemaErrors(schemas.SessionWithTurns, body), [])
  const params = { model: 'm' }
  const shown = {
    request_messages: [],
    tools: [],
    params,
    completion_text: 'hello',
    completion_token_ids: [3],
  }
  for (const turn of body.turns)
    for (const [name, value] of Object.entries(shown)) t.same(turn[name], value, name)
  t.equal(body.turns.length, 2)
})

t.test('messages=new omits messages that an earlier turn of the same agent role contains', async (t) => {
  const { call, store } = await startSessionsApi(t)
  await call('POST', '/sessions/s')
  const [a, b, c] = [user('a'), assistant('b'), user('c')]
  const requests = [[a], [a, b, c], [user('other')], [a, b, user('d')], [a, b, c, user('e')], [a]]
  for (const [index, requestMessages] of requests.entries())
    await recordTurn(store, 's', index, { requestMessages })
  const { body } = await call('GET', '/sessions/s?messages=new')
  t.same(findSchemaErrors(schemas.SessionWithTurns, body), [])
  const shown = body.turns.map((turn: ShownTurn) => [
    turn.request_messages_from,
    turn.request_messages_of,
    turn.request_messages.map((message) => message.content).join(''),
  ])
  t.same(shown, [
    [0, null, 'a'],
    [1, 's-0', 'bc'],
    [0, null, 'other'],
    [2, 's-1', 'd'],
    [3, 's-1', 'e'],
    [1, 's-4', ''],
  ])
  const full = (await call('GET', '/sessions/s')).body.turns
  const rebuilt = new Map<string, unknown[]>()
  for (const turn of body.turns) {
    const before = rebuilt.get(turn.request_messages_of)?.slice(0, turn.request_messages_from) ?? []
    rebuilt.set(turn.turn_id, [...before, ...turn.request_messages])
  }
  for (const turn of full) t.same(rebuilt.get(turn.turn_id), turn.request_messages)
})
