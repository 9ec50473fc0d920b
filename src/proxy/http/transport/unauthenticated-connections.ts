import type { Socket } from 'node:net'

interface UnauthenticatedConnectionsOptions {
  /** The maximum number of unauthenticated connections. */
  limit: number
  /** The maximum number from one address, so that a flood from one machine does not evict other clients. */
  limitPerAddress: number
}

/**
 * The connections that have not authenticated: they sent no valid key and no `hello` of a worker, or, on a proxy
 * without keys, no complete request. Above the limit the oldest one is closed: a legitimate client authenticates within
 * moments, so a flood of silent connections evicts itself.
 */
export class UnauthenticatedConnections {
  readonly #options: UnauthenticatedConnectionsOptions
  /** The connections, oldest first. */
  readonly #connections = new Map<string, Connection>()
  /** The ids of the connections by address. */
  readonly #idsByAddress = new Map<string, Set<string>>()
  readonly #authenticated = new WeakSet<Socket>()

  constructor(options: UnauthenticatedConnectionsOptions) {
    this.#options = options
  }

  get count(): number {
    return this.#connections.size
  }

  /** Adds a new connection, and closes the oldest one if there are too many. */
  admit(socket: Socket): void {
    const { remoteAddress: address } = socket
    // The connection was closed before it was accepted.
    if (address === undefined) return
    const id = getConnectionId(socket)
    const ids = this.#idsByAddress.get(address) ?? new Set()
    this.#idsByAddress.set(address, ids.add(id))
    this.#connections.set(id, { socket, address })
    socket.once('close', () => this.#forget(id))
    if (ids.size > this.#options.limitPerAddress) this.#closeFirst(ids)
    if (this.#connections.size > this.#options.limit) this.#closeFirst(this.#connections.keys())
  }

  /** Marks a connection as authenticated. @param socket the request's socket, which with TLS is not the admitted one */
  markAuthenticated(socket: Socket): void {
    if (this.#authenticated.has(socket)) return
    this.#authenticated.add(socket)
    this.#forget(getConnectionId(socket))
  }

  /**
   * Closes all connections. A closing HTTPS server waits for connections whose TLS handshake is incomplete, but cannot
   * close them itself.
   */
  closeAll(): void {
    for (const { socket } of this.#connections.values()) socket.destroy()
  }

  #closeFirst(ids: Iterable<string>): void {
    for (const id of ids) {
      this.#connections.get(id)?.socket.destroy()
      this.#forget(id)
      break
    }
  }

  #forget(id: string): void {
    const connection = this.#connections.get(id)
    if (!connection) return
    this.#connections.delete(id)
    const ids = this.#idsByAddress.get(connection.address)
    ids?.delete(id)
    if (ids?.size === 0) this.#idsByAddress.delete(connection.address)
  }
}

/** A connection and its remote address. */
interface Connection {
  socket: Socket
  address: string
}

/** Returns an id that is equal for a TCP connection and for the TLS connection over it. */
function getConnectionId({ localAddress, localPort, remoteAddress, remotePort }: Socket): string {
  return `${localAddress} ${localPort} ${remoteAddress} ${remotePort}`
}
