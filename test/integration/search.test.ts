/** Search for turns by their messages and completions, over HTTP. */
import t from 'tap'
import { createAgentKey, createRunKey } from '../../src/proxy/http/access/agent-key.ts'
import { KEYS } from '../helpers/keys.ts'
import { recordTurn, startSessionsApi } from '../helpers/sessions-api.ts'

type Hit = {
  session_id: string
  index: number
  found_in: string
  before: string
  match: string
  after: string
}

t.test(`a search returns the positions of a text, page by page`, async (t) => {
  const api = await startSessionsApi(t)
  for (const sessionId of ['a', 'b']) {
    await api.sessions.create({ sessionId, metadata: { task: sessionId } })
    for (const index of [0, 1])
      await recordTurn(api.store, sessionId, index, {
        completionText: `${sessionId}${index}: now assert True holds`,
      })
  }
  await api.sessions.setReward('a', { reward: 1, components: {} })
  const found = async (query: string) => (await api.call('GET', `/search?${query}`)).body
  const all = await found('text=ASSERT%20true')
  t.strictSame(
    all.hits.map(({ session_id: id, index, reward }: Hit & { reward: number }) => [id, index, reward]),
    [
      ['b', 1, null],
      ['b', 0, null],
      ['a', 1, 1],
      ['a', 0, 1],
    ],
  )
  t.match(all.hits[0], {
    status: 'active',
    found_in: 'completion',
    before: 'b1: now ',
    match: 'assert True',
  })
  t.match(all.hits[0], { after: ' holds', turn_id: String, started_at: Number })
  t.equal(all.next_cursor, null)
  const first = await found('text=assert&limit=1&per_session=1')
  t.match(first.hits, [{ session_id: 'b', index: 1 }])
  const rest = await found(`text=assert&limit=9&per_session=1&cursor=${first.next_cursor}`)
  t.match(rest.hits, [
    { session_id: 'b', index: 0 },
    { session_id: 'a', index: 1 },
  ])
  t.strictSame((await found('text=assert&metadata.task=b')).hits.length, 2)
  t.strictSame((await found('text=assert&reward_min=1&per_session=1')).hits.length, 1)
  t.match(await api.call('GET', '/search?text=as'), { status: 400 }, 'the text is too short for a search')
  t.match(await api.call('GET', '/search?text=assert&cursor=bm8'), { status: 400 })
  t.match(await api.call('GET', '/search'), { status: 400 })
})

t.test('a search returns only sessions that its key may read', async (t) => {
  const { url, sessions, store } = await startSessionsApi(t, undefined, {}, { keys: KEYS })
  const [secret] = KEYS.agentKeySecrets as [string]
  for (const sessionId of ['runs/one/a', 'runs/two/b', 'c']) {
    await sessions.create({ sessionId })
    await recordTurn(store, sessionId, 0, { completionText: 'a secret word' })
  }
  const search = async (key: string | undefined, query = '') => {
    const headers: Record<string, string> = key === undefined ? {} : { authorization: `Bearer ${key}` }
    const response = await fetch(`${url}/search?text=secret${query}`, { headers })
    const { hits } = (await response.json()) as { hits?: Hit[] }
    return hits?.map(({ session_id: id }) => id) ?? response.status
  }
  t.strictSame(await search(KEYS.adminKeys[0]), ['c', 'runs/two/b', 'runs/one/a'])
  t.strictSame(await search(KEYS.viewKeys[0], '&run=two'), ['runs/two/b'])
  t.strictSame(await search(createRunKey(secret, 'one')), ['runs/one/a'], 'a run finds its own sessions')
  t.equal(await search(createRunKey(secret, 'one'), '&run=two'), 403)
  t.equal(await search(createAgentKey(secret, 'c')), 403, 'an agent may not search, not even its own session')
  t.equal(await search(KEYS.workerKeys[0]), 403)
  t.equal(await search(KEYS.metricsKeys[0]), 403)
  t.equal(await search(undefined), 401)
})
