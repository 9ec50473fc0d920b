/** Data that trainers add to sampled tokens afterwards: what is rejected, and where it is returned. */
import t from 'tap'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { startEngine } from '../helpers/engine.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { readTensors } from '../helpers/read-tensors.ts'
import { joinWorker, startRelayProxy, untilWorkers } from '../helpers/relay-rig.ts'
import { completeResponse, respond } from '../helpers/scripted-backend.ts'
import { recordTurn, type SessionsApi, startSessionsApi } from '../helpers/sessions-api.ts'

/** Records two turns of one row: prompt 1 2, sampled 3 4; prompt 1 2 3 4 5, sampled 6. */
async function recordTwoTurns({ store, call }: SessionsApi): Promise<void> {
  await call('POST', '/sessions/s')
  const sampled = { completionTokenIds: Int32Array.of(3, 4), completionLogprobs: Float64Array.of(-0.5, -1) }
  await recordTurn(store, 's', 0, sampled)
  const next = { promptTokenIds: Int32Array.of(1, 2, 3, 4, 5), completionTokenIds: Int32Array.of(6) }
  await recordTurn(store, 's', 1, next)
}

const getRow = async ({ call }: SessionsApi, details: string) =>
  (await call('GET', `/sessions/s/trajectories?details=${details}`)).body.trajectories[0]

t.test(`a trainer's numbers are returned at their tokens, and the latest ones count`, async (t) => {
  const api = await startSessionsApi(t)
  await recordTwoTurns(api)
  const turns = { 0: { advantages: [0.1, 7] }, 's-1': { advantages: [null], ratios: [1.5] } }
  t.match(await api.call('POST', '/sessions/s/details', { turns }), {
    status: 200,
    body: { session_id: 's', turns: 2 },
  })
  await api.call('POST', '/sessions/s/details', { turns: { 's-0': { advantages: [-0.25] } } })
  const row = await getRow(api, 'advantages,ratios,entropies')
  t.same(row.response_ids, [3, 4, 5, 6])
  t.same(row.advantages, [-0.25, null, null, null], 'fewer numbers belong to the first tokens')
  t.same(row.ratios, [null, null, null, 1.5])
  t.equal(row.entropies, null)
  const tensors = await readTensors(`${api.url}/sessions/s/rows/0/tokens`)
  t.same([...tensors.ratios!], [NaN, NaN, NaN, NaN, NaN, 1.5])
  t.notOk('entropies' in tensors)
  const { teacher, teacher_logprobs } = await getRow(api, 'all')
  t.same([teacher, teacher_logprobs], [null, null])
})

t.test(`invalid numbers and unknown turns are rejected, and nothing is recorded`, async (t) => {
  const api = await startSessionsApi(t)
  await recordTwoTurns(api)
  const good = { advantages: [1] }
  const rejected = [
    [{ turns: { 1: good, 9: good } }, 404, /no turn '9'/],
    [{ turns: { 1: good, gone: good } }, 404, /no turn 'gone'/],
    [{ turns: { '': good } }, 404, /no turn ''/],
    [{ turns: { 1: good, 's-1': good } }, 400, /turn 1 twice/],
    [{ turns: { 1: good, 0: { ratios: [1, 2, 3] } } }, 400, /'ratios' of turn 0 has 3 numbers for 2 tokens/],
    [{ turns: { 1: good, 0: { teacher_logprobs: [-1] } } }, 400, /requires 'teacher'/],
    [{ turns: { 1: { advantages: ['1'] } } }, 400, /advantages/],
    [{ turns: { 1: { prompt_logprobs: [1] } } }, 400, /prompt_logprobs/],
    [{}, 400, /turns/],
  ] as const
  for (const [body, status, detail] of rejected)
    t.match(await api.call('POST', '/sessions/s/details', body), { status, body: { detail } })
  t.match(await api.call('POST', '/sessions/gone/details', { turns: {} }), { status: 404 })
  t.equal((await getRow(api, 'advantages')).advantages, null)
})

