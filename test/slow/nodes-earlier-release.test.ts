/**
 * Nodes of the previous release beside nodes of this one: each forwards to the other, and no turn is lost or
 * superseded.
 */
import { join } from 'node:path'
import t from 'tap'
import { extractRelease, getSkipReason } from '../helpers/earlier-release.ts'
import { startEngine } from '../helpers/engine.ts'
import { freePort } from '../helpers/free-port.ts'
import { Node, readJson } from '../helpers/nodes-rig.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { joinWorker } from '../helpers/relay-rig.ts'
import { until } from '../helpers/until.ts'

/** The last commit whose nodes forward unsigned requests, and infer a delivery from the state of a connection. */
const COMMIT = 'c7762b7f'
const TURNS = 6

async function sendRequest(url: string, sessionId: string): Promise<number> {
  const response = await fetch(`${url}/${sessionId}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'embedded',
      max_tokens: 8,
      messages: [{ role: 'user', content: 'Go on.' }],
    }),
  })
  await response.text()
  return response.status
}

t.test('old and new nodes share sessions', { skip: noPostgres || getSkipReason(COMMIT) }, async (t) => {
  const server = await PostgresServer.start({ fsync: 'on' })
  t.teardown(() => server.end())
  const env = { DATABASE_URL: await server.newDatabase() }
  const launcher = extractRelease(COMMIT, join(t.testdir({}), 'old'))
  const [old, recent] = [new Node(t, await freePort(), env), new Node(t, await freePort(), env)]
  await old.start(launcher)
  await recent.start()
  const engine = await startEngine(t)
  const proxyUrls = [old.url, recent.url]
  joinWorker(t, { proxyUrls, engineUrls: [engine.url], workerId: 'w' })
  for (const url of proxyUrls)
    await until(async () => (await readJson(`${url}/health/workers`)).healthy === 1)
  for (const [name, owner, other] of [
    ['forwarded-by-the-old-node', recent, old],
    ['forwarded-by-the-new-node', old, recent],
  ] as const) {
    t.equal(await sendRequest(owner.url, name), 200)
    for (let turn = 1; turn < TURNS; turn += 1)
      t.equal(await sendRequest(other.url, name), 200, `${name} ${turn}`)
    const { trajectories, excluded_turns: excluded } = await readJson(
      `${other.url}/sessions/${name}/trajectories`,
    )
    t.equal(trajectories.length, TURNS, `${name}: equal requests are samples`)
    t.equal(excluded.superseded, 0)
    t.equal((await fetch(`${other.url}/sessions/${name}/complete`, { method: 'POST' })).status, 200)
  }
  const turns = await Promise.all(proxyUrls.map((url) => readJson(`${url}/admin/turns`)))
  t.strictSame(
    turns.map(({ total }) => total),
    [0, 0],
    'each forwards to the other',
  )
})
