/** The connections of the reader, which runs several reads at a time. */
import type { Client } from 'pg'
import { isConnectionLoss } from './connection.ts'

export class ReaderPool {
  readonly #connect: () => Promise<Client>
  readonly #free: Client[] = []
  readonly #waiting: ((client: Client | undefined) => void)[] = []
  #open = 0
  #isClosed = false
  readonly #most: number

  /** @param most maximum number of connections */
  constructor(connect: () => Promise<Client>, most: number) {
    this.#connect = connect
    this.#most = most
  }

  /**
   * Runs a read. If its connection is lost, it is retried once on another one, after the idle connections are closed,
   * which are likely lost too.
   */
  async run<T>(read: (client: Client) => Promise<T>): Promise<T> {
    for (let isLast = false; ; isLast = true) {
      const client = await this.#take()
      try {
        const result = await read(client)
        this.#give(client)
        return result
      } catch (error) {
        this.#discard(client)
        if (isLast || !isConnectionLoss(error)) throw error
        for (const idle of this.#free.splice(0)) this.#discard(idle)
      }
    }
  }

  /** Runs reads that see one snapshot. */
  runInSnapshot<T>(read: (client: Client) => Promise<T>): Promise<T> {
    return this.run(async (client) => {
      await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY')
      const result = await read(client)
      await client.query('COMMIT')
      return result
    })
  }

  /**
   * Closes idle connections. One in use is closed after its read, because an open connection would keep the process
   * running.
   */
  async close(): Promise<void> {
    this.#isClosed = true
    await Promise.all(this.#free.map((client) => client.end().catch(() => {})))
  }

  async #take(): Promise<Client> {
    const free = this.#free.pop()
    if (free !== undefined) return free
    if (this.#open >= this.#most) {
      const connection = await new Promise<Client | undefined>((resolve) => this.#waiting.push(resolve))
      if (connection !== undefined) return connection
    }
    this.#open += 1
    try {
      return await this.#connect()
    } catch (error) {
      this.#open -= 1
      this.#waiting.shift()?.(undefined)
      throw error
    }
  }

  #give(client: Client): void {
    const next = this.#waiting.shift()
    if (next !== undefined) next(client)
    else if (this.#isClosed) client.end().catch(() => {})
    else this.#free.push(client)
  }

  #discard(client: Client): void {
    this.#open -= 1
    client.end().catch(() => {})
    this.#waiting.shift()?.(undefined)
  }
}
