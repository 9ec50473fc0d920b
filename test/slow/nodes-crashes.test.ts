/**
 * A request that arrives at another node than its session's owner: the outcome of its response if that node crashes
 * while forwarding it.
 */
import t, { type Test } from 'tap'
import { DatabaseLink } from '../helpers/database-link.ts'
import { startEngine } from '../helpers/engine.ts'
import { freePort } from '../helpers/free-port.ts'
import { Node, readJson } from '../helpers/nodes-rig.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { joinWorker } from '../helpers/relay-rig.ts'
import { IS_FULL, ONLY_FULL } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'

/** Created by three nodes concurrently. */
const SESSIONS = IS_FULL ? 20 : 8

const BODY = { model: 'embedded', max_tokens: 12 }

/** Sends a request as an agent that does not declare retries. @returns the turn */
async function send(
  url: string,
  sessionId: string,
  content: string,
  headers: Record<string, string> = {},
  fields: object = {},
): Promise<string> {
  const response = await fetch(`${url}/${sessionId}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', connection: 'close', ...headers },
    body: JSON.stringify({ ...BODY, ...fields, messages: [{ role: 'user', content }] }),
  })
  const body = await response.text()
  if (!response.ok) throw new Error(`${response.status} ${body}`)
  const { id } = JSON.parse(body) as { id: string }
  return id.replace('chatcmpl-', '')
}

const server = noPostgres === false ? await PostgresServer.start({ fsync: 'on' }) : undefined
t.teardown(() => server?.end())

interface Turn {
  turn_id: string
  status: string
}

/** Three nodes with an engine. */
interface Rig {
  nodes: [owner: Node, forwarder: Node, other: Node]
  /** How the other nodes reach the first one. */
  ownerLink: DatabaseLink
  ownerPort: number
  /** How a worker reaches the engine. */
  engineLink: DatabaseLink
  engineUrls: string[]
}

let rig: Rig | undefined

/** Starts the rig that all tests share: a start of three nodes costs more than a test. */
async function startRig(): Promise<Rig> {
  const env = { DATABASE_URL: await server!.newDatabase() }
  const port = await freePort()
  const ownerLink = new DatabaseLink(port)
  t.teardown(() => ownerLink.close())
  const ownerPort = await ownerLink.open()
  const nodes: Rig['nodes'] = [
    new Node(t, port, { ...env, LLM_PROXY_NODE_URL: `http://127.0.0.1:${ownerPort}` }),
    new Node(t, await freePort(), env),
    new Node(t, await freePort(), env),
  ]
  const engine = await startEngine(t)
  const engineLink = new DatabaseLink(Number(new URL(engine.url).port))
  const engineUrls = [`http://127.0.0.1:${await engineLink.open()}`]
  t.teardown(() => engineLink.close())
  return { nodes, ownerLink, ownerPort, engineLink, engineUrls }
}

let sessions = 0

/** Starts a session that the first node owns, after restarting the nodes that the last test ended. */
async function setUp(t: Test) {
  rig ??= await startRig()
  const { nodes, ownerLink, ownerPort, engineLink, engineUrls } = rig
  engineLink.isPaused = false
  ownerLink.isPaused = false
  if (!ownerLink.isOpen) await ownerLink.open(ownerPort)
  await Promise.all(nodes.map((node) => node.isRunning || node.start()))
  // A new worker per test: the backoff of one that was disconnected grows with each attempt.
  joinWorker(t, { proxyUrls: nodes.map(({ url }) => url), engineUrls, workerId: `w${sessions}` })
  for (const { url } of nodes)
    await until(async () => (await readJson(`${url}/health/workers`)).healthy === 1)
  const [owner, forwarder, other] = nodes
  const sessionId = `s${sessions++}`
  const sendRequest = (
    url: string,
    content: string,
    headers: Record<string, string> = {},
    fields: object = {},
  ) => send(url, sessionId, content, headers, fields)
  await sendRequest(owner.url, 'Begin.')
  const turns = async (): Promise<Turn[]> => (await readJson(`${other.url}/sessions/${sessionId}`)).turns
  const trained = async () => {
    const { trajectories, excluded_turns: excluded } = await readJson(
      `${other.url}/sessions/${sessionId}/trajectories`,
    )
    const rows = trajectories as { turns: { turn_id: string }[] }[]
    return { ids: rows.flatMap(({ turns }) => turns.map((turn) => turn.turn_id)), excluded }
  }
  return { owner, forwarder, other, engineLink, ownerLink, sendRequest, turns, trained }
}

t.test(
  'a node crashes while it forwards a response: a second attempt supersedes it',
  { skip: noPostgres },
  async (t) => {
    const { forwarder, other, engineLink, turns, trained, sendRequest } = await setUp(t)
    engineLink.isPaused = true
    const rejected = t.rejects(sendRequest(forwarder.url, 'Go on.'))
    await until(async () => (await turns()).some(({ status }) => status === 'open'))
    forwarder.signal('SIGSTOP')
    engineLink.isPaused = false
    const committed = await until(async () =>
      (await turns()).find(({ status }, index) => index === 1 && status === 'completed'),
    )
    await forwarder.kill()
    await rejected
    const again = await sendRequest(other.url, 'Go on.')
    t.not(again, committed.turn_id, 'the agent did not declare a retry')
    const { ids, excluded } = await trained()
    t.ok(ids.includes(again))
    t.notOk(ids.includes(committed.turn_id))
    t.equal(excluded.superseded, 1)
  },
)

