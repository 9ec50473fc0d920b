/** Sessions as a forest, over HTTP: the code in the docs unpacks it into the rows of the trajectories. */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packTokenData } from '../../src/protocol/token-data/token-data.ts'
import { TokenForest } from '../../src/proxy/http/trainer/sessions/read-schemas.ts'
import { findSchemaErrors, recordTurn, type SessionsApi, startSessionsApi } from '../helpers/sessions-api.ts'

const DOCS = readFileSync(join(import.meta.dirname, '../../docs/http-api.md'), 'utf8')
const UNPACK = /```python forest\n(.*?)```/s.exec(DOCS)![1]!
const PROGRAM = `import json, sys\n${UNPACK}\nprint(json.dumps(list(rows_of(json.load(sys.stdin)))))`

const unpack = (forest: object) =>
  JSON.parse(execFileSync('python3', ['-c', PROGRAM], { input: JSON.stringify(forest) }).toString())

const array = (...ids: number[]) => Int32Array.from(ids)
const PROMPT = Array.from({ length: 300 }, (_, id) => id)

/** Records two samples of one prompt, each with two turns and a branch. */
async function recordGroup({ store, sessions }: SessionsApi): Promise<void> {
  for (const [i, sessionId] of ['a', 'b/c'].entries()) {
    await sessions.create({ sessionId, metadata: { task: 7 } })
    const sampled = {
      promptTokenIds: array(...PROMPT),
      completionTokenIds: array(1_000, 1_001 + i),
      completionLogprobs: Float64Array.of(-0.1, -1 / 3),
      weightVersionStart: '4',
      weightVersionEnd: '4',
      details: packTokenData({ advantages: [0.5, -0.5] }),
    }
    await recordTurn(store, sessionId, 0, sampled)
    for (const [index, bridgeToken] of [
      [1, 500],
      [2, 501],
    ] as const) {
      await recordTurn(store, sessionId, index, {
        promptTokenIds: array(...PROMPT, 1_000, 1_001 + i, bridgeToken),
        completionTokenIds: array(2_000 + index),
      })
    }
    await sessions.setReward(sessionId, { reward: i, components: {}, turns: { 1: 0.25 } })
    await sessions.complete(sessionId)
  }
  await sessions.create({ sessionId: 'other' })
  await recordTurn(store, 'other', 0, { exact: false, inexactReason: 'no ids', promptTokenIds: array() })
}

t.test(`an unpacked forest equals the rows of the sessions, and contains a common prompt once`, async (t) => {
  const api = await startSessionsApi(t)
  await recordGroup(api)
  const get = async (path: string) => (await api.call('GET', path)).body
  const getRows = async (id: string) =>
    (await get(`/sessions/${encodeURIComponent(id)}/trajectories`)).trajectories
  const all = await get('/forest?metadata.task=7')
  t.same(findSchemaErrors(TokenForest, all), [])
  t.same(
    all.sessions.map(({ session_id: id }: { session_id: string }) => id),
    ['a', 'b/c'],
  )
  for (const [forest, ids] of [
    [all, ['a', 'b/c']],
    [await get('/sessions/a/forest'), ['a']],
    [await get('/sessions/b%2Fc/forest'), ['b/c']],
    [await get('/sessions/other/forest'), ['other']],
  ] as const) {
    const expected = (await Promise.all(ids.map(getRows))).flat()
    const rows = unpack(forest).map(({ session_id: _id, leaf: _leaf, ...row }: Record<string, unknown>) => {
      const { prompt_tokens: _prompt, response_tokens: _response, ...rest } = row
      return rest
    })
    t.same(rows, expected, ids.join())
  }
  const prompts = all.nodes.filter(({ ids }: { ids: number[] }) => ids.length === PROMPT.length)
  t.equal(prompts.length, 1)
})

t.test(`a sampled node has the details of its tokens, once`, async (t) => {
  const api = await startSessionsApi(t)
  await recordGroup(api)
  const { nodes } = (await api.call('GET', '/sessions/a/forest?details=advantages,weight_versions')).body
  t.match(nodes[1], {
    session_id: 'a',
    turn_id: 'a-0',
    trained: true,
    reward: null,
    logprobs: [-0.1, -1 / 3],
    advantages: [0.5, -0.5],
    weight_versions: [{ version: '4', start: 0, end: 2 }],
  })
  t.match(nodes[3], { turn_id: 'a-1', reward: 0.25, advantages: null, weight_versions: null })
  t.strictSame(Object.keys(nodes[0]), ['parent', 'ids'])
  const every = (await api.call('GET', '/sessions/a/forest?details=all')).body.nodes[1]
  t.notOk('prompt_logprobs' in every || 'routed_experts' in every)
})

t.test('fields and selections that a forest does not support are rejected', async (t) => {
  const api = await startSessionsApi(t)
  await recordGroup(api)
  for (const [path, status, detail] of [
    ['/sessions/a/forest?details=routed_experts', 400, /only available in rows/],
    ['/sessions/a/forest?details=nothing', 400, /not a detail/],
    ['/sessions/gone/forest', 404, /not found/],
    ['/forest?select=last', 400, /select/],
  ] as const)
    t.match(await api.call('GET', path), { status, body: { detail } })
  for (let index = 0; index < 127; index += 1) await api.sessions.create({ sessionId: `more-${index}` })
  t.match(await api.call('GET', '/forest'), { status: 400, body: { detail: /More than 128 sessions/ } })
  t.match(await api.call('GET', '/forest?metadata.task=7'), { status: 200, body: { rows: { length: 4 } } })
})
