import { once } from 'node:events'
import t from 'tap'
import * as reads from '../../src/proxy/http/trainer/sessions/read-schemas.ts'
import * as schemas from '../../src/proxy/http/trainer/sessions/schemas.ts'
import { untilAborted } from '../helpers/scripted-backend.ts'
import { findSchemaErrors, recordTurn, startSessionsApi } from '../helpers/sessions-api.ts'

t.test('the sessions API', async (t) => {
  t.test('creates a session under a given or a generated id', async (t) => {
    const { call } = await startSessionsApi(t)
    t.same(await call('POST', '/sessions/s-1'), {
      status: 200,
      body: { session_id: 's-1', status: 'created' },
    })
    t.same(await call('POST', '/sessions/s-1'), {
      status: 200,
      body: { session_id: 's-1', status: 'exists' },
    })
    const named = await call('POST', '/sessions', { session_id: 's-2', metadata: { step: 3 }, ttl_s: 60 })
    t.same(named.body, { session_id: 's-2', status: 'created' })
    const generated = await call('POST', '/sessions')
    t.equal(generated.body.status, 'created')
    t.match(await call('GET', `/sessions/${generated.body.session_id}`), { status: 200 })
    t.match((await call('GET', '/sessions/s-2')).body, { metadata: { step: 3 }, ttl_s: 60 })
    await call('POST', '/sessions', { session_id: 's-3', ttl_s: 1800 * 1.1 })
    t.match((await call('GET', '/sessions/s-3')).body, { ttl_s: 1980 }, 'in whole milliseconds')
    await call('DELETE', '/sessions/s-3')
  })

  t.test('lists sessions newest first, in pages, by status and metadata', async (t) => {
    let nowMs = 1_000
    const { call } = await startSessionsApi(t, undefined, { clock: () => ++nowMs })
    for (let index = 0; index < 5; index += 1) {
      const metadata = { step: index % 2, name: String(index % 2), 'a.b': index === 4 }
      await call('POST', `/sessions/s${index}`, { metadata })
    }
    await call('POST', '/sessions/s1/complete')
    const ids = async (query: string) =>
      (await call('GET', `/sessions?${query}`)).body.sessions.map((s: { session_id: string }) => s.session_id)
    t.same(await ids(''), ['s4', 's3', 's2', 's1', 's0'])
    t.same(await ids('status=completed'), ['s1'])
    t.same(await ids('status=active&metadata.step=1'), ['s3'])
    t.same(await ids('metadata.name=1'), [], 'the text is not the number')
    t.same(await ids('metadata.name=%221%22'), ['s3', 's1'])
    t.same(await ids('metadata.a.b=true'), ['s4'])
    const page = await call('GET', '/sessions?limit=3')
    t.same(findSchemaErrors(reads.SessionList, page.body), [])
    t.same(await ids(`limit=3&cursor=${page.body.next_cursor}`), ['s1', 's0'])
    t.equal((await call('GET', `/sessions?cursor=${page.body.next_cursor}`)).body.next_cursor, null)
    t.match(await call('GET', '/sessions?cursor=nonsense'), { status: 400, body: { param: 'cursor' } })
  })

  t.test('reports status, times and reward of a session from its creation to its end', async (t) => {
    let nowMs = 1_500
    const { call } = await startSessionsApi(t, undefined, { clock: () => nowMs })
    await call('POST', '/sessions/s', { sampling_params: { temperature: 0.5 } })
    t.same((await call('GET', '/sessions/s')).body, {
      session_id: 's',
      status: 'active',
      completed: false,
      created_at: 1.5,
      updated_at: 1.5,
      ended_at: null,
      ttl_s: null,
      metadata: {},
      sampling_params: { temperature: 0.5 },
      trust_agent: false,
      record: null,
      policy: {},
      edited_calls: null,
      continue_responses: null,
      limits: null,
      reward: null,
      reward_components: {},
      reward_agent_roles: {},
      reward_lines: {},
      reward_turns: {},
      labels: [],
      note: null,
      turn_labels: {},
      marked_turns: {},
      turn_count: 0,
      num_turns: 0,
      open_turns: 0,
      failed_turns: 0,
      inexact_turns: 0,
      sampled_tokens: 0,
      turns: [],
      prompts: {},
      changed_calls: {},
      trace_count: 0,
      aborted_turns: 0,
    })
    nowMs = 2_500
    const rewarded = await call('POST', '/sessions/s/reward', { reward: 1, components: { tests: 0.5 } })
    t.match(rewarded, { status: 200, body: { reward: 1, reward_components: { tests: 0.5 } } })
    t.same(findSchemaErrors(schemas.Session, rewarded.body), [])
    nowMs = 3_500
    const completed = await call('POST', '/sessions/s/complete', {})
    t.match(completed, { status: 200, body: { status: 'completed', completed: true, ended_at: 3.5 } })
    t.match(
      (await call('POST', '/sessions/s/abort')).body,
      { status: 'completed' },
      'its status does not change after its end',
    )
  })

  t.test('turns are rewarded by index or by id, and an unknown turn is rejected', async (t) => {
    const { call, store } = await startSessionsApi(t)
    await call('POST', '/sessions/s')
    for (const index of [0, 1, 2]) await recordTurn(store, 's', index)
    const { turns } = (await call('GET', '/sessions/s')).body
    const input = { reward: 1, turns: { 0: 0.5, [turns[2].turn_id]: -0.25 } }
    const rewarded = await call('POST', '/sessions/s/reward', input)
    t.match(rewarded, { status: 200, body: { reward: 1, reward_turns: { 0: 0.5, 2: -0.25 } } })
    t.same(findSchemaErrors(schemas.Session, rewarded.body), [])
    for (const name of ['3', '-1', '01', '1.0', 'none', '__proto__', '999999999']) {
      const body = `{"reward": 2, "turns": {${JSON.stringify(name)}: 1}}`
      const rejected = await call('POST', '/sessions/s/reward', body)
      t.match(rejected, { status: 404, body: { code: 'turn_not_found', param: 'turns' } }, name)
    }
    const twice = { reward: 2, turns: { 2: 1, [turns[2].turn_id]: 1 } }
    t.match(await call('POST', '/sessions/s/reward', twice), { status: 400, body: { param: 'turns' } })
    t.match(await call('POST', '/sessions/s/reward', { reward: 2, turns: { 0: 'x' } }), { status: 400 })
    t.match((await call('GET', '/sessions/s')).body, { reward: 1, reward_turns: { 0: 0.5, 2: -0.25 } })
    const rows = (await call('GET', '/sessions/s/trajectories')).body
    t.same(findSchemaErrors(schemas.Trajectories, rows), [])
    const spans = rows.trajectories.flatMap((row: { turns: unknown[] }) => row.turns)
    t.match(spans, [
      { index: 0, reward: 0.5 },
      { index: 1, reward: null },
      { index: 2, reward: -0.25 },
    ])
    const { reward, reward_turns } = (await call('POST', '/sessions/s/reset')).body
    t.strictSame([reward, reward_turns], [null, {}])
    const early = await call('POST', '/sessions/s/reward', { reward: 1, turns: { 0: 1 } })
    t.match(early, { status: 404, body: { code: 'turn_not_found' } }, 'the reset removed the turns')
  })

  t.test('people label a session and its turns, and every read returns the labels', async (t) => {
    const { call, store } = await startSessionsApi(t)
    await call('POST', '/sessions/a%2Fb')
    for (const index of [0, 1]) await recordTurn(store, 'a/b', index)
    const at = '/sessions/a%2Fb'
    const [first, second] = (await call('GET', at)).body.turns
    const turns = { [second.turn_id]: { labels: ['cheat'], note: 'edits the test' } }
    const marked = await call('PATCH', '/sessions/a/b', { labels: ['seen', 'odd one'], turns })
    const shown = {
      labels: ['seen', 'odd one'],
      note: null,
      marked_turns: { 1: { labels: ['cheat'], note: 'edits the test' } },
    }
    t.match(marked, { status: 200, body: { session_id: 'a/b', ...shown } })
    t.same(findSchemaErrors(schemas.Session, marked.body), [])
    t.match((await call('PATCH', at, { note: 'ask Kim' })).body, { ...shown, note: 'ask Kim' })
    const bare = { labels: { length: 0 }, note: null }
    const full = (await call('GET', at)).body
    t.match(full, { labels: shown.labels, note: 'ask Kim', turns: [bare, shown.marked_turns[1]] })
    t.same(findSchemaErrors(schemas.SessionWithTurns, full), [])
    t.match((await call('GET', `${at}/turns/1`)).body, shown.marked_turns[1])
    const tree = (await call('GET', `${at}/tree`)).body
    t.match(tree, { note: 'ask Kim', turns: [bare, shown.marked_turns[1]] })
    t.same(findSchemaErrors(reads.Tree, tree), [])
    const rows = (await call('GET', `${at}/trajectories`)).body
    t.same(findSchemaErrors(schemas.Trajectories, rows), [])
    const spans = rows.trajectories.flatMap((row: { turns: unknown[] }) => row.turns)
    t.match(rows.trajectories, [{ labels: shown.labels }])
    t.strictSame(
      spans.map(({ labels }: { labels: string[] }) => labels),
      [[], ['cheat']],
    )
    const traces = (await call('GET', `${at}/traces`)).body
    t.match(traces, [{ metadata: bare }, { metadata: shown.marked_turns[1] }])
    t.match((await call('GET', `/traces/${traces[1].trace_id}`)).body.metadata, { labels: ['cheat'] })
    const atif = (await call('GET', `${at}/export?format=atif`)).body
    t.match(atif.extra, { ...shown, note: 'ask Kim' })
    const trace = (await call('GET', `${at}/export?format=training_trace`)).body
    t.match(trace.turns, [
      { node_id: first.turn_id, metadata: { labels: { length: 0 } } },
      { metadata: { labels: ['cheat'] } },
    ])
    t.match((await call('GET', '/sessions?label=cheat&q=kim')).body.sessions, [{ session_id: 'a/b' }])
    t.same((await call('GET', '/sessions?label=che')).body.sessions, [])
    for (const body of [
      {},
      { labels: 'cheat' },
      { labels: ['a', 'a'] },
      { labels: [' a'] },
      { labels: [''] },
      { note: '' },
      { reward: 1 },
      { turns: { 0: {} } },
      { turns: { 0: { reward: 1 } } },
    ])
      t.match(await call('PATCH', at, body), { status: 400 }, JSON.stringify(body))
    const none = await call('PATCH', at, { labels: [], turns: { 2: { note: 'x' } } })
    t.match(none, { status: 404, body: { code: 'turn_not_found', param: 'turns' } })
    t.match(
      (await call('GET', `${at}/tree`)).body,
      { labels: shown.labels },
      'the rejected request changed nothing',
    )
    t.match(await call('PATCH', '/sessions/none', { note: 'x' }), { status: 404 })
    const { labels, note, marked_turns } = (await call('POST', `${at}/reset`)).body
    t.strictSame({ labels, note, marked_turns }, { labels: [], note: null, marked_turns: {} })
  })

  t.test('an aborted session is not completed', async (t) => {
    const { call } = await startSessionsApi(t)
    await call('POST', '/sessions/s')
    t.match((await call('POST', '/sessions/s/abort')).body, { status: 'aborted', completed: false })
  })

  t.test('a reset removes turns and reward and makes the session active again', async (t) => {
    const { call, store } = await startSessionsApi(t)
    await call('POST', '/sessions/s')
    await recordTurn(store, 's', 0)
    await call('POST', '/sessions/s/reward', { reward: 1 })
    await call('POST', '/sessions/s/complete')
    t.match((await call('GET', '/sessions/s')).body, { turns: { length: 1 } })
    t.match((await call('POST', '/sessions/s/reset')).body, {
      status: 'active',
      reward: null,
      turn_count: 0,
    })
    t.match((await call('GET', '/sessions/s')).body, { turns: { length: 0 } })
  })

  t.test('a deleted session is gone', async (t) => {
    const { call } = await startSessionsApi(t)
    await call('POST', '/sessions/s')
    t.same(await call('DELETE', '/sessions/s'), {
      status: 200,
      body: { session_id: 's', status: 'deleted', deleted: 1 },
    })
    t.match(await call('GET', '/sessions/s'), { status: 404 })
  })

  t.test('ending or deleting an unknown session succeeds, reports not_found, and creates none', async (t) => {
    const { call } = await startSessionsApi(t)
    for (const how of ['complete', 'abort']) {
      const body = { session_id: 'nobody', status: 'not_found', completed: false }
      t.same(await call('POST', `/sessions/nobody/${how}`), { status: 200, body })
    }
    const body = { session_id: 'nobody', status: 'not_found', deleted: 0 }
    t.same(await call('DELETE', '/sessions/nobody'), { status: 200, body })
    t.same((await call('GET', '/sessions')).body.sessions, [])
  })

  t.test('a read, reset or reward of an unknown session is a 404', async (t) => {
    const { call } = await startSessionsApi(t)
    for (const [method, path, body] of [
      ['GET', ''],
      ['GET', '/trajectories'],
      ['GET', '/wait'],
      ['POST', '/reset'],
      ['POST', '/reward', { reward: 1 }],
    ] as const) {
      t.same(await call(method, `/sessions/nobody${path}`, body), {
        status: 404,
        body: { detail: 'Session not found', code: 'session_not_found', param: null },
      })
    }
  })

  t.test(
    'completing a session with a request in flight aborts its turn and releases its engine',
    async (t) => {
      const { url, call, backend } = await startSessionsApi(t)
      const arrived = Promise.withResolvers<void>()
      backend.script = async function* (_request, signal) {
        arrived.resolve()
        yield await untilAborted(signal)
      }
      const response = fetch(`${url}/s/v1/chat/completions`, {
        method: 'POST',
        body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'hi' }] }),
      })
      await arrived.promise
      t.match((await call('POST', '/sessions/s/complete')).body, { status: 'completed', turn_count: 1 })
      const { body } = await call('GET', '/sessions/s')
      t.match(body.turns, [{ status: 'aborted', error: { code: 'turn_cancelled' } }])
      t.equal((await response).status, 409)
      t.same(backend.released, ['s'])
      const late = await call('POST', '/s/v1/chat/completions', {
        messages: [{ role: 'user', content: 'hi' }],
      })
      t.match(late, { status: 409, body: { error: { code: 'session_ended' } } })
    },
  )
})

