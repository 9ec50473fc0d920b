import Fastify from 'fastify'
import t, { type Test } from 'tap'
import { createErrorHandler } from '../../../../../src/proxy/http/agent/error-handler.ts'
import { Deliveries } from '../../../../../src/proxy/http/nodes/deliveries.ts'
import { forwardToOwner } from '../../../../../src/proxy/http/nodes/forward-to-owner.ts'
import { Forwarder } from '../../../../../src/proxy/http/nodes/forwarder.ts'
import {
  createNodeSecret,
  NODE_HEADER,
  NodeIdentity,
} from '../../../../../src/proxy/http/nodes/node-identity.ts'
import type { Sessions } from '../../../../../src/proxy/session/state/sessions.ts'
import {
  createSessionMovedError,
  type NodeStatus,
} from '../../../../../src/proxy/store/port/node-coordination.ts'
import { createFakeNodeCoordination } from '../../../../helpers/fake-node-coordination.ts'
import { type Script, sendJson, startScriptedServer } from '../../../../helpers/scripted-server.ts'
import { silentLogger } from '../../../../helpers/silent-logger.ts'

const ignore = () => {}
const SECRETS = [createNodeSecret()]
const REPEATED = 'x-llm-proxy-repeated'
const destroyConnection: Script = (_request, response) => void response.socket!.destroy()

function createIdentity(lease: number): NodeIdentity {
  const identity = new NodeIdentity(createFakeNodeCoordination({ lease }))
  identity.setSecrets(SECRETS)
  return identity
}

/**
 * Creates node 1, and other nodes with leases from 2 that respond as the scripts do. Each owns the session
 * until it has received a request; then node 1 owns it.
 */
async function startNode(t: Test, scripts: Script[]) {
  const others = await Promise.all(scripts.map((script) => startScriptedServer(script)))
  for (const other of others) t.teardown(() => other.close())
  const owner = (): NodeStatus | undefined => {
    const index = others.findIndex(({ requests }) => requests.length === 0)
    if (index === -1) return undefined
    return { id: index + 2, name: '', url: others[index]!.url, isDraining: false, seen: 0, isDrained: false }
  }
  const unknown: string[] = []
  const session = { isOwned: true, isMoved: false, isTurn: false }
  const sessions = {
    isOwned: () => session.isOwned,
    findOtherOwner: async () => (session.isOwned || session.isMoved ? owner() : undefined),
    acquireOwnership: async () => true,
    markDeliveryUnknown: (sessionId: string) => void unknown.push(sessionId),
  } as unknown as Sessions
  const shared = createFakeNodeCoordination({ lease: 1 })
  const [identity, deliveries] = [createIdentity(1), new Deliveries(shared)]
  const forwarder = new Forwarder({ shared, identity, deliveries })
  t.teardown(() => forwarder.close())
  const app = Fastify()
  app.decorateRequest('charge')
  app.decorateRequest('caller')
  app.decorateRequest('ownerForwarder', null)
  app.addHook('onRequest', async (request) => {
    Object.assign(request, { charge: { setMemory: ignore }, caller: { is: 'anyone' } })
  })
  app.addHook(
    'onRequest',
    forwardToOwner({ sessions, shared, identity, deliveries, forwarder, isDraining: () => false }),
  )
  app.addHook('preParsing', (request, _reply, _payload, done) => {
    request.ownerForwarder?.copyBody()
    done()
  })
  app.setErrorHandler(
    createErrorHandler(silentLogger, {
      idHeader: 'x-request-id',
      buildBody: ({ code, retryAfterS }) => ({ code, retryAfterS }),
    }),
  )
  const config = { scope: 'agent' } as const
  app.post('/:sessionId/v1', { config }, async (_request, reply) => {
    if (session.isOwned) return 'served here'
    session.isMoved = true
    if (session.isTurn) reply.header('x-request-id', 'turn')
    throw createSessionMovedError('s')
  })
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => app.close())
  const post = (headers = {}) =>
    fetch(`${url}/s/v1`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: '{"a":1}',
    })
  return { others, unknown, post, session }
}

t.test('a request whose owner crashed is sent to the next one, with a header for this', async (t) => {
  const { others, post } = await startNode(t, [
    destroyConnection,
    (_request, response) => sendJson(response, { served: true }),
  ])
  t.same(await (await post({ [REPEATED]: '1' })).json(), { served: true })
  const [first, second] = others.map(({ requests }) => requests[0]!)
  t.strictSame([first!.text, second!.text], ['{"a":1}', '{"a":1}'])
  t.strictSame(
    [first!.headers[REPEATED], second!.headers[REPEATED]],
    [undefined, createIdentity(2).verify(first!)!.id],
    'the id of the lost message, not the value from the client',
  )
  t.ok(createIdentity(3).verify(second!), 'which is signed')
})

t.test('a request on which two owners crashed is not sent to a third one', async (t) => {
  const { others, post } = await startNode(t, [destroyConnection, destroyConnection, destroyConnection])
  const response = await post()
  t.equal(response.status, 503)
  t.same(await response.json(), { code: 'proxy_away', retryAfterS: 1 })
  t.equal(others[2]!.requests.length, 0)
})

t.test('the delivery before a repeated request is unknown, if a node declares the repetition', async (t) => {
  const { unknown, post } = await startNode(t, [])
  t.equal(await (await post({ [REPEATED]: '1' })).text(), 'served here')
  t.strictSame(unknown, [], 'a client may not declare it')
  await (await post({ [NODE_HEADER]: createIdentity(2).sign(1)!.header, [REPEATED]: '1' })).text()
  t.strictSame(unknown, ['s'])
})

t.test('a request for a session that another node has created meanwhile is sent there, as new', async (t) => {
  const { others, post, session } = await startNode(t, [
    (_request, response) => sendJson(response, { served: true }),
  ])
  session.isOwned = false
  t.same(await (await post()).json(), { served: true })
  const { text, headers } = others[0]!.requests[0]!
  t.equal(text, '{"a":1}')
  t.equal(headers[REPEATED], undefined)
})

t.test('a request that had become a turn when its session migrated is not forwarded', async (t) => {
  const { others, post, session } = await startNode(t, [
    (_request, response) => sendJson(response, { served: true }),
  ])
  Object.assign(session, { isOwned: false, isTurn: true })
  const response = await post()
  t.equal(response.status, 503)
  t.same(await response.json(), { code: 'session_moved', retryAfterS: 1 })
  t.equal(others[0]!.requests.length, 0)
})
