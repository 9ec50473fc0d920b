/**
 * A second connection beside the writer's, so that renewing a lease and finding an owner do not wait for a commit. It
 * runs one task (a query or a transaction) at a time: a concurrent statement would become part of another task's
 * transaction.
 */
import type { Client } from 'pg'
import type { LeaseRenewal } from '../port/node-coordination.ts'
import { isConnectionLoss, isExecuting, type ServerProcess } from './connection.ts'
import { findOwner, freeSomeSessions, type Heartbeat, lockLease, renewLease, setControl } from './lease.ts'
import { claimRollout, findRollout, releaseRollout } from './rollouts.ts'

export class LeaseConnection {
  readonly #connect: () => Promise<Client>
  #client: Promise<Client> | undefined
  #isClosed = false
  /** The lease whose lock the connection holds. */
  #lockedLease: number | undefined
  /** Settles when the previous task has ended. */
  #last: Promise<unknown> = Promise.resolve()
  /**
   * The leases that had expired at the last renewal. Only those that are still expired at the next one are ended: a
   * running node renews its lease within a second.
   */
  #expired: readonly number[] = []
  #freeing: Promise<void> | undefined
  /** The number of sessions freed since the last renewal. */
  #freed = 0

  constructor(connect: () => Promise<Client>) {
    this.#connect = connect
  }

  /**
   * Renews the lease, and starts to free sessions of crashed nodes. Not awaited: a crashed node may leave more sessions
   * than can be freed while the lease is valid.
   * @returns undefined: the lease has ended
   */
  async beat(heartbeat: Heartbeat): Promise<LeaseRenewal | undefined> {
    const renewed = await this.#enqueue(async (client) => {
      if (this.#lockedLease !== heartbeat.lease) await lockLease(client, { id: heartbeat.lease })
      this.#lockedLease = heartbeat.lease
      return renewLease(client, heartbeat)
    })
    if (renewed === undefined) return undefined
    const over = renewed.over.filter((id) => this.#expired.includes(id))
    this.#expired = renewed.over
    const freed = this.#freed
    this.#freed = 0
    // If this fails, the next renewal continues.
    this.#freeing ??= this.#free(over)
      .catch(() => {})
      .finally(() => {
        this.#freeing = undefined
      })
    return { ...renewed, freed }
  }

  /** Frees sessions in steps, between which other tasks run. @param over expired leases, which are ended first */
  async #free(over: readonly number[]): Promise<void> {
    for (let count = 1; count > 0; this.#freed += count)
      count = await this.#enqueue((client) => freeSomeSessions(client, over))
  }

  /** Returns whether a server process of another connection executes a statement. */
  isExecuting(serverProcess: ServerProcess): Promise<boolean> {
    return this.#enqueue((client) => isExecuting(client, serverProcess))
  }

  async hasEnded(lease: number): Promise<boolean> {
    const sql = 'SELECT 1 FROM llm_proxy.proxies WHERE id = $1 AND ended = 0'
    return this.#enqueue(async (client) => (await client.query(sql, [lease])).rowCount === 0)
  }

  /** Returns the lease of the session's owner; undefined: it has none. */
  readOwner(sessionId: string): Promise<number | undefined> {
    return this.#enqueue((client) => findOwner(client, sessionId))
  }

  /** Sets a control. @returns the number of the change */
  setControl(name: string, value: unknown): Promise<number> {
    return this.#enqueue((client) => setControl(client, name, value))
  }

  claimRollout(rolloutId: string, lease: number): Promise<number> {
    return this.#enqueue((client) => claimRollout(client, rolloutId, lease))
  }

  /** Returns the lease of the node that runs the rollout; undefined: there is none. */
  findRollout(rolloutId: string): Promise<number | undefined> {
    return this.#enqueue((client) => findRollout(client, rolloutId))
  }

  releaseRollout(rolloutId: string, lease: number): Promise<void> {
    return this.#enqueue((client) => releaseRollout(client, rolloutId, lease))
  }

  /** Closes the connection. A running task fails, and is not repeated on another connection. */
  async close(): Promise<void> {
    this.#isClosed = true
    const client = await this.#client?.catch(() => undefined)
    await client?.end().catch(() => {})
  }

  #enqueue<T>(task: (client: Client) => Promise<T>): Promise<T> {
    const result = this.#last.then(() => this.#runTask(task))
    this.#last = result.catch(() => {})
    return result
  }

  /**
   * Runs a task. If the connection was lost, repeats the task on a new one, unless the lost connection was opened for
   * this task. Each task may run twice.
   */
  async #runTask<T>(task: (client: Client) => Promise<T>): Promise<T> {
    if (this.#isClosed) throw new Error('The lease connection is closed')
    const isNew = this.#client === undefined
    this.#client ??= this.#connect()
    const client = this.#client
    try {
      return await task(await client)
    } catch (error) {
      // After any error the next task gets a new connection.
      this.#client = undefined
      this.#lockedLease = undefined
      void client.then((lost) => lost.end()).catch(() => {})
      if (isNew || !isConnectionLoss(error)) throw error
      return this.#runTask(task)
    }
  }
}
