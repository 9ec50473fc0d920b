/** Reads that return parts of sessions, for people and tools. */
import { once } from 'node:events'
import { request } from 'node:http'
import { buffer } from 'node:stream/consumers'
import { gunzipSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { packTokenData } from '../../src/protocol/token-data/token-data.ts'
import * as reads from '../../src/proxy/http/trainer/sessions/read-schemas.ts'
import { Turn } from '../../src/proxy/http/trainer/sessions/schemas.ts'
import { Activity } from '../../src/proxy/session/state/activity.ts'
import { TurnRunner } from '../../src/proxy/session/turn/run-turn.ts'
import { DISCARD } from '../helpers/event-stream.ts'
import { runUnwatched } from '../helpers/no-stalls.ts'
import { readTensors } from '../helpers/read-tensors.ts'
import { ScriptedBackend } from '../helpers/scripted-backend.ts'
import { SessionTurnRunner } from '../helpers/session-turn-runner.ts'
import { findSchemaErrors, recordTurn, type SessionsApi, startSessionsApi } from '../helpers/sessions-api.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

const ids = (from: number, count: number) => Int32Array.from({ length: count }, (_, i) => from + i)
const user = (text: string) => JSON.stringify({ role: 'user', content: text })

/** Records turn 0 (20 prompt tokens, 3 sampled), turn 1, which continues it, and turn 2, a branch at 10. */
async function recordThree({ store, call }: SessionsApi): Promise<void> {
  await call('POST', '/sessions/s', { metadata: { task: 'sea', step: 3 } })
  const logprobs = (...values: number[]) => ({ completionLogprobs: Float64Array.from(values) })
  await recordTurn(store, 's', 0, {
    requestMessages: [user('one')],
    promptTokenIds: ids(0, 20),
    completionTokenIds: ids(100, 3),
    ...logprobs(-0.5, -0.25, -2),
    weightVersionStart: '7',
  })
  await recordTurn(store, 's', 1, {
    requestMessages: [user('one'), user('two')],
    promptTokenIds: Int32Array.from([...ids(0, 20), ...ids(100, 3), 55]),
    completionTokenIds: ids(200, 2),
    ...logprobs(-1, -1),
    annotations: '{"prompt":{"reason":"extended"}}',
  })
  await recordTurn(store, 's', 2, {
    requestMessages: [user('one'), user('three')],
    promptTokenIds: Int32Array.from([...ids(0, 10), 9]),
    completionTokenIds: ids(300, 1),
    ...logprobs(-3),
    annotations: '{"prompt":{"reason":"branched"}}',
  })
}

t.test('the reads of a session are documented, page by page', async (t) => {
  const api = await startSessionsApi(t)
  await recordThree(api)
  const get = async (path: string, schema?: Parameters<typeof findSchemaErrors>[0]) => {
    const { status, body } = await api.call('GET', path)
    if (schema) t.same(findSchemaErrors(schema, body), [], path)
    return { status, body }
  }

  t.test('the tree reports the parents of turns, and where a shared prefix ends', async (t) => {
    const { body } = await get('/sessions/s/tree', reads.Tree)
    t.match(body.turns, [
      { index: 0, parent: null, shared_tokens: 0, prompt_tokens: 20, sampled_tokens: 3, line: 'main' },
      {
        index: 1,
        parent: 0,
        shared_tokens: 23,
        continues: true,
        prompt_reason: 'extended',
        duration_ms: 500,
      },
      { index: 2, shared_tokens: 10, continues: false, prompt_reason: 'branched', first_token_ms: 250 },
    ])
    t.notOk(JSON.stringify(body.turns).includes('one'), 'it contains no text of a message')
    t.equal((await get('/sessions/nowhere/tree')).status, 404)
  })

  t.test('one turn has its new messages, and its ids on request', async (t) => {
    const { body } = await get('/sessions/s/turns/1')
    t.match(body, {
      index: 1,
      request_messages: [{ content: 'two' }],
      request_messages_from: 1,
      line: 'main',
    })
    t.equal(body.request_messages_of, 's-0')
    t.notOk('prompt_token_ids' in body)
    const full = (await get('/sessions/s/turns/1?messages=all&ids=true', Turn)).body
    t.match(full, {
      request_messages: [{ content: 'one' }, { content: 'two' }],
      completion_token_ids: [200, 201],
    })
    t.match(await get('/sessions/s/turns/3'), { status: 404, body: { code: 'turn_not_found' } })
    t.match(await get('/sessions/nowhere/turns/0'), { status: 404, body: { code: 'session_not_found' } })
  })

  t.test('a session is read without ids', async (t) => {
    const { body } = await get('/sessions/s?ids=false&messages=new')
    t.match(body, { sampled_tokens: 6, trace_count: 3 })
    t.same(
      body.turns.map((turn: object) => 'completion_token_ids' in turn),
      [false, false, false],
    )
  })

  t.test('rows are summarized, and their tokens are those of the trajectories', async (t) => {
    const { trajectories } = (await get('/sessions/s/trajectories')).body
    const { rows } = (await get('/sessions/s/rows', reads.Rows)).body
    t.match(rows, [
      { row: 0, prompt_tokens: 20, response_tokens: 6, trained_tokens: 5, min_logprob: -2, num_turns: 2 },
      { row: 1, prompt_tokens: 11, response_tokens: 1, trained_tokens: 1, mean_logprob: -3 },
    ])
    for (const [number, row] of trajectories.entries()) {
      const tokens = await readTensors(`${api.url}/sessions/s/rows/${number}/tokens`)
      t.same([...tokens.ids!], [...row.prompt_ids, ...row.response_ids])
      t.same([...tokens.logprobs!].slice(row.prompt_ids.length), row.response_logprobs)
      t.same([...tokens.mask!].slice(row.prompt_ids.length), row.response_mask)
      t.match(JSON.parse(tokens.metadata.row!), rows[number])
    }
    const { turns } = await readTensors(`${api.url}/sessions/s/rows/0/tokens`)
    t.same([...turns!], [...Array(20).fill(-1), 0, 0, 0, -1, 1, 1])
    t.match(await get('/sessions/s/rows/2/tokens'), { status: 404, body: { code: 'row_not_found' } })
    t.match((await get('/sessions/s/rows/0/token_texts', reads.TokenTexts)).body, {
      source: null,
      texts: null,
    })
  })

  t.test('the list is searched, sorted and counted', async (t) => {
    const { body } = await get(
      '/sessions?q=SEA&sort=tokens&order=asc&totals=true&inexact=false',
      reads.SessionList,
    )
    t.match(body, {
      sessions: [{ session_id: 's', turn_count: 3, open_turns: 0 }],
      totals: { sessions: 1, turns: 3 },
    })
    t.match((await get('/sessions?reward_min=0&totals=true')).body, {
      sessions: { length: 0 },
      totals: { sessions: 0 },
    })
    t.match(await get('/sessions?sort=size'), { status: 400, body: { param: 'sort' } })
  })

  t.test('groups report the distribution of rewards of one task', async (t) => {
    for (const [id, reward] of [
      ['g1', 0.5],
      ['g2', 0.5],
      ['g3', 1],
    ] as const) {
      await api.call('POST', `/sessions/${id}`, { metadata: { task: id === 'g3' ? 'x' : 'same' } })
      await api.call('POST', `/sessions/${id}/reward`, { reward })
    }
    const { body } = await get('/groups?by=task', reads.Groups)
    const byValue = Object.fromEntries(body.groups.map((group: { value: string }) => [group.value, group]))
    t.match(byValue.same, { sessions: 2, rewards: { count: 2, mean: 0.5, std: 0 }, zero_variance: true })
    t.match(byValue.x, { sessions: 1, zero_variance: false })
    t.equal(body.total, 3)
    t.equal((await get('/groups?by=task&limit=1')).body.groups.length, 1)
    t.notOk('pass_at' in body || 'passed' in byValue.same)
    const passed = (await get('/groups?by=task&pass_reward=0.5', reads.Groups)).body
    t.equal(passed.groups.find(({ value }: { value: string }) => value === 'same').passed, 2)
    t.equal(passed.pass_at[2], 1)
    t.match(await get('/groups'), { status: 400, body: { param: 'by' } })
  })

  t.test('a preview has the task and the last completion of the main role, one line each', async (t) => {
    const messageJson = (role: string, content: unknown) => JSON.stringify({ role, content })
    await api.call('POST', '/sessions/p', {})
    t.same((await get('/sessions/p/preview', reads.Preview)).body, { task: null, answer: null })
    const messages = [
      messageJson('system', 'You fix.'),
      messageJson('user', [{ type: 'text', text: ' Mend\n the  sea ' }]),
    ]
    const calls = JSON.stringify([{ id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } }])
    await recordTurn(api.store, 'p', 0, { requestMessages: messages, completionText: 'First.' })
    const more = [...messages, messageJson('assistant', 'First.'), messageJson('user', 'Go on.')]
    await recordTurn(api.store, 'p', 1, {
      requestMessages: more,
      completionText: `Done. ${'x'.repeat(999)}`,
    })
    await recordTurn(api.store, 'p', 2, { requestMessages: more, completionText: null, toolCalls: calls })
    await recordTurn(api.store, 'p', 3, {
      requestMessages: more,
      completionText: 'half',
      status: 'aborted',
    })
    const { body } = await get('/sessions/p/preview', reads.Preview)
    t.equal(body.task, 'Mend the sea')
    t.match(body.answer, /^Done\. x{294}$/)
    t.match(await get('/sessions/none/preview'), { status: 404 })
  })

  t.test('groups report the rows, truncated completions and staleness of their turns', async (t) => {
    const prompt = [...Array(20).keys()]
    const versions = { weightVersionStart: '7', weightVersionEnd: '7' }
    for (const [index, id] of ['t1', 't2', 't3'].entries()) {
      const step = index === 2 ? 2 : 1
      await api.call('POST', `/sessions/${id}`, { metadata: { step } })
      await api.call('POST', `/sessions/${id}/reward`, { reward: 1, components: { tests: index } })
    }
    const first = { promptTokenIds: Int32Array.from(prompt), completionTokenIds: Int32Array.of(50, 51) }
    // One row of two turns, a turn that starts another row, and a turn that is not trained.
    await recordTurn(api.store, 't1', 0, { ...first, ...versions })
    const continuation = Int32Array.from([...prompt, 50, 51, 90])
    const older = { weightVersionStart: '5', weightVersionEnd: '7' }
    await recordTurn(api.store, 't1', 1, {
      ...first,
      promptTokenIds: continuation,
      finishReason: 'length',
      ...older,
    })
    await recordTurn(api.store, 't1', 2, { ...first, promptTokenIds: Int32Array.of(1, 2, 3) })
    await recordTurn(api.store, 't1', 3, { ...first, status: 'failed' })
    await recordTurn(api.store, 't2', 0, { ...first, ...versions })
    const { body } = await get('/groups?by=step&turns=true', reads.Groups)
    t.match(body.groups, [
      { value: 2, of_turns: { sessions: 1, rows: 0, turns: 0, truncated: 0, staleness: null } },
      { value: 1, reward_components: { tests: 0.5 } },
    ])
    const { staleness, ...counts } = body.groups[1].of_turns
    t.strictSame(counts, { sessions: 2, rows: 3, turns: 5, truncated: 1 })
    t.ok(Math.abs(staleness - 2 / 3) < 1e-9, 'weighted by tokens: a third of them are two versions old')
    t.notOk('of_turns' in (await get('/groups?by=step')).body.groups[0])
    const only = await get('/groups?by=step&turns=true&metadata.step=2', reads.Groups)
    t.match(only.body.groups, [{ value: 2, of_turns: { sessions: 1 } }])
  })
})

