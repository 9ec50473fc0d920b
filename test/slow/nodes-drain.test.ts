/** The drain of a node through which other nodes' responses run. */
import t from 'tap'
import { KEYS } from '../helpers/keys.ts'
import { agentKey, sendRequest, startNodePair } from '../helpers/node-pair.ts'
import { noPostgres } from '../helpers/postgres.ts'
import { startProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'

const skip = noPostgres
const ADMIN = { authorization: `Bearer ${KEYS.adminKeys[0]}` }

t.test('a drain waits for forwarded responses, and not for streams that never end', { skip }, async (t) => {
  const { owner, other, open, engine, db } = await startNodePair(t)
  const impatient = await startProxy(t, {
    ...KEYS,
    db,
    engineUrls: [engine.url],
    durability: 'process',
  })
  const key = await open('s')
  await open('cut')
  const live = await fetch(`${other.url}/sessions/s/live`, { headers: ADMIN })
  const forwarded = sendRequest(other, 's', 'wait 7000 ms', key)
  const cut = sendRequest(impatient, 'cut', 'wait 20000 ms', agentKey('cut'))
  cut.catch(() => {})
  await until(() => engine.requests.filter(({ text }) => text.includes('wait')).length === 2)

  const startedAt = performance.now()
  const stopped = other.server.stop(60_000)
  await until(async () => (await fetch(`${other.url}/health`)).status === 503)
  const late = await sendRequest(other, 'late', 'hello', agentKey('late'))
  t.equal(late.status, 200, 'a draining node without turns of its own forwards requests that still arrive')
  t.same(
    await impatient.server.stop(200),
    { drained: false },
    'a forwarded response exceeded the grace period',
  )
  await t.rejects(cut)
  t.match(await forwarded, { status: 200, text: 'answer to wait 7000 ms' })
  t.same(await stopped, { drained: true })
  t.ok(performance.now() - startedAt < 30_000, 'the forwarded /live stream was not waited for')
  await live.text().catch(() => {})
  t.match((await owner.get('/sessions/s')).turns, [{ status: 'completed' }, { status: 'completed' }])
})
