/**
 * Computes operations in groups, and commits each group with one statement. Runs on the writer thread.
 *
 * Other nodes write to the same database. The cache of a session is valid while the session's version is unchanged,
 * which the statement verifies under the lock of the row. If the version differs, the group is computed again. Each
 * connection raises the epoch of the node's lease, which fences statements of earlier connections. The outcome of a
 * commit whose reply was lost is therefore looked up under the new epoch, by the group's number; if it is missing, the
 * group is sent again.
 */
import type { Client } from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import {
  fromWireError,
  invoke,
  type Remote,
  type Reply,
  type ThreadCommand,
  toWireError,
} from '../common/calls.ts'
import { TurnWriter } from '../common/turns.ts'
import {
  OpenFailures,
  type OtherWriteMethods,
  type SessionWriteMethods,
  sessionWriteMethods,
  type WriteMethods,
} from '../common/write-methods.ts'
import type { SessionOwnership } from '../port/node-coordination.ts'
import { bindQueries, isConnectionLoss } from './connection.ts'
import { consumerWrites } from './consumers.ts'
import { type GroupResponse, GroupStatement } from './group-statement.ts'
import { importWrites } from './imports.ts'
import { claimSession, endLeases, freeSessions, type OwnerLease, takeLease } from './lease.ts'
import { fetchMissing } from './missing-rows.ts'
import { purgeRows } from './purge.ts'
import { IS_EXPIRED } from './select-sessions.ts'
import { WriterTables } from './writer-tables.ts'

/** Size of the probe table: more than a turn usually takes. */
const ROOM_KB = 1024

/** Returns a new connection once there is one. Rejects with the reason after `patienceMs`. */
export type Reconnect = (patienceMs: number, lease: OwnerLease) => Promise<Client>

/** The time limit of a command that has changed nothing and waits for the database. */
export const PATIENCE_MS = 10_000

/** Maximum number of computations of one group. Other nodes' changes invalidate a group this often only by a defect. */
const MAX_ATTEMPTS = 100

interface WriterOptions {
  client: Client
  reconnect: Reconnect
  /** Name of the machine or pod. */
  name: string
  cacheBytes: number
}

export class Writer {
  readonly #reconnect: Reconnect
  readonly #name: string
  readonly #cacheBytes: number
  readonly #unopened = new OpenFailures()
  #client: Client
  #lost: ProxyError | undefined
  #lease: OwnerLease
  #epoch: number
  /** The number of the last committed group. */
  #group: number
  #tables!: WriterTables
  #turns!: TurnWriter
  #methods!: SessionWriteMethods
  /** The methods outside groups. They wait for concurrent changes of a consumer by other nodes. */
  readonly others: Remote<OtherWriteMethods> = bindQueries({ ...consumerWrites, ...importWrites }, (change) =>
    this.#withClient(change),
  )

  /** Takes a lease, and marks turns that crashed nodes left open as `interrupted`. */
  static async open(options: WriterOptions): Promise<Writer> {
    const { client, name } = options
    const lease = await takeLease(client, name)
    await freeSessions(client, [], true)
    return new Writer(options, lease)
  }

  private constructor({ client, reconnect, name, cacheBytes }: WriterOptions, lease: OwnerLease) {
    this.#client = client
    this.#reconnect = reconnect
    this.#name = name
    this.#cacheBytes = cacheBytes
    this.#lease = lease
    this.#epoch = lease.epoch
    this.#group = lease.group
    this.#remember()
  }