t.test('the tree of a thousand turns takes some tens of kilobytes on the wire', async (t) => {
  const api = await startSessionsApi(t)
  await api.sessions.create({ sessionId: 's' })
  await runUnwatched(async () => {
    for (let turn = 0; turn < 1_000; turn += 1)
      await recordTurn(api.store, 's', turn, {
        requestMessages: [user('one'), user(`call ${turn} `.repeat(100))],
        promptTokenIds: ids(0, 200 + turn),
        completionTokenIds: ids(turn * 7, 40),
        completionLogprobs: new Float64Array(40).fill(-0.25),
      })
  })
  const clientRequest = request(`${api.url}/sessions/s/tree`, { headers: { 'accept-encoding': 'gzip' } })
  clientRequest.end()
  const [response] = await once(clientRequest, 'response')
  const sent = await buffer(response)
  t.equal(JSON.parse(gunzipSync(sent).toString()).turns.length, 1_000)
  t.ok(sent.length < 60_000, `${sent.length} bytes`)
})

t.test('responses are compressed only for clients that accept gzip', async (t) => {
  const api = await startSessionsApi(t)
  await recordThree(api)
  const encoding = async (accept: string) => {
    const clientRequest = request(`${api.url}/sessions/s/tree`, { headers: { 'accept-encoding': accept } })
    clientRequest.end()
    const [response] = await once(clientRequest, 'response')
    response.resume()
    return response.headers['content-encoding']
  }
  t.equal(await encoding('gzip, br'), 'gzip')
  t.equal(await encoding('br;q=1, gzip;q=0.5'), 'gzip')
  t.equal(await encoding('gzip;q=0'), undefined)
  t.equal(await encoding('identity'), undefined)
})

