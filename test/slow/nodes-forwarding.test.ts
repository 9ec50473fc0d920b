/**
 * Requests that arrive at another node than their session's owner: where they go, who gets the responses, which headers
 * are trusted.
 */
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { KEYS } from '../helpers/keys.ts'
import {
  agentKey,
  chatBody,
  encodeChunked,
  type NodePair,
  runKey,
  sendRequest,
  startNodePair,
} from '../helpers/node-pair.ts'
import { noPostgres } from '../helpers/postgres.ts'
import { RawConnection, sendRaw } from '../helpers/raw-connection.ts'

const [ADMIN] = KEYS.adminKeys
const [VIEW] = KEYS.viewKeys
const skip = noPostgres
const pair = startPair()

async function startPair(): Promise<NodePair> {
  return skip ? (undefined as never) : startNodePair(t)
}

const getStatus = (response: string) => /^HTTP\/1\.1 (\d{3})/.exec(response)?.[1]
const countResponses = (received: string) => received.match(/^HTTP\/1\.1 \d{3}/gm)?.length ?? 0

/** Returns the head of a request with a key. */
const head = (line: string, key: string, ...headers: string[]) =>
  [`${line} HTTP/1.1`, 'host: x', `authorization: Bearer ${key}`, ...headers, '', ''].join('\r\n')

