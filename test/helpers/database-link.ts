/** A TCP link to a database server. It can be cut, lose connections, and pause the server's responses. */
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'

export class DatabaseLink {
  readonly #clients = new Set<Socket>()
  readonly #upstreams = new Set<Socket>()
  readonly #server = createServer((client) => this.#join(client))
  #targetPort: number
  /** Whether the link is cut in place of forwarding the next response to a statement that writes. */
  dropsNextCommit = false
  /** Bytes of the server's responses. */
  responseBytes = 0
  #isCommit = false
  #isPaused = false

  constructor(targetPort: number) {
    this.#targetPort = targetPort
  }

  get isOpen(): boolean {
    return this.#server.listening
  }

  /**
   * Opens the link, initially or again.
   * @param port default: any free one
   * @returns the port
   */
  async open(port = 0): Promise<number> {
    this.#server.listen(port, '127.0.0.1')
    await once(this.#server, 'listening')
    return (this.#server.address() as AddressInfo).port
  }

  /** Directs new connections to another server. Open ones stay until they are cut. */
  redirect(targetPort: number): void {
    this.#targetPort = targetPort
  }

  /** Whether responses are paused. */
  set isPaused(isPaused: boolean) {
    this.#isPaused = isPaused
    for (const upstream of this.#upstreams)
      if (isPaused) upstream.pause()
      else upstream.resume()
  }

  cut(): void {
    for (const client of this.#clients) client.destroy()
  }

  /**
   * Loses the open connections without a packet, as the power loss of a host or a firewall does. New ones are forwarded.
   */
  lose(): void {
    for (const socket of [...this.#clients, ...this.#upstreams]) socket.removeAllListeners('data').resume()
  }

  close(): void {
    this.#server.close()
    this.cut()
  }

  #join(client: Socket): void {
    const upstream = connect(this.#targetPort, '127.0.0.1')
    this.#clients.add(client)
    this.#upstreams.add(upstream)
    for (const socket of [client, upstream]) {
      socket.on('error', () => {})
      socket.on('close', () => {
        this.#clients.delete(client)
        this.#upstreams.delete(upstream)
        client.destroy()
        upstream.destroy()
      })
    }
    client.on('data', (bytes) => {
      // The message that binds a prepared statement's values contains its name.
      if (this.dropsNextCommit && bytes.includes('group ')) this.#isCommit = true
      upstream.write(bytes)
    })
    upstream.on('data', (bytes) => {
      this.responseBytes += bytes.length
      if (!this.#isCommit) return void client.write(bytes)
      this.#isCommit = false
      this.dropsNextCommit = false
      this.cut()
    })
    if (this.#isPaused) upstream.pause()
  }
}