t.test('texts of tokens are those of the tokenizer of the model', async (t) => {
  const tokenTexts = async (model: string | null, ids: Int32Array) =>
    model === 'm' ? { source: 'a tokenizer', texts: [...ids].map((id) => `<é${id}>`) } : undefined
  const api = await startSessionsApi(t, undefined, {}, { tokenTexts })
  await recordThree(api)
  const { body } = await api.call('GET', '/sessions/s/rows/1/token_texts')
  t.match(body, { source: 'a tokenizer' })
  t.equal(body.texts.at(-1), '<é300>')
  const { metadata, text, text_ends } = await readTensors(`${api.url}/sessions/s/rows/1/tokens?texts=true`)
  t.equal(metadata.tokenizer, 'a tokenizer')
  const ends = [...text_ends!]
  t.same(
    ends.map((end, index) => Buffer.from(text!).toString('utf8', ends[index - 1] ?? 0, end)),
    body.texts,
  )
  t.notOk('text' in (await readTensors(`${api.url}/sessions/s/rows/1/tokens`)))
})

t.test('events are sent to their listeners as they happen', async (t) => {
  const activity = new Activity()
  // All events are within one millisecond.
  const clock = () => 1_800_000_000_000
  const api = await startSessionsApi(t, undefined, { activity, clock }, { activity })
  const events = await openLines(t, `${api.url}/events`)
  await api.call('POST', '/sessions/s', {})
  await api.call('POST', '/sessions/s', {})
  await api.call('POST', '/sessions/s/reward', { reward: 0.5 })
  await api.call('POST', '/sessions/s/reset')
  await api.call('POST', '/sessions/s/complete')
  await api.call('POST', '/sessions/s/complete')
  await api.call('DELETE', '/sessions/s')
  await api.call('POST', '/admin/pause?drain_timeout_s=0')
  await api.call('POST', '/admin/resume')
  const turnEvents = () => events.filter(({ type }) => !String(type).startsWith('member'))
  await until(() => turnEvents().length >= 7)
  t.same(
    turnEvents().map(({ type }) => type),
    ['session_opened', 'reward', 'session_reset', 'session_ended', 'session_deleted', 'paused', 'resumed'],
  )
  t.match(turnEvents()[3], { session_id: 's', status: 'completed' })
  for (const event of turnEvents()) t.same(findSchemaErrors(reads.ProxyEvent, event), [])
})

