/**
 * The writer's connection and its lease. Each connection raises the epoch of the lease, which fences statements of
 * earlier connections that the server may still execute. The outcome of a commit whose reply was lost is therefore
 * looked up under the new epoch, by the number of the group; if it is missing, the group is sent again.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Client } from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import {
  destroyConnection,
  isConnectionLoss,
  isProgramError,
  queryServerProcess,
  type ServerProcess,
} from './connection.ts'
import type { GroupResult, GroupStatement } from './group-statement.ts'
import { acquireLease, endLeases, type NodeLease } from './lease.ts'

/** A function that waits for a new connection. It rejects with the reason after `patienceMs`. */
export type DatabaseReconnector = (patienceMs: number, lease: NodeLease) => Promise<Client>

/** The time limit of a command that has changed nothing and waits for the database. */
export const PATIENCE_MS = 10_000

/** The time between two attempts to reconnect. */
export const RETRY_MS = 250

/**
 * How often a group is sent. A group that ends this many connections, each of which worked before, would end all of
 * them: the server closes the connection after a message of more than 1 GiB.
 */
const MAX_SENDS = 5

const COMMITS_LOST =
  'the database has lost acknowledged commits, as after a fail-over to a standby that lagged: restart llm-proxy'

/** The number of a group, and the lease and epoch under which it is committed. */
export interface GroupIdentity {
  readonly lease: { readonly id: number; readonly epoch: number }
  readonly group: number
}

/** The failure of a group whose statement the server does not accept, although it serves other connections. */
export class GroupRejectedError extends Error {
  constructor(cause: unknown) {
    super(`the database ended each connection that sent it: ${(cause as Error).message}`, { cause })
  }
}

export class WriterConnection {
  readonly #reconnect: DatabaseReconnector
  readonly #name: string
  #client: Client
  #serverProcess: ServerProcess
  #lease: NodeLease
  /** The epoch of this connection. */
  #epoch: number
  /** The number of the last committed group. */
  #group: number
  #lost: ProxyError | undefined

  /** Acquires a lease. @param name name of the machine or pod */
  static async open(client: Client, reconnect: DatabaseReconnector, name: string): Promise<WriterConnection> {
    const lease = await acquireLease(client, name)
    return new WriterConnection(client, reconnect, name, lease, await queryServerProcess(client))
  }

  private constructor(
    client: Client,
    reconnect: DatabaseReconnector,
    name: string,
    lease: NodeLease,
    serverProcess: ServerProcess,
  ) {
    this.#serverProcess = serverProcess
    this.#client = client
    this.#reconnect = reconnect
    this.#name = name
    this.#lease = lease
    this.#epoch = lease.epoch
    this.#group = lease.group
  }

  /** The lease. It is another object after {@link renew}: all cached rows are invalid then. */
  get lease(): NodeLease {
    return this.#lease
  }

  /** The reason why this connection can never write again; undefined: it can. */
  get lost(): ProxyError | undefined {
    return this.#lost
  }

  /** The server process of the current connection. */
  get serverProcess(): ServerProcess {
    return this.#serverProcess
  }