  /** Starts with empty caches under a new lease. */
  #remember(): void {
    const { id, slot, nextIds, epoch, group } = this.#lease
    this.#epoch = epoch
    this.#group = group
    this.#tables = new WriterTables({ lease: id, slot }, nextIds)
    this.#turns = new TurnWriter(this.#tables, this.#tables.sessions, this.#cacheBytes)
    this.#methods = sessionWriteMethods(this.#turns, this.#tables.sessions, this.#unopened)
  }

  /** The number of the writer's lease. */
  get lease(): number {
    return this.#lease.id
  }

  /** The reason why this writer can never write again; undefined: it can. */
  get lost(): ProxyError | undefined {
    return this.#lost
  }

  /**
   * Commits operations as one group. An operation that fails does so alone; if the commit fails, all fail.
   * @param isAgain whether this is the second attempt, after a unique key that another node may have inserted first
   */
  async commit(calls: readonly ThreadCommand<WriteMethods>[], isAgain = false): Promise<Reply[]> {
    let replies: Reply[] | undefined
    try {
      for (let attempt = 1; replies === undefined; attempt += 1) {
        if (attempt > MAX_ATTEMPTS)
          throw new ProxyError('store_failed', 'other proxies change the same sessions all the time')
        const workedOut = await this.#workOut(calls)
        if (await this.#write()) replies = workedOut
      }
      this.#tables.commit()
    } catch (error) {
      this.#turns.forget()
      this.#tables.forgetGroup()
      if (calls.length === 1 && isTaken(error) && !isAgain) return this.commit(calls, true)
      if (calls.length === 1 || !isOfOneCall(error)) return this.refuse(calls, error)
      const alone: Reply[] = []
      for (const call of calls) alone.push(...(await this.commit([call])))
      return alone
    }
    this.#unopened.note(calls, replies)
    return replies
  }

  /** Rejects commands, none of which has changed anything. */
  refuse(calls: readonly ThreadCommand<WriteMethods>[], error: unknown): Reply[] {
    const replies = calls.map(({ id }) => ({ id, error: toWireError(error) }))
    this.#unopened.note(calls, replies)
    return replies
  }

  /**
   * Makes this node the session's owner, as {@link claimSession} does.
   * @returns undefined: there is no such session, or another node owns it
   */
  async claim(sessionId: string, seizes: boolean): Promise<SessionOwnership | undefined> {
    const claimed = await this.#withClient((client) =>
      claimSession(client, sessionId, { lease: this.lease, seizes }),
    )
    // A session that had no owner has no turns.
    if (claimed !== undefined && claimed.epoch > 1) this.#tables.forgetTurns(sessionId)
    else this.#tables.sessions.rows.forget([sessionId])
    return claimed
  }

  /** Closes turns of sessions whose owners have crashed. @param over leases that have expired */
  async free(over: readonly number[]): Promise<void> {
    await this.#withClient((client) => freeSessions(client, over))
  }

  /** Takes a new lease after another node has ended this one. All caches are dropped. */
  async renew(): Promise<void> {
    await this.#withClient(async (client) => {
      this.#lease = await takeLease(client, this.#name)
    })
    this.#remember()
  }

  /**
   * Commits a table as large as a turn, and drops it in the same transaction. A smaller probe would not detect a full
   * disk: a commit of a few bytes still fits, and a row may fit into a page with space of deleted rows.
   * @throws Error of the driver: 53100 for a full disk
   */
  async tryCommit(): Promise<void> {
    const table = `llm_proxy.probe_${this.lease}`
    const rows = `SELECT repeat(' ', 1000) FROM generate_series(1, ${ROOM_KB})`
    await this.#ask(`CREATE TABLE ${table} AS ${rows}; DROP TABLE ${table}`)
  }

  /** Deletes sessions that have expired since `sinceMs`. @returns their ids */
  async sweep(nowMs: number, sinceMs: number, limit: number): Promise<string[]> {
    const { rows } = await this.#ask(
      `SELECT session_id FROM llm_proxy.sessions WHERE ${IS_EXPIRED} AND updated_at_ms + ttl_ms > $2 LIMIT $3`,
      [nowMs, sinceMs, limit],
    )
    const expired = rows.map(({ session_id: id }) => id as string)
    const calls = expired.map((sessionId, id): ThreadCommand<WriteMethods> => {
      return { id, method: 'deleteSession', args: [sessionId] }
    })
    const failed = (await this.commit(calls)).find((reply) => 'error' in reply)
    if (failed !== undefined && 'error' in failed) throw fromWireError(failed.error)
    return expired
  }

  /** Removes some rows of deleted or reset sessions. @returns whether there may be more */
  async purge(): Promise<boolean> {
    const purged = await this.#withClient(purgeRows)
    if (purged === 'blobs') {
      // To find out which blobs were deleted is not worth a query.
      this.#tables.blobs.forgetAll()
      this.#tables.blobUses.forgetAll()
    }
    return purged !== 'done'
  }

  /** Ends the lease, which frees the node's sessions at once. */
  async close(): Promise<void> {
    await endLeases(this.#client, [this.lease]).catch(() => {})
    await this.#disconnect()
  }

  async #disconnect(): Promise<void> {
    await this.#client.end().catch(() => {})
  }

  /** Computes a group. Repeats the computation if a row that it assumed absent exists. */
  async #workOut(calls: readonly ThreadCommand<WriteMethods>[]): Promise<Reply[]> {
    let isAlone = false
    while (true) {
      const tables = this.#tables
      tables.begin()
      const replies = this.#attempt(calls, isAlone)
      if (tables.hasMissing) {
        const isThere = await this.#withClient((client) => fetchMissing(client, tables))
        // Results computed under the previous lease are invalid.
        if (this.#tables !== tables) continue
        if (replies !== undefined && !isThere) return replies
        if (replies === undefined) this.#turns.forget()
        continue
      }
      if (replies !== undefined) return replies
      this.#turns.forget()
      isAlone = true
    }
  }

  /** @returns undefined if an operation failed, and each must be applied separately */
  #attempt(calls: readonly ThreadCommand<WriteMethods>[], isAlone: boolean): Reply[] | undefined {
    const apply = (call: ThreadCommand<WriteMethods>): Reply => ({
      id: call.id,
      value: invoke(this.#methods, call as ThreadCommand<SessionWriteMethods>),
    })
    if (isAlone) return calls.map((call) => this.#alone(call, apply))
    try {
      return calls.map(apply)
    } catch {
      return undefined
    }
  }

  #alone(call: ThreadCommand<WriteMethods>, apply: (call: ThreadCommand<WriteMethods>) => Reply): Reply {
    try {
      return this.#tables.alone(() => apply(call))
    } catch (error) {
      this.#turns.forget()
      return { id: call.id, error: toWireError(error) }
    }
  }

  /** Commits the group. @returns whether it is committed; if not, the stale caches have been dropped */
  async #write(): Promise<boolean> {
    const group = this.#group + 1
    const nextIds = JSON.stringify(this.#tables.nextIds)
    for (let last: number | undefined = this.#group; last !== group; ) {
      const lease = { id: this.lease, epoch: this.#epoch }
      const statement = new GroupStatement({ lease, group, nextIds, ...this.#tables.conditions })
      this.#tables.writeTo(statement)
      try {
        const { rows } = await this.#client.query<GroupResponse>(statement.query)
        if (rows[0]!.writers !== 1) {
          await this.#learnWhy(rows[0]!)
          return false
        }
        last = group
      } catch (error) {
        if (!isConnectionLoss(error)) throw error
        // The outcome of the commit is unknown, and no command is answered before it is known.
        const before = this.lease
        last = await this.#resume(Number.POSITIVE_INFINITY)
        if (this.lease !== before) return last === group
        if (last !== group && last !== this.#group) throw this.#lose(GONE_BACK)
      }
    }
    this.#group = group
    return true
  }

  /** Drops the caches that made the group's preconditions fail, and takes a new lease if this one has ended. */
  async #learnWhy(same: GroupResponse): Promise<void> {
    this.#tables.forgetOthers(same)
    this.#turns.forget()
    const isOurs = await this.#withClient(async (client) => {
      const { rows } = await client.query<{ ended: number; epoch: number }>(
        'SELECT ended, epoch FROM llm_proxy.proxies WHERE id = $1',
        [this.lease],
      )
      return rows[0]?.ended === 0 && rows[0].epoch === this.#epoch
    })
    if (!isOurs) await this.renew()
  }

  /**
   * Reconnects under a new epoch, which fences everything sent before, or under a new lease if this one was ended.
   * @returns the number of the last group committed before; undefined: it cannot be determined any more
   */
  async #resume(patienceMs: number): Promise<number | undefined> {
    while (true) {
      await this.#disconnect()
      this.#client = await this.#reconnect(patienceMs, this.#lease)
      try {
        const { rows } = await this.#client.query<{ epoch: number; last_group: number; ended: number }>(
          'UPDATE llm_proxy.proxies SET epoch = epoch + 1 WHERE id = $1 RETURNING epoch, last_group, ended',
          [this.lease],
        )
        const row = rows[0]
        if (row?.ended === 0) this.#epoch = row.epoch
        else await this.renew()
        return row?.last_group
      } catch (error) {
        if (!isConnectionLoss(error)) throw error
      }
    }
  }

  /** Runs queries that change nothing or are idempotent. Reconnects and repeats them if the connection is lost. */
  async #withClient<T>(ask: (client: Client) => Promise<T>): Promise<T> {
    while (true) {
      try {
        return await ask(this.#client)
      } catch (error) {
        if (!isConnectionLoss(error)) throw error
        const [lease, group] = [this.lease, this.#group]
        const last = await this.#resume(PATIENCE_MS)
        if (this.lease === lease && last !== group) throw this.#lose(GONE_BACK)
      }
    }
  }

  /** Marks the writer as permanently unable to write, because its caches may be wrong. */
  #lose(message: string): ProxyError {
    this.#lost = new ProxyError('store_failed', message)
    return this.#lost
  }

  #ask(sql: string, values: readonly unknown[] = []) {
    return this.#withClient((client) => client.query<Record<string, unknown>>(sql, [...values]))
  }
}

const GONE_BACK =
  'the database has lost acknowledged commits, as after a fail-over to a standby that lagged: restart llm-proxy'

/** Returns whether a unique index already contains the key. */
function isTaken(error: unknown): boolean {
  return (error as { code?: unknown }).code === '23505'
}

/** Returns whether PostgreSQL rejected a value (classes 22 and 23): usually a second turn with the same id. */
function isOfOneCall(error: unknown): boolean {
  const { code } = error as { code?: unknown }
  return typeof code === 'string' && /^2[23]...$/.test(code)
}