/** Starts a server to which no client may make a node connect. */
async function startCanary(t: Test) {
  const seen: string[] = []
  const server = createServer((request, response) => {
    seen.push(`${request.method} ${request.url}`)
    response.end('SECRET')
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return { seen, host: `127.0.0.1:${(server.address() as AddressInfo).port}` }
}

t.test('a chunked body is not another request at the owner, whatever the method', { skip }, async (t) => {
  const { owner, other, open } = await pair
  const run = runKey('job-1')
  const smuggled = (name: string, key: string) =>
    `${head(`POST /sessions/${encodeURIComponent(`runs/job-1/${name}`)}`, key, 'content-length: 0')}`.repeat(
      2,
    )
  const cases = [
    ['DELETE', (session: string) => `/sessions/${session}`, run, '400'],
    ['POST', (session: string) => `/sessions/${session}/complete`, run, '400'],
    ['GET', (session: string) => `/sessions/${session}/live`, VIEW!, '200'],
    ['HEAD', (session: string) => `/sessions/${session}/live`, VIEW!, '200'],
  ] as const
  for (const [method, path, key, status] of cases) {
    const session = `runs/job-1/${method}`
    await open(session)
    const body = encodeChunked(smuggled(`smuggled-${method}`, run))
    const request =
      head(`${method} ${path(encodeURIComponent(session))}`, key, 'transfer-encoding: chunked') + body
    const received = await sendRaw(other.url, request, 500)
    t.equal(getStatus(received), status, `the owner responds to ${method}`)
    t.equal(countResponses(received), 1, `${method} gets one response`)
    const smuggledUrl = `${owner.url}/sessions/${encodeURIComponent(`runs/job-1/smuggled-${method}`)}`
    const { status: found } = await fetch(smuggledUrl, { headers: { authorization: `Bearer ${ADMIN}` } })
    t.equal(found, 404, `${method}: its body was not executed`)
  }
  const key = await open('victim')
  const responses = await Promise.all(
    Array.from({ length: 20 }, (_, i) => sendRequest(other, 'victim', `question ${i};`, key)),
  )
  for (const [i, { text }] of responses.entries()) t.match(text, `answer to question ${i};`)
})

t.test('a body with the declared length arrives completely', { skip }, async (t) => {
  const { other, open } = await pair
  const key = await open('whole')
  const body = chatBody('x'.repeat(300_000))
  const line = 'POST /whole/v1/chat/completions'
  const framings = {
    'content-length': head(line, key, `content-length: ${body.length}`, 'connection: close') + body,
    chunked: head(line, key, 'transfer-encoding: chunked', 'connection: close') + encodeChunked(body),
  }
  for (const [name, request] of Object.entries(framings)) {
    const received = await sendRaw(other.url, request, 10_000)
    t.equal(getStatus(received), '200', name)
    t.ok(received.includes('x'.repeat(300_000)), `${name}: the engine received all of it`)
  }
})

t.test('a target in absolute form is read as its path, and reaches no other host', { skip }, async (t) => {
  const { owner, other, open } = await pair
  const { seen, host } = await startCanary(t)
  const key = await open('s')
  const body = chatBody('hello')
  const length = `content-length: ${body.length}`
  const rest = '/v1/chat/completions/s'
  const targets = [
    ...[`http://${host}${rest}`, `HTTP://${host}${rest}`, `https://${host}${rest}`],
    ...[`http://user:pass@${host}${rest}`, `http://${host}/sessions/s/v1/chat/completions`],
  ]
  for (const node of [owner, other]) {
    for (const target of targets) {
      const received = await sendRaw(
        node.url,
        head(`POST ${target}`, key, length, 'connection: close') + body,
        5_000,
      )
      t.equal(getStatus(received), '200', target)
      t.match(received, 'answer to hello', `the owner responds to ${target}`)
    }
    for (const target of [
      `ftp://${host}${rest}`,
      `//${host}${rest}`,
      `/\\${host}${rest}`,
      `/%5C${host}${rest}`,
    ]) {
      const received = await sendRaw(
        node.url,
        head(`POST ${target}`, key, length, 'connection: close') + body,
        5_000,
      )
      t.match(getStatus(received), /^40[0134]$/, `${target} is rejected`)
    }
  }
  const backslash = `\\${host}`
  const ownKey = await open(encodeURIComponent(backslash)).catch(() => agentKey(backslash))
  const line = `POST /${encodeURIComponent(backslash)}/v1/chat/completions`
  const received = await sendRaw(other.url, head(line, ownKey, length, 'connection: close') + body, 5_000)
  t.match(received, /answer to hello|HTTP\/1\.1 4/, 'a session id that looks like a host is a session id')
  for (const path of ['/events', '/admin/turns', '/sessions/s/live', '/sessions/s']) {
    await sendRaw(other.url, head(`GET http://${host}${path}`, ADMIN!, 'connection: close'), 400)
  }
  for (const line of ['POST /sessions/s/complete', 'POST /sessions/s/reset', 'DELETE /sessions/s']) {
    const absolute = line.replace(' /', ` http://${host}/`)
    const received = await sendRaw(
      other.url,
      head(absolute, ADMIN!, 'content-length: 0', 'connection: close'),
      5_000,
    )
    t.equal(getStatus(received), '200', line)
  }
  t.strictSame(seen, [], 'no node has connected to the host that the targets named')
})

/** Reads a complete response, then breaks the connection as a killed process does. */
async function sendAndBreak(
  url: string,
  sessionId: string,
  key: string,
  ...headers: string[]
): Promise<void> {
  const body = chatBody('again')
  const connection = await RawConnection.open(url)
  const line = `POST /${sessionId}/v1/chat/completions`
  connection.send(head(line, key, ...headers, `content-length: ${body.length}`) + body)
  await connection.until('"usage"')
  await sleep(20)
  connection.socket.resetAndDestroy()
  await connection.closed
}

/** Returns the rows of a session, and the superseded turns. */
async function readRows({ owner }: NodePair, sessionId: string) {
  const { trajectories, excluded_turns: excluded } = await owner.get(`/sessions/${sessionId}/trajectories`)
  return { rows: trajectories.length, superseded: excluded.superseded ?? 0 }
}

t.test(
  'a client cannot pose as a node, and therefore not choose which of its responses are trained',
  { skip },
  async (t) => {
    const nodes = await pair
    const forged = {
      hops: ['x-llm-proxy-hops: 1'],
      'a signature of another secret': [
        'x-llm-proxy-hops: 1',
        `x-llm-proxy-node: 1 1 2 id ${'A'.repeat(43)}`,
      ],
      'a signature without its parts': ['x-llm-proxy-hops: 1', 'x-llm-proxy-node: 1'],
      'the header of a response': ['x-llm-proxy-delivery: tracked'],
    }
    for (const [name, headers] of Object.entries(forged)) {
      const session = name.replaceAll(' ', '-')
      const key = agentKey(session)
      for (let count = 0; count < 3; count += 1) await sendAndBreak(nodes.owner.url, session, key, ...headers)
      await sendRequest(nodes.owner, session, 'again', key)
      t.strictSame(await readRows(nodes, session), { rows: 4, superseded: 0 }, name)
    }
    const postDeliveries = async (key: string | undefined) => {
      const response = await fetch(`${nodes.owner.url}/nodes/deliveries`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...(key && { authorization: `Bearer ${key}` }) },
        body: JSON.stringify({ deliveries: [{ id: 'x', delivered: false }] }),
      })
      return response.status
    }
    t.equal(await postDeliveries(undefined), 401, 'an acknowledgement needs the signature of a node')
    t.equal(await postDeliveries(ADMIN), 403, 'which an admin key does not replace')
  },
)

