import Fastify from 'fastify'
import t, { type Test } from 'tap'
import type { ProxyError } from '../../../../../src/base/errors.ts'
import { Deliveries } from '../../../../../src/proxy/http/nodes/deliveries.ts'
import { forwardToOwner } from '../../../../../src/proxy/http/nodes/forward-to-owner.ts'
import { Forwarder } from '../../../../../src/proxy/http/nodes/forwarder.ts'
import {
  createNodeSecret,
  NODE_HEADER,
  NodeIdentity,
} from '../../../../../src/proxy/http/nodes/node-identity.ts'
import type { Sessions } from '../../../../../src/proxy/session/state/sessions.ts'
import type { SharingProxy } from '../../../../../src/proxy/store/port/shared-record.ts'
import { fakeSharedRecord } from '../../../../helpers/fake-shared-record.ts'
import { type Script, sendJson, startScriptedServer } from '../../../../helpers/scripted-server.ts'

const SECRETS = [createNodeSecret()]
const REPEATED = 'x-llm-proxy-repeated'
const lose: Script = (_request, response) => void response.socket!.destroy()

function identityOf(lease: number): NodeIdentity {
  const identity = new NodeIdentity(fakeSharedRecord({ lease }))
  identity.setSecrets(SECRETS)
  return identity
}

/**
 * Node 1, and other nodes with leases from 2 that respond as the scripts do. Each owns the session until it has had a
 * request; then node 1 owns it.
 */
async function startNode(t: Test, scripts: Script[]) {
  const others = await Promise.all(scripts.map((script) => startScriptedServer(script)))
  for (const other of others) t.teardown(() => other.close())
  const owner = (): SharingProxy | undefined => {
    const index = others.findIndex(({ requests }) => requests.length === 0)
    if (index === -1) return undefined
    return { id: index + 2, name: '', url: others[index]!.url, isDraining: false, seen: 0, isDrained: false }
  }
  const unknown: string[] = []
  const sessions = {
    ownerElsewhere: async () => owner(),
    acquire: async () => true,
    markDeliveryUnknown: (sessionId: string) => void unknown.push(sessionId),
  } as unknown as Sessions
  const shared = fakeSharedRecord({ lease: 1 })
  const [identity, deliveries] = [identityOf(1), new Deliveries(shared)]
  const forwarder = new Forwarder({ shared, identity, deliveries })
  t.teardown(() => forwarder.close())
  const app = Fastify()
  app.decorateRequest('charge')
  app.addHook('onRequest', async (request) => {
    Object.assign(request, { charge: { setMemory: () => {} } })
  })
  app.addHook(
    'onRequest',
    forwardToOwner({ sessions, shared, identity, deliveries, forwarder, isDraining: () => false }),
  )
  app.setErrorHandler((error, _request, reply) => {
    const { status, code, retryAfterS } = error as ProxyError
    return reply.code(status).send({ code, retryAfterS })
  })
  const config = { scope: 'agent' } as const
  app.post('/:sessionId/v1', { config }, async () => 'served here')
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => app.close())
  const post = (headers = {}) =>
    fetch(`${url}/s/v1`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: '{"a":1}',
    })
  return { others, unknown, post }
}

t.test('a request whose owner was lost is sent to the next one, with a mark', async (t) => {
  const { others, post } = await startNode(t, [
    lose,
    (_request, response) => sendJson(response, { served: true }),
  ])
  t.same(await (await post({ [REPEATED]: '1' })).json(), { served: true })
  const [first, second] = others.map(({ requests }) => requests[0]!)
  t.strictSame([first!.text, second!.text], ['{"a":1}', '{"a":1}'])
  t.strictSame([first!.headers[REPEATED], second!.headers[REPEATED]], [undefined, '1'], 'not of the client')
  t.ok(identityOf(3).verify(second!), 'which is signed')
})

t.test('a request that two owners did not survive is not sent to a third one', async (t) => {
  const { others, post } = await startNode(t, [lose, lose, lose])
  const response = await post()
  t.equal(response.status, 503)
  t.same(await response.json(), { code: 'proxy_away', retryAfterS: 1 })
  t.equal(others[2]!.requests.length, 0)
})

t.test('the delivery before a repeated request is unknown, if a node says that it is repeated', async (t) => {
  const { unknown, post } = await startNode(t, [])
  t.equal(await (await post({ [REPEATED]: '1' })).text(), 'served here')
  t.strictSame(unknown, [], 'a client may not say so')
  await (await post({ [NODE_HEADER]: identityOf(2).sign(1)!.header, [REPEATED]: '1' })).text()
  t.strictSame(unknown, ['s'])
})
