/** A way to a database server that can be cut, or hold what the server answers. */
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'

export class DatabaseLink {
  readonly #near = new Set<Socket>()
  readonly #far = new Set<Socket>()
  readonly #server = createServer((near) => this.#join(near))
  #to: number
  /** The next answer to a statement that writes is not passed on: the link is cut instead. */
  losesNextCommit = false
  /** Bytes of the server's answers. */
  answered = 0
  #isCommit = false
  #isHeld = false

  constructor(to: number) {
    this.#to = to
  }

  async open(): Promise<number> {
    this.#server.listen(0, '127.0.0.1')
    await once(this.#server, 'listening')
    return (this.#server.address() as AddressInfo).port
  }

  /** Leads to another server from now on. Connections that are open stay, until they are cut. */
  lead(to: number): void {
    this.#to = to
  }

  /** Answers wait. */
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
      // A prepared statement is named in the message that binds its values.
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