t.test('an in-flight turn is shown while it is sampled', async (t) => {
  const activity = new Activity()
  const api = await startSessionsApi(t, undefined, { activity }, { activity })
  await api.call('POST', '/sessions/s', {})
  const backend = new ScriptedBackend()
  const { store, sessions } = api
  const runner = new SessionTurnRunner(
    new TurnRunner({ sessions, backend, store, activity, logger: silentLogger }),
    sessions,
  )
  const next = Promise.withResolvers<void>()
  backend.script = async function* () {
    yield [
      { type: 'start', model: 'm' },
      { type: 'delta', content: 'Hello' },
    ]
    await next.promise
    yield [
      { type: 'delta', content: ', sea' },
      { type: 'end', finishReason: 'stop' },
    ]
  } as typeof backend.script
  const request = {
    kind: 'chat' as const,
    body: { model: 'm', messages: [{ role: 'user' as const, content: 'hi' }] },
  }
  const turn = await runner.begin(
    {
      sessionId: 's',
      dialect: 'chat',
      request,
      stream: true,
      metadata: { retryCount: 0, hasAgentKey: false },
    },
    new AbortController().signal,
  )
  const response = turn.deliver(DISCARD)
  await until(() => turn.completion.content === 'Hello')
  const lines = await openLines(t, `${api.url}/sessions/s/live`)
  await until(() => lines.length >= 1)
  t.match(lines[0], { type: 'turn', index: 0, text: 'Hello' })
  next.resolve()
  await response
  await until(() => lines.some(({ type }) => type === 'turn_closed'))
  for (const line of lines) t.same(findSchemaErrors(reads.LiveEvent, line), [])
  t.equal((await api.call('GET', '/sessions/nowhere/live')).status, 404)
})