t.test('waiting ends with the session', async (t) => {
  const { call } = await startSessionsApi(t)
  await call('POST', '/sessions/s')
  t.match((await call('GET', '/sessions/s/wait?timeout_s=0')).body, { timed_out: true, status: 'active' })
  const wait = call('GET', '/sessions/s/wait?timeout_s=600')
  await call('POST', '/sessions/s/complete')
  const { status, body } = await wait
  t.match({ status, body }, { status: 200, body: { timed_out: false, status: 'completed', completed: true } })
  t.same(findSchemaErrors(schemas.WaitedSession, body), [])
  t.match((await call('GET', '/sessions/s/wait')).body, { timed_out: false, status: 'completed' })
})

t.test('waiting ends with a 404 when the session is deleted', async (t) => {
  const { url, call, sessions } = await startSessionsApi(t)
  await call('POST', '/sessions/s')
  const waiting = onceWaiting(sessions)
  const wait = fetch(`${url}/sessions/s/wait`)
  await waiting
  await call('DELETE', '/sessions/s')
  t.equal((await wait).status, 404)
})

t.test('a wait ends when its client disconnects', async (t) => {
  const { url, call, sessions } = await startSessionsApi(t)
  await call('POST', '/sessions/s')
  const waiting = onceWaiting(sessions)
  const client = new AbortController()
  const wait = fetch(`${url}/sessions/s/wait?timeout_s=600`, { signal: client.signal })
  const signal = await waiting
  client.abort()
  await t.rejects(wait, { name: 'AbortError' })
  if (!signal.aborted) await once(signal, 'abort')
  t.match(signal.reason, { code: 'agent_gone' })
})

/** @returns the signal of the next wait, once it has started */
function onceWaiting(sessions: { wait: (...args: [string, number, AbortSignal]) => unknown }) {
  const { promise, resolve } = Promise.withResolvers<AbortSignal>()
  const wait = sessions.wait.bind(sessions)
  sessions.wait = (sessionId, timeoutMs, signal) => {
    resolve(signal)
    return wait(sessionId, timeoutMs, signal)
  }
  return promise
}