  /** Closes the connection to a server process if it is the current one. Running queries are repeated on another one. */
  destroyConnectionTo(serverProcess: ServerProcess): void {
    if (this.#serverProcess === serverProcess) destroyConnection(this.#client)
  }

  /** Runs queries that change nothing or are idempotent. Reconnects and repeats them if the connection is lost. */
  async run<T>(query: (client: Client) => Promise<T>): Promise<T> {
    while (true) {
      try {
        return await query(this.#client)
      } catch (error) {
        if (!isConnectionLoss(error)) throw error
        const [lease, group] = [this.#lease, this.#group]
        const last = await this.#resume(PATIENCE_MS)
        if (this.#lease === lease && last !== group) throw this.#lose()
      }
    }
  }

  /**
   * Commits a group. If the connection is lost, the outcome is unknown: the method waits for the database without a
   * time limit, because no command may receive a reply before the outcome is determined.
   * @param build builds the statement
   * @throws the error of the server, or of the last attempt, if nothing was committed; {@link lost} if the outcome
   *   cannot be determined, and for each group after that
   */
  async commitGroup(build: (number: GroupIdentity) => GroupStatement): Promise<GroupResult> {
    if (this.#lost !== undefined) throw this.#lost
    const group = this.#group + 1
    for (let sends = 1; ; sends += 1) {
      const { id } = this.#lease
      try {
        const statement = build({ lease: { id, epoch: this.#epoch }, group })
        const { rows } = await this.#client.query<GroupResult>(statement.query)
        const result = rows[0]!
        if (result.committed === 1) this.#group = group
        return result
      } catch (error) {
        if (!isConnectionLoss(error) && !isProgramError(error)) throw error
        const last = await this.#resume(Number.POSITIVE_INFINITY).catch((cause: unknown) => {
          // A rejected group counts as not committed, and its ids are allocated again.
          throw this.#lose(describeUnknownOutcome(cause), cause)
        })
        const isRenewed = this.#lease.id !== id
        if (!isRenewed && last !== group && last !== this.#group) throw this.#lose()
        if (!isRenewed && last === group) this.#group = group
        if (isRenewed || last === group) return { committed: last === group ? 1 : 0, sessions: [], blobs: [] }
        if (isProgramError(error)) throw error
        if (sends === MAX_SENDS) throw new GroupRejectedError(error)
      }
    }
  }

  /** Acquires a new lease if another node has ended this one, or if another connection uses it. */
  async ensureLease(): Promise<void> {
    const isCurrent = await this.run(async (client) => {
      const { rows } = await client.query<{ ended: number; epoch: number }>(
        'SELECT ended, epoch FROM llm_proxy.proxies WHERE id = $1',
        [this.#lease.id],
      )
      return rows[0]?.ended === 0 && rows[0].epoch === this.#epoch
    })
    if (!isCurrent) await this.renew()
  }

  /** Acquires a new lease, after another node has ended this one. */
  async renew(): Promise<void> {
    this.#useLease(await this.run((client) => acquireLease(client, this.#name)))
  }

  #useLease(lease: NodeLease): void {
    this.#lease = lease
    this.#epoch = lease.epoch
    this.#group = lease.group
  }

  /** Ends the lease, which frees the node's sessions immediately. */
  async close(): Promise<void> {
    await endLeases(this.#client, [this.#lease.id]).catch(() => {})
    await this.#disconnect()
  }

  /**
   * Reconnects under a new epoch, or under a new lease if this one was ended. Without a time limit, an error of the
   * server (a full disk, a lack of memory, a cancelled query) is retried as a lost connection is.
   * @returns the number of the last group committed before; undefined: it cannot be determined any more
   * @throws ProxyError if the node cannot acquire a new lease, or if `patienceMs` has passed
   */
  async #resume(patienceMs: number): Promise<number | undefined> {
    let last: number | undefined
    while (true) {
      await this.#disconnect()
      this.#client = await this.#reconnect(patienceMs, this.#lease)
      try {
        const { rows } = await this.#client.query<{ epoch: number; last_group: number; ended: number }>(
          'UPDATE llm_proxy.proxies SET epoch = epoch + 1 WHERE id = $1 RETURNING epoch, last_group, ended',
          [this.#lease.id],
        )
        const row = rows[0]
        // A new lease, whose reply may be lost, can delete the row of this one.
        last = row?.last_group ?? last
        this.#serverProcess = await queryServerProcess(this.#client)
        if (row?.ended === 0) this.#epoch = row.epoch
        else this.#useLease(await acquireLease(this.#client, this.#name))
        return last
      } catch (error) {
        if (isConnectionLoss(error)) continue
        const isFinal = error instanceof ProxyError || isProgramError(error)
        if (isFinal || patienceMs !== Number.POSITIVE_INFINITY) throw error
        await delay(RETRY_MS)
      }
    }
  }

  async #disconnect(): Promise<void> {
    await this.#client.end().catch(() => {})
  }

  #lose(message = COMMITS_LOST, cause?: unknown): ProxyError {
    this.#lost = new ProxyError('store_failed', message, { cause })
    return this.#lost
  }
}

/** Returns the message for a commit whose outcome is unknown. Errors other than a ProxyError may quote data. */
function describeUnknownOutcome(cause: unknown): string {
  const reason = cause instanceof ProxyError ? ` (${cause.message})` : ''
  return `the outcome of a commit cannot be determined${reason}: restart llm-proxy`
}