t.test('a listener that does not read is disconnected, and never delays others', async (t) => {
  const activity = new Activity()
  const api = await startSessionsApi(t, undefined, {}, { activity })
  const listeners = activity.listenerCount
  const clientRequest = request(`${api.url}/events`, { agent: false })
  clientRequest.on('error', () => {})
  clientRequest.end()
  const [response] = await once(clientRequest, 'response')
  t.equal(activity.listenerCount, listeners + 1)
  response.pause()
  response.on('error', () => {})
  const closed = new Promise((resolve) => response.once('close', resolve))
  // More than fits into the buffers of both kernels.
  const session_id = 'x'.repeat(1_000)
  const notify = () => {
    for (let i = 0; i < 4_000; i += 1) activity.emit({ type: 'session_deleted', session_id })
  }
  await until(async () => {
    await runUnwatched(notify)
    return activity.listenerCount === listeners
  })
  response.resume()
  await closed
  t.pass('the connection was cut')
})

/** Opens a response that continues until the test ends. @returns its lines, parsed as they arrive */
async function openLines(t: Test, url: string): Promise<Record<string, unknown>[]> {
  const clientRequest = request(url, { agent: false })
  clientRequest.on('error', () => {})
  clientRequest.end()
  t.teardown(() => clientRequest.destroy())
  const [response] = await once(clientRequest, 'response')
  const lines: Record<string, unknown>[] = []
  let rest = ''
  response.setEncoding('utf8')
  response.on('error', () => {})
  response.on('data', (text: string) => {
    const parts = (rest + text).split('\n')
    rest = parts.pop()!
    lines.push(...parts.map((line) => JSON.parse(line)))
  })
  return lines
}

t.test('alternatives are returned for the requested tokens, where some are recorded', async (t) => {
  const tokenTexts = async (_model: string | null, tokens: Int32Array) => ({
    source: 'letters',
    texts: [...tokens].map((id) => `w${id}`),
  })
  const api = await startSessionsApi(t, undefined, {}, { tokenTexts })
  await api.sessions.create({ sessionId: 's' })
  const first = { promptTokenIds: Int32Array.of(1, 2), completionTokenIds: Int32Array.of(10, 11, 12) }
  const details = packTokenData({
    top_logprobs: { counts: [2, 0, 1], ids: [10, 20, 12], logprobs: [-0.5, -1, Number.NaN] },
  })
  await recordTurn(api.store, 's', 0, {
    ...first,
    completionLogprobs: Float64Array.of(-1, -1, -1),
    details,
  })
  const read = async (query = '') => (await api.call('GET', `/sessions/s/rows/0/alternatives${query}`)).body
  const of10 = [
    { id: 10, logprob: -0.5, text: 'w10' },
    { id: 20, logprob: -1, text: 'w20' },
  ]
  const of12 = [{ id: 12, logprob: null, text: 'w12' }]
  t.strictSame(await read(), { from: 0, alternatives: [null, null, of10, null, of12] })
  t.strictSame(await read('?from=2&count=1'), { from: 2, alternatives: [of10] })
  t.strictSame(await read('?from=4&count=9'), { from: 4, alternatives: [of12] })
  t.strictSame(await read('?from=5'), { from: 5, alternatives: [] })
  t.equal((await api.call('GET', '/sessions/s/rows/0/alternatives?count=257')).status, 400)
  t.equal((await api.call('GET', '/sessions/s/rows/1/alternatives')).status, 404)
})

t.test('alternatives have no text where no tokenizer is known', async (t) => {
  const api = await startSessionsApi(t)
  await api.sessions.create({ sessionId: 's' })
  const details = packTokenData({ top_logprobs: { counts: [1], ids: [7], logprobs: [-0.5] } })
  const sampled = { completionTokenIds: Int32Array.of(10), completionLogprobs: Float64Array.of(-1) }
  await recordTurn(api.store, 's', 0, { promptTokenIds: Int32Array.of(1), ...sampled, details })
  const { body } = await api.call('GET', '/sessions/s/rows/0/alternatives?from=1')
  t.strictSame(body, { from: 1, alternatives: [[{ id: 7, logprob: -0.5, text: null }]] })
})
