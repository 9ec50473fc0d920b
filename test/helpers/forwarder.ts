import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'
import type { Test } from 'tap'

/** A TCP forwarder that breaks connections as networks do. */
export class Forwarder {
  readonly port: number
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  #stalled = false
  #rejects = false
  /** The number of connections. */
  accepted = 0

  private constructor(server: Server, targetPort: () => number) {
    this.#server = server
    this.port = (server.address() as AddressInfo).port
    server.on('connection', (inner) => {
      this.accepted += 1
      if (this.#rejects) inner.destroy()
      else this.#join(inner, connect(targetPort(), '127.0.0.1'))
    })
  }

  static async to(t: Pick<Test, 'teardown'>, targetPort: number | (() => number)): Promise<Forwarder> {
    const server = createServer().listen(0, '127.0.0.1')
    await once(server, 'listening')
    const forwarder = new Forwarder(server, typeof targetPort === 'number' ? () => targetPort : targetPort)
    t.teardown(() => forwarder.close())
    return forwarder
  }

  get connections(): number {
    return this.#sockets.size / 2
  }

  /** Resets every connection, as a router that restarts. */
  cut(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy()
  }

  /** Drops all bytes in both directions without closing: half-open connections. New connections work. */
  stall(): void {
    for (const socket of this.#sockets) {
      socket.removeAllListeners('data')
      socket.on('data', () => {})
    }
    this.#stalled = true
  }

  /** Sets whether new connections are closed at once. */
  reject(rejects: boolean): void {
    this.#rejects = rejects
  }

  close(): void {
    this.cut()
    this.#server.close()
  }

  #join(inner: Socket, outer: Socket): void {
    for (const [from, to] of [
      [inner, outer],
      [outer, inner],
    ] as const) {
      this.#sockets.add(from)
      from.on('data', (bytes) => {
        if (!to.write(bytes)) {
          from.pause()
          to.once('drain', () => from.resume())
        }
      })
      from.on('error', () => {})
      from.on('close', () => {
        this.#sockets.delete(from)
        // A stalled connection does not even report that its peer has closed.
        if (!this.#stalled) to.destroy()
      })
    }
  }
}
