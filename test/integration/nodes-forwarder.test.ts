/**
 * One node between a client and an owner that the test plays: its requests, its reports, and its state when one side
 * breaks.
 */
import type { ServerResponse } from 'node:http'
import Fastify, { type FastifyRequest } from 'fastify'
import t, { type Test } from 'tap'
import { DELIVERY_HEADER, Deliveries } from '../../src/proxy/http/nodes/deliveries.ts'
import { Forwarder } from '../../src/proxy/http/nodes/forwarder.ts'
import { createNodeSecret, NodeIdentity } from '../../src/proxy/http/nodes/node-identity.ts'
import { RequestBody } from '../../src/proxy/http/nodes/request-body.ts'
import { createFakeNodeCoordination } from '../helpers/fake-node-coordination.ts'
import { RawConnection } from '../helpers/raw-connection.ts'
import { type Script, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { until } from '../helpers/until.ts'

const OWNER_LEASE = 2
const TRACKED = { [DELIVERY_HEADER]: 'tracked' }
const SECRETS = [createNodeSecret()]

function getBody({ raw }: FastifyRequest): RequestBody {
  return new RequestBody(raw, { limitBytes: 1024, setMemory: () => {} })
}

/** @param script of the owner, for everything except reports */
async function startNode(t: Test, script: Script) {
  const ownerShared = createFakeNodeCoordination({ lease: OWNER_LEASE })
  const ownerIdentity = new NodeIdentity(ownerShared)
  ownerIdentity.setSecrets(SECRETS)
  const reports: { id: string; delivered: boolean }[] = []
  const owner = await startScriptedServer(async (request, response) => {
    if (request.path !== '/base/nodes/deliveries') return script(request, response)
    if (ownerIdentity.verify(request) === undefined) return sendJson(response, {}, 401)
    reports.push(...request.body.deliveries)
    sendJson(response, { status: 'noted' })
  })
  t.teardown(() => owner.close())
  const shared = createFakeNodeCoordination({ lease: 1 })
  const identity = new NodeIdentity(shared)
  identity.setSecrets(SECRETS)
  const deliveries = new Deliveries(shared)
  const forwarder = new Forwarder({ shared, identity, deliveries, basePath: '/base' })
  const app = Fastify()
  const failures: unknown[] = []
  app.addHook('onRequest', async (request, reply) => {
    const isForwarded = await forwarder
      .forward(request, reply, { id: OWNER_LEASE, url: owner.url }, getBody(request))
      .catch((error: unknown) => {
        failures.push((error as { code: unknown }).code)
        throw error
      })
    if (isForwarded) return reply
    return reply.code(502).send('not forwarded')
  })
  app.all('*', async () => 'unreachable')
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => app.close())
  t.teardown(() => forwarder.close())
  const getId = (index: number) => ownerIdentity.verify(owner.requests[index]!)?.id
  return { url, owner, reports, shared, failures, forwarder, getId }
}

const post = (target: string, body: string) =>
  `POST ${target} HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n${body}`

t.test('a delivered response is reported, with others in one request', async (t) => {
  const { url, owner, reports, getId, forwarder } = await startNode(t, (_request, response) => {
    response.writeHead(200, TRACKED).end('answer')
  })
  const responses = await Promise.all(
    [1, 2, 3].map((number) => fetch(`${url}/a/b%2Fc?d=${number}`, { method: 'POST', body: `${number}` })),
  )
  for (const response of responses) {
    t.equal(await response.text(), 'answer')
    t.notOk(response.headers.has(DELIVERY_HEADER), 'the header is for the node')
  }
  await forwarder.close()
  t.strictSame(
    reports.map(({ delivered }) => delivered),
    [true, true, true],
  )
  t.strictSame(reports.map(({ id }) => id).sort(), [0, 1, 2].map(getId).sort())
  t.strictSame(
    owner.requests
      .slice(0, 3)
      .map(({ text, path }) => `${path} ${text}`)
      .sort(),
    ['/a/b%2Fc?d=1 1', '/a/b%2Fc?d=2 2', '/a/b%2Fc?d=3 3'],
  )
})