t.test('a node reports whether a forwarded response reached its client', { skip }, async (t) => {
  const nodes = await pair
  const { other, open } = nodes
  const key = await open('reported')
  await sendRequest(other, 'reported', 'again', key)
  await sendRequest(other, 'reported', 'again', key)
  t.strictSame(
    await readRows(nodes, 'reported'),
    { rows: 3, superseded: 0 },
    'a delivered response is a sample',
  )
})

t.test("the nodes' secret is rotated while they forward, and nothing fails", { skip }, async (t) => {
  const nodes = await pair
  const { owner, other, open, server, db } = nodes
  const key = await open('rotated')
  const readSecrets = async () => {
    const [row] = await server.query(
      "SELECT value FROM llm_proxy.controls WHERE name = 'node_secrets'",
      new URL(db).pathname.slice(1),
    )
    return JSON.parse(row!.value as string) as string[]
  }
  const before = await readSecrets()
  let isRotating = true
  const requests = (async () => {
    let count = 0
    for (; isRotating; count += 1) {
      const { status, text } = await sendRequest(other, 'rotated', `number ${count};`, key)
      if (status !== 200 || !text.includes(`answer to number ${count};`)) t.fail(`${status} ${text}`)
    }
    return count
  })()
  t.strictSame(await other.post('/admin/nodes/secret'), { status: 'rotated' })
  isRotating = false
  const count = await requests
  const after = await readSecrets()
  t.equal(after.length, 1)
  t.not(after[0], before[0])
  const { rows, superseded } = await readRows(nodes, 'rotated')
  t.strictSame({ rows, superseded }, { rows: count + 1, superseded: 0 })
  const single = await fetch(`${owner.url}/admin/nodes/secret`, { method: 'POST' })
  t.equal(single.status, 401, 'which requires an admin key')
})

t.test('a session that another node has removed is created again at its owner', { skip }, async (t) => {
  const { owner, other, open, server, db } = await pair
  const key = await open('idle')
  await server.query(
    `UPDATE llm_proxy.sessions SET ttl_ms = 1000, updated_at_ms = updated_at_ms - 60000, version = version + 1
     WHERE session_id = 'idle'`,
    new URL(db).pathname.slice(1),
  )
  const headers = { authorization: `Bearer ${ADMIN}`, 'content-type': 'application/json' }
  const swept = await fetch(`${other.url}/admin/sweep`, { method: 'POST', headers, body: '{"at_most":10}' })
  t.match(await swept.json(), { deleted: 1 })
  t.match(
    await sendRequest(owner, 'idle', 'again', key),
    { status: 503, text: /session_moved/ },
    'to be retried',
  )
  t.match(await sendRequest(owner, 'idle', 'again', key), { status: 200, text: /answer to again/ })
  const session = await fetch(`${owner.url}/sessions/idle`, { headers })
  t.match(await session.json(), { turn_count: 1 })
})

t.test('a page of one node may change a session of another one', { skip }, async (t) => {
  const { other, open } = await pair
  await open('page')
  const response = await fetch(`${other.url}/sessions/page/complete`, {
    method: 'POST',
    headers: { authorization: `Bearer ${ADMIN}`, origin: other.url },
  })
  t.equal(response.status, 200)
})

t.test('a header that the connection header names stays at the first node', { skip }, async (t) => {
  const { other, open, engine } = await pair
  const key = await open('nominated')
  const body = chatBody('hello')
  const request = head(
    'POST /nominated/v1/chat/completions',
    key,
    'connection: close, idempotency-key, x-llm-proxy-node',
    'idempotency-key: k',
    `content-length: ${body.length}`,
  )
  const received = await sendRaw(other.url, request + body, 5_000)
  t.equal(getStatus(received), '200')
  t.notMatch(received, /x-llm-proxy-(node|delivery|hops)/i, 'no internal header reaches the client')
  t.ok(engine.requests.length > 0)
})