t.test(`an engine that reports no logprobs, or those of other tokens, scores nothing`, async (t) => {
  const api = await startSessionsApi(t)
  await recordTwoTurns(api)
  const table = (ids: number[], logprobs = ids.map(() => -1)) => ({
    start: 0,
    counts: [0, ...ids.map(() => 1)],
    ids,
    logprobs,
  })
  const rejected = [
    [undefined, /does not return logprobs of a prompt/],
    [table([2, 3, 4, 5, 7]), /logprob of token 5/],
    [table([2, 3, 4, 5, 6], [-1, -1, -1, -1, Number.NaN]), /logprob of token 5/],
    [table([2, 3, 4, 5]), /returned the logprobs of 3 of 4 tokens/],
  ] as const
  for (const [data, detail] of rejected) {
    const [start, , , end] = completeResponse()
    const details = data && { prompt_logprobs: data }
    api.backend.script = () => respond([start!, { type: 'delta', ...(details && { details }) }, end!])
    const scored = await api.call('POST', '/sessions/s/score', { model: 'wise' })
    t.match(scored, { status: 502, body: { code: 'engine_failed', detail } })
  }
  const [request] = api.backend.requests
  t.match(request, { mustServe: true, body: { model: 'wise', max_tokens: 1 }, record: { promptLogprobs: 0 } })
  t.same([...request!.promptTokenIds!], [1, 2, 3, 4, 5, 6], 'the engine reads the complete row once')
  t.not(request!.sessionId, 's', 'and the session stays with its engine')
  t.same(
    api.backend.released,
    api.backend.requests.map(({ sessionId }) => sessionId),
  )
  t.equal((await getRow(api, 'teacher_logprobs')).teacher_logprobs, null)
})

t.test('inexact rows are omitted and counted', async (t) => {
  const api = await startSessionsApi(t)
  await api.call('POST', '/sessions/s')
  await recordTurn(api.store, 's', 0, { exact: false, inexactReason: 'no ids' })
  t.match(await api.call('POST', '/sessions/s/score'), {
    status: 200,
    body: { teacher: null, rows: 0, turns: 0, tokens: 0, left_out: { inexact: 1, images: 0 } },
  })
  t.match(await api.call('POST', '/sessions/gone/score'), { status: 404 })
  t.equal(api.backend.requests.length, 0)
})

/** Sends a conversation of two turns and a branch. */
async function runConversation(proxy: TestProxy): Promise<void> {
  const user = (content: string) => ({ role: 'user', content })
  const sendRequest = async (messages: object[]) => {
    const body = { model: 'embedded', messages, max_tokens: 12, temperature: 1 }
    const { choices } = await proxy.post('/s/v1/chat/completions', body)
    return [...messages, choices[0].message]
  }
  const first = await sendRequest([user('What is a lake?')])
  await sendRequest([...first, user('And a river?')])
  await sendRequest([user('Something else.')])
}

for (const mode of ['local', 'relay'] as const) {
  t.test(`${mode}: a teacher's logprobs equal those of a direct request to the engine`, async (t) => {
    const { url } = await startEngine(t)
    const options = { engineUrls: [url], engineKind: 'vllm' as const }
    const proxy = mode === 'local' ? await startProxy(t, options) : await startRelayProxy(t)
    if (mode === 'relay') {
      joinWorker(t, { proxyUrls: [proxy.url], workerId: 'w', ...options })
      await untilWorkers(proxy, 'w')
    }
    await runConversation(proxy)
    const scored = await proxy.post('/sessions/s/score', { teacher: 'wise' })
    const { trajectories: rows } = await proxy.get('/sessions/s/trajectories?details=teacher_logprobs')
    t.match(scored, { session_id: 's', teacher: 'wise', rows: rows.length, turns: 3 })
    const client = createVllmClient({ url })
    t.teardown(() => client.close())
    for (const row of rows) {
      t.equal(row.teacher, 'wise')
      for (const { start, end } of row.turns) {
        const ids = PromptIds.from([...row.prompt_ids, ...row.response_ids.slice(0, start)]).toArray()
        const completion = Int32Array.from(row.response_ids.slice(start, end))
        const request = { promptTokenIds: ids, completionTokenIds: completion, alternatives: 0 }
        const { tokens } = await client.score!(request, AbortSignal.timeout(10_000))
        t.same(
          row.teacher_logprobs.slice(start, end),
          tokens.map(({ logprob }) => logprob),
        )
      }
      const untrained = row.response_mask.flatMap((bit: number, index: number) => (bit === 0 ? [index] : []))
      t.ok(
        untrained.every((index: number) => row.teacher_logprobs[index] === null),
        'tokens that are not trained have no logprobs',
      )
    }
  })
}
