/**
 * A rollout through the types that openapi-typescript generates from openapi.json, and openapi-fetch, which uses them.
 */
import assert from 'node:assert/strict'
import createClient from 'openapi-fetch'
import type { paths } from './api.d.ts'

const [baseUrl, key] = process.argv.slice(2)
const proxy = createClient<paths>({ baseUrl: baseUrl!, headers: { authorization: `Bearer ${key}` } })
const sessionId = 'task/of typescript:0'
const path = { params: { path: { sessionId } } }

const created = await proxy.POST('/sessions', { body: { session_id: sessionId, metadata: { a: 1 } } })
const status: 'created' | 'exists' | undefined = created.data?.status
assert.equal(status, 'created')
// The document declares which bodies are optional.
assert.equal((await proxy.POST('/sessions')).data?.status, 'created')

const response = await proxy.POST('/{sessionId}/v1/chat/completions', {
  ...path,
  body: { model: 'x', messages: [{ role: 'user', content: 'hi' }], max_tokens: 4 },
})
assert.ok(typeof response.data === 'object' && response.data.object === 'chat.completion')
await proxy.POST('/sessions/{sessionId}/reward', { ...path, body: { reward: 0.5 } })
const ended = await proxy.POST('/sessions/{sessionId}/complete', path)
assert.equal(ended.data?.completed, true)

const full = await proxy.GET('/sessions/{sessionId}', path)
const ids: number[][] | undefined = full.data?.turns.map((turn) => turn.completion_token_ids ?? [])
const sampled = ids?.[0]?.length ?? 0
assert.ok(sampled > 0)
const { data } = await proxy.GET('/sessions/{sessionId}/trajectories', {
  params: { ...path.params, query: { select: 'longest' } },
})
const mask: (0 | 1)[] | undefined = data?.trajectories[0]?.response_mask
assert.deepEqual(mask, Array(sampled).fill(1))
assert.equal(data?.reward, 0.5)

const rejected = await proxy.GET('/sessions/{sessionId}/turns/{index}', {
  params: { path: { sessionId, index: '7' } },
})
assert.equal(rejected.error?.code, 'turn_not_found')
// @ts-expect-error ids are texts
await proxy.POST('/sessions', { body: { session_id: 7 } })
console.log('done')
