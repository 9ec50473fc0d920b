/** The official SDKs' own retries receive the response of their original attempt, sampled once and trained once. */
import t from 'tap'
import { type LossyFetch, lossyFetch } from '../helpers/lossy-fetch.ts'
import { DIALECTS, getTurns, readText, startLocal, testRetries } from './retried-requests.ts'

// test/slow has the other three.
testRetries(t, 'local, chat mode')

t.test('a restarted proxy responds to a retry with the committed response', async (t) => {
  const db = `${t.testdir({})}/proxy.db`
  const before = await startLocal(t, { db })
  const originals: Record<string, LossyFetch> = {}
  for (const [name, sendRequest] of Object.entries(DIALECTS)) {
    for (const stream of [true, false]) {
      const sessionId = `${name}-${stream}`
      const lossy = lossyFetch([])
      originals[sessionId] = lossy
      await sendRequest({ baseUrl: before.baseUrl(sessionId), fetch: lossy.fetch }, stream)
    }
  }
  await before.server.stop(0)
  const after = await startLocal(t, { db })
  for (const [name, sendRequest] of Object.entries(DIALECTS)) {
    for (const stream of [true, false]) {
      const sessionId = `${name}-${stream}`
      const second = lossyFetch([])
      const headers = { 'x-stainless-retry-count': '1' }
      await sendRequest({ baseUrl: after.baseUrl(sessionId), fetch: second.fetch, headers }, stream)
      t.equal(readText(second.bodies[0]!), readText(originals[sessionId]!.bodies[0]!), sessionId)
      t.equal((await getTurns(after, sessionId)).length, 1, sessionId)
    }
  }
})

t.test('samples of one prompt are never merged, neither concurrent nor sequential ones', async (t) => {
  const proxy = await startLocal(t, {})
  const sendRequest = () => DIALECTS.chat!({ baseUrl: proxy.baseUrl('s'), fetch }, true)
  await Promise.all([sendRequest(), sendRequest(), sendRequest()])
  await sendRequest()
  t.equal((await getTurns(proxy, 's')).length, 4)
  const headers = { 'x-stainless-retry-count': '1' }
  await DIALECTS.chat!({ baseUrl: proxy.baseUrl('s'), fetch, headers }, true)
  t.equal((await getTurns(proxy, 's')).length, 5, 'a retry that matches several samples matches none')
})

t.test('an idempotency key identifies the request among samples of one prompt', async (t) => {
  const proxy = await startLocal(t, {})
  const sendRequest = (key: string, lossy: LossyFetch) =>
    DIALECTS.chat!(
      { baseUrl: proxy.baseUrl('s'), fetch: lossy.fetch, headers: { 'idempotency-key': key } },
      false,
    )
  const [one, two] = [lossyFetch([]), lossyFetch(['unread'])]
  await Promise.all([sendRequest('a', one), sendRequest('b', two)])
  t.equal(two.bodies[0], two.bodies[1])
  t.not(one.bodies[0], two.bodies[0])
  t.equal((await getTurns(proxy, 's')).length, 2)
})

t.test('an agent with a session key gets its response again, and its turns are unchanged', async (t) => {
  const proxy = await startLocal(t, {
    adminKeys: ['admin-key-0123456789'],
    agentKeySecrets: ['s'.repeat(32)],
  })
  const { agent_key: apiKey } = await proxy.post('/sessions', { session_id: 's' })
  const lossy = lossyFetch(['unread'])
  await DIALECTS.chat!({ baseUrl: proxy.baseUrl('s'), fetch: lossy.fetch, apiKey }, false)
  t.equal(lossy.bodies[0], lossy.bodies[1])
  t.match(await getTurns(proxy, 's'), [{ status: 'completed', retry_count: 0 }])
})

t.test('an ended session redelivers nothing', async (t) => {
  const proxy = await startLocal(t, {})
  const lossy = lossyFetch([])
  await DIALECTS.chat!({ baseUrl: proxy.baseUrl('s'), fetch: lossy.fetch }, false)
  await proxy.post('/sessions/s/complete')
  const headers = { 'x-stainless-retry-count': '1' }
  const rejected = DIALECTS.chat!({ baseUrl: proxy.baseUrl('s'), fetch, headers }, false)
  await t.rejects(rejected, { code: 'session_ended' })
})