t.test('a response whose client disconnected is reported as undelivered', async (t) => {
  let waitUntilCancelled = (): unknown => undefined
  const { url, reports, getId } = await startNode(t, (request, response) => {
    response.writeHead(200, TRACKED).write('begin')
    waitUntilCancelled = () => request.cancelled
  })
  const client = await RawConnection.open(url)
  client.send(post('/', '{}'))
  await client.until('begin')
  client.socket.destroy()
  await waitUntilCancelled()
  await until(() => reports.length === 1)
  t.strictSame(reports, [{ id: getId(0), delivered: false }], 'and its request at the owner is cancelled')
})

t.test(
  'a client that disconnects before the response begins is reported, as the owner may have sent all of it',
  async (t) => {
    const { url, owner, reports } = await startNode(t, () => {})
    const client = await RawConnection.open(url)
    client.send(post('/', '{}'))
    await until(() => owner.requests.length === 1)
    client.socket.destroy()
    await owner.requests[0]!.cancelled
    await until(() => reports.length === 1)
    t.equal(reports[0]!.delivered, false)
  },
)

t.test('an owner of the previous release, which requests no reports, gets none', async (t) => {
  const { url, reports, forwarder } = await startNode(t, (_request, response) => {
    response.end('answer')
  })
  t.equal(await (await fetch(url, { method: 'POST', body: '{}' })).text(), 'answer')
  await forwarder.close()
  t.strictSame(reports, [])
})

t.test('an owner disconnects: before it reads, before it responds, or during the response', async (t) => {
  const ownerState = { hasStarted: false }
  const { url, owner, shared, failures } = await startNode(t, (_request, response) => {
    if (ownerState.hasStarted) response.writeHead(200).write('begin')
    else response.socket!.destroy()
  })
  t.equal((await fetch(url, { method: 'POST', body: '{}' })).status, 503)
  t.strictSame(failures, ['proxy_away'], 'the request may have been executed')
  ownerState.hasStarted = true
  const response = await fetch(url, { method: 'POST', body: '{}' })
  t.equal(response.status, 200)
  shared.end(OWNER_LEASE)
  await t.rejects(response.text(), 'the lease of the owner has ended')
  await owner.close()
  t.equal(await (await fetch(url, { method: 'POST', body: '{}' })).text(), 'not forwarded')
  t.equal(failures.length, 1)
})

t.test('a response to the head alone reaches a client that is still sending its body', async (t) => {
  const rejecting = await startRejectingOwner(t)
  const size = 4 * 1024 * 1024
  const client = await RawConnection.open(rejecting.url)
  client.send(`POST / HTTP/1.1\r\nhost: x\r\ncontent-length: ${size + 1}\r\n\r\n{`)
  await client.until('413')
  client.send(Buffer.alloc(size))
  client.send('GET /next HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n')
  t.match(await client.closed, /413[\s\S]*HTTP\/1\.1 413/, 'and its connection serves the next request')
})

/** Starts a node in front of an owner that responds with 413 as soon as it has read a head. */
async function startRejectingOwner(t: Test): Promise<{ url: string }> {
  const owner = Fastify({ bodyLimit: 10 })
  owner.addHook('onRequest', async (_request, reply) => reply.code(413).send('too large'))
  owner.all('*', async () => 'unreachable')
  const ownerUrl = await owner.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => owner.close())
  const shared = createFakeNodeCoordination({ lease: 1 })
  const forwarder = new Forwarder({
    shared,
    identity: new NodeIdentity(shared),
    deliveries: new Deliveries(shared),
  })
  const app = Fastify()
  app.addHook('onRequest', async (request, reply) => {
    await forwarder.forward(request, reply, { id: OWNER_LEASE, url: ownerUrl }, getBody(request))
    return reply
  })
  app.all('*', async () => 'unreachable')
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => app.close())
  t.teardown(() => forwarder.close())
  return { url }
}

t.test('a slow client blocks the owner, and gets every byte', async (t) => {
  const size = 24 * 1024 * 1024
  let written: ServerResponse | undefined
  const { url } = await startNode(t, (_request, response) => {
    written = response
    response.writeHead(200)
    for (let sent = 0; sent < size; sent += 1024 * 1024) response.write(Buffer.alloc(1024 * 1024, 97))
    response.end()
  })
  const response = await fetch(url, { method: 'POST', body: '{}' })
  await new Promise((resolve) => setTimeout(resolve, 300))
  t.notOk(written!.writableFinished, 'the owner waits')
  t.equal((await response.arrayBuffer()).byteLength, size)
})
