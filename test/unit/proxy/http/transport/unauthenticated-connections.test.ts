import { Socket } from 'node:net'
import t from 'tap'
import { UnauthenticatedConnections } from '../../../../../src/proxy/http/transport/unauthenticated-connections.ts'

let ports = 1_000

/** Creates a connection from this address, with the properties that the code reads. */
function createConnection(remoteAddress: string, remotePort = ++ports): Socket {
  const socket = new Socket()
  const ends = { remoteAddress, remotePort, localAddress: '10.0.0.1', localPort: 8080 }
  for (const [name, value] of Object.entries(ends)) Object.defineProperty(socket, name, { value })
  return socket
}

const areDestroyed = (sockets: Socket[]) => sockets.map((socket) => socket.destroyed)

t.test(
  'the oldest unauthenticated connection is closed for a new one, from the same address first',
  async (t) => {
    const unauthenticated = new UnauthenticatedConnections({ limit: 4, limitPerAddress: 2 })
    const quiet = createConnection('10.0.0.2')
    unauthenticated.admit(quiet)
    const flood = Array.from({ length: 5 }, () => createConnection('10.0.0.3'))
    for (const socket of flood) unauthenticated.admit(socket)
    t.same(areDestroyed(flood), [true, true, true, false, false])
    t.notOk(quiet.destroyed, 'many connections from one address do not displace the others')
    t.equal(unauthenticated.count, 3)
    const others = ['4', '5'].map((last) => createConnection(`10.0.0.${last}`))
    for (const socket of others) unauthenticated.admit(socket)
    t.ok(quiet.destroyed, 'many connections from all addresses do')
    t.equal(unauthenticated.count, 4)
  },
)

t.test('an authenticated or closed connection is no longer counted', async (t) => {
  const unauthenticated = new UnauthenticatedConnections({ limit: 2, limitPerAddress: 2 })
  const agent = createConnection('10.0.0.2', 7)
  unauthenticated.admit(agent)
  // With TLS the request arrives over its own socket.
  unauthenticated.markAuthenticated(createConnection('10.0.0.2', 7))
  t.equal(unauthenticated.count, 0)
  unauthenticated.markAuthenticated(agent)
  const closed = createConnection('10.0.0.2')
  unauthenticated.admit(closed)
  closed.emit('close')
  t.equal(unauthenticated.count, 0)
  for (let count = 0; count < 10; count += 1) unauthenticated.admit(createConnection('10.0.0.2'))
  t.notOk(agent.destroyed)
  t.equal(unauthenticated.count, 2)
})

t.test(
  'the end of a server closes connections without a request, and leaves the others to the server',
  async (t) => {
    const unauthenticated = new UnauthenticatedConnections({ limit: 4, limitPerAddress: 4 })
    const agent = createConnection('10.0.0.2')
    const silent = [createConnection('10.0.0.2'), createConnection('10.0.0.3')]
    for (const socket of [agent, ...silent]) unauthenticated.admit(socket)
    unauthenticated.markAuthenticated(agent)
    unauthenticated.closeAll()
    t.same(areDestroyed([agent, ...silent]), [false, true, true])
  },
)
