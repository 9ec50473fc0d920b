/** A TCP link to a database server that can be cut, or pause the server's responses. */
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'

export class DatabaseLink {
  readonly #near = new Set<Socket>()
  readonly #far = new Set<Socket>()
  readonly #server = createServer((near) => this.#join(near))
  #to: number
  /** Whether the link is cut in place of forwarding the next response to a statement that writes. */
  losesNextCommit = false
  /** Bytes of the server's responses. */
  answered = 0
  #isCommit = false
  #isHeld = false

  constructor(to: number) {
    this.#to = to
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
  lead(to: number): void {
    this.#to = to
  }

  /** Whether responses are paused. */
  set isHeld(isHeld: boolean) {
    this.#isHeld = isHeld
    for (const far of this.#far)
      if (isHeld) far.pause()
      else far.resume()
  }

  cut(): void {
    for (const near of this.#near) near.destroy()
  }

  close(): void {
    this.#server.close()
    this.cut()
  }

  #join(near: Socket): void {
    const far = connect(this.#to, '127.0.0.1')
    this.#near.add(near)
    this.#far.add(far)
    for (const socket of [near, far]) {
      socket.on('error', () => {})
      socket.on('close', () => {
        this.#near.delete(near)
        this.#far.delete(far)
        near.destroy()
        far.destroy()
      })
    }
    near.on('data', (bytes) => {
      // The message that binds a prepared statement's values contains its name.
      if (this.losesNextCommit && bytes.includes('group ')) this.#isCommit = true
      far.write(bytes)
    })
    far.on('data', (bytes) => {
      this.answered += bytes.length
      if (!this.#isCommit) return void near.write(bytes)
      this.#isCommit = false
      this.losesNextCommit = false
      this.cut()
    })
    if (this.#isHeld) far.pause()
  }
}