t.test(
  'first requests that arrive at several nodes at once, and a drained node',
  { skip: noPostgres },
  async (t) => {
    const { owner, forwarder, other, turns, trained, sendRequest } = await setUp(t)
    await t.test('first requests of a session are all served', async (t) => {
      for (let session = 0; session < SESSIONS; session += 1) {
        const id = `new-${session}`
        await t.resolves(
          Promise.all([owner, forwarder, other].map(({ url }, node) => send(url, id, `From node ${node}.`))),
        )
        const { turns } = await readJson(`${owner.url}/sessions/${id}`)
        t.strictSame(
          turns.map(({ status }: Turn) => status),
          ['completed', 'completed', 'completed'],
        )
      }
    })
    await t.test(
      'a node that drains or keeps running has delivered its responses: equal requests are samples',
      async (t) => {
        const responses = [await sendRequest(forwarder.url, 'Go on.'), await sendRequest(other.url, 'Go on.')]
        t.equal(await forwarder.drain(), 0)
        responses.push(await sendRequest(owner.url, 'Go on.'), await sendRequest(other.url, 'Go on.'))
        t.equal((await turns()).length, 5)
        const { ids, excluded } = await trained()
        t.strictSame(
          responses.filter((id) => !ids.includes(id)),
          [],
        )
        t.notOk(excluded.superseded)
      },
    )
  },
)

t.test(
  'a request right after its owner was killed waits for the lease, and is served',
  { skip: noPostgres },
  async (t) => {
    const { owner, forwarder, other, sendRequest, turns } = await setUp(t)
    // This node has an open connection to the owner, the other one has none.
    await sendRequest(forwarder.url, 'Go on.')
    await owner.kill()
    const [first, second] = await Promise.all([
      sendRequest(forwarder.url, 'More.'),
      sendRequest(other.url, 'Other.'),
    ])
    t.match(first, /^[0-9a-f-]{36}$/)
    t.match(second, /^[0-9a-f-]{36}$/)
    t.strictSame(
      (await turns()).map(({ status }) => status),
      ['completed', 'completed', 'completed', 'completed'],
    )
  },
)

t.test('a request in flight at a killed owner is served by the next one', { skip: noPostgres }, async (t) => {
  const { owner, forwarder, engineLink, turns, sendRequest } = await setUp(t)
  engineLink.isPaused = true
  const response = sendRequest(forwarder.url, 'Go on.')
  await until(async () => (await turns()).some(({ status }) => status === 'open'))
  await owner.kill()
  engineLink.isPaused = false
  const turnId = await response
  t.match(await turns(), [
    { status: 'completed' },
    { status: 'interrupted' },
    { status: 'completed', turn_id: turnId },
  ])
})

const CLIENTS: [client: string, headers: Record<string, string>, isOnlyFull: boolean][] = [
  ['that does not count its attempts', {}, false],
  ['that counts its attempts', { 'x-stainless-retry-count': '0' }, true],
  ['that sends an idempotency key', { 'idempotency-key': 'k' }, true],
]

/** Kills the owner of a session after it has committed a turn whose response it could not send. */
async function crashBeforeResponse(t: Test, headers: Record<string, string>, fields: object = {}) {
  const { owner, forwarder, engineLink, ownerLink, turns, trained, sendRequest } = await setUp(t)
  engineLink.isPaused = true
  const response = sendRequest(forwarder.url, 'Go on.', headers, fields)
  await until(async () => (await turns()).some(({ status }) => status === 'open'))
  ownerLink.isPaused = true
  engineLink.isPaused = false
  const committed = await until(async () => {
    const [, ...later] = await turns()
    return later.length > 0 && later.every(({ status }) => status === 'completed') && later
  })
  await owner.kill()
  ownerLink.close()
  const turnId = await response
  return { committed: committed.map(({ turn_id }) => turn_id), turnId, turns, trained }
}

for (const [client, headers, isOnlyFull] of CLIENTS) {
  t.test(
    `an owner crashes after a commit, before its response: the client, ${client}, gets what was committed`,
    { skip: noPostgres || (isOnlyFull && ONLY_FULL) },
    async (t) => {
      const { committed, turnId, turns, trained } = await crashBeforeResponse(t, headers)
      t.strictSame([turnId], committed)
      t.equal((await turns()).length, 2)
      const { ids, excluded } = await trained()
      t.ok(ids.includes(turnId))
      t.notOk(excluded.superseded)
    },
  )
}

t.test(
  'an owner crashes after it has committed several choices: they are sampled again, and superseded',
  { skip: noPostgres },
  async (t) => {
    const { committed, turnId, turns, trained } = await crashBeforeResponse(t, {}, { n: 2 })
    t.equal(committed.length, 2)
    t.notOk(committed.includes(turnId))
    t.equal((await turns()).length, 5)
    const { ids, excluded } = await trained()
    t.ok(ids.includes(turnId))
    t.strictSame(
      committed.filter((id) => ids.includes(id)),
      [],
    )
    t.equal(excluded.superseded, 2)
  },
)
