import type { Socket } from 'node:net'

interface UnauthenticatedConnectionsOptions {
  /** Connections that may be strangers' at once. */
  limit: number
  /** Of these, from one address; a flood from one machine then leaves room for others. */
  limitPerAddress: number
}

/**
 * The connections that have shown nothing yet: no valid key, no hello of a worker; on a proxy without keys no whole
 * request. When there are too many, the oldest one is closed for the newest: a client that means something shows it within
 * moments, a flood of silent connections pushes out itself.
 */
export class UnauthenticatedConnections {
  readonly #options: UnauthenticatedConnectionsOptions
  /** Oldest first. */
  readonly #connections = new Map<string, Connection>()
  /** The ids of the same, by address. */
  readonly #idsOf = new Map<string, Set<string>>()
  readonly #known = new WeakSet<Socket>()

  constructor(options: UnauthenticatedConnectionsOptions) {
    this.#options = options
  }

  get count(): number {
    return this.#connections.size
  }

  /** A connection has come. */
  admit(socket: Socket): void {
    const { remoteAddress: address } = socket
    // Gone before it was looked at.
    if (address === undefined) return
    const id = getConnectionId(socket)
    const ids = this.#idsOf.get(address) ?? new Set()
    this.#idsOf.set(address, ids.add(id))
    this.#connections.set(id, { socket, address })
    socket.once('close', () => this.#forget(id))
    if (ids.size > this.#options.limitPerAddress) this.#closeFirst(ids)
    if (this.#connections.size > this.#options.limit) this.#closeFirst(this.#connections.keys())
  }

  /** The connection is no stranger's. @param socket the one of the request: with TLS another than the one admitted */
  know(socket: Socket): void {
    if (this.#known.has(socket)) return
    this.#known.add(socket)
    this.#forget(getConnectionId(socket))
  }

  /** For the end of a server: with TLS it knows nothing of connections whose handshake has not ended, and waits for them. */
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
    const ids = this.#idsOf.get(connection.address)
    ids?.delete(id)
    if (ids?.size === 0) this.#idsOf.delete(connection.address)
  }
}

interface Connection {
  socket: Socket
  address: string
}

/** What a connection has in common with the TLS connection in it. */
function getConnectionId({ localAddress, localPort, remoteAddress, remotePort }: Socket): string {
  return `${localAddress} ${localPort} ${remoteAddress} ${remotePort}`
}
