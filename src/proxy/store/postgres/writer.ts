/**
 * Works calls out, a group at a time, and puts each group on record by one statement. Runs on the writer thread.
 *
 * Other proxies write to the same record. What this one remembers of a session holds as long as the session's version does,
 * which the statement checks under the lock of the row: where it is another one, the group is worked out once more. Each
 * connection raises the epoch of the proxy's lease, which voids what an earlier one still sends. So a commit whose answer was
 * lost is looked up under the new epoch, by the group's number, and sent again if it is not there.
 */
import type { Client } from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import type { ClaimedSession } from '../port/shared-record.ts'
import { fromWireError, invoke, type Reply, type ThreadCall, toWireError } from '../record/calls.ts'
import { TurnWriter } from '../record/turns.ts'
import { UnopenedTurns, type WriteMethods, writeMethods } from '../record/write-methods.ts'
import { inTransaction, isConnectionLoss } from './connection.ts'
import { consumerMethods } from './consumers.ts'
import { type GroupAnswer, GroupStatement } from './group-statement.ts'
import { claimSession, endLeases, freeSessions, type OwnerLease, takeLease } from './lease.ts'
import { fetchMissing } from './missing-rows.ts'
import { IS_EXPIRED } from './select-sessions.ts'
import { WriterTables } from './writer-tables.ts'

/** Rows of deleted sessions that one step removes: some milliseconds' work. What points to others goes first. */
const PURGE_ROWS = 1_000
const PURGED_TABLES = ['consumer_sessions', 'details', 'turns', 'nodes', 'texts', 'blob_uses']

/** More than a turn takes as a rule. */
const ROOM_KB = 1024

/** Gives a new connection, however long that takes, or the reason why there will be none. */
export type Reconnect = (patienceMs: number, lease: OwnerLease) => Promise<Client>

/** A call that has changed nothing yet waits for the database no longer. */
export const PATIENCE_MS = 10_000

/** What a group was worked out with was changed by another proxy, so many times in a row: something is wrong. */
const MAX_ATTEMPTS = 100

interface WriterOptions {
  client: Client
  reconnect: Reconnect
  /** Of the machine or pod. */
  name: string
  cacheBytes: number
}

export class Writer {
  readonly #reconnect: Reconnect
  readonly #name: string
  readonly #cacheBytes: number
  readonly #unopened = new UnopenedTurns()
  #client: Client
  #lost: ProxyError | undefined
  #lease: OwnerLease
  #epoch: number
  /** The number of the last group that is on record. */
  #group: number
  #tables!: WriterTables
  #turns!: TurnWriter
  #methods!: WriteMethods
  /** What other proxies do with a consumer at the same time is waited for. */
  readonly consumers = consumerMethods((change) => this.#withClient(change))

  /** Takes a lease, and marks turns that were left open by proxies that have gone as `interrupted`. */
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

  /** Begins to remember what is on record, under a new lease. */
  #remember(): void {
    const { id, slot, nextIds, epoch, group } = this.#lease
    this.#epoch = epoch
    this.#group = group
    this.#tables = new WriterTables({ lease: id, slot }, nextIds)
    this.#turns = new TurnWriter(this.#tables, this.#tables.sessions, this.#cacheBytes)
    this.#methods = writeMethods(this.#turns, this.#tables.sessions, this.#unopened, IN_NO_GROUP)
  }

  /** The number of the lease under which it writes. */
  get lease(): number {
    return this.#lease.id
  }

  /** Why this writer can never write again; undefined: it can. */
  get lost(): ProxyError | undefined {
    return this.#lost
  }

  /**
   * An operation that fails does so alone; if the commit fails, all of them have failed.
   * @param isAgain what it could not put there, as another proxy may have been first, is asked for once more
   */
  async commit(calls: readonly ThreadCall<WriteMethods>[], isAgain = false): Promise<Reply[]> {
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

  /** None of the calls has changed anything. */
  refuse(calls: readonly ThreadCall<WriteMethods>[], error: unknown): Reply[] {
    const replies = calls.map(({ id }) => ({ id, error: toWireError(error) }))
    this.#unopened.note(calls, replies)
    return replies
  }

  /**
   * Makes a session this proxy's own, as {@link claimSession} does.
   * @returns undefined: there is no such session, or it is another proxy's
   */
  async claim(sessionId: string, seizes: boolean): Promise<ClaimedSession | undefined> {
    const claimed = await this.#withClient((client) =>
      claimSession(client, sessionId, { lease: this.lease, seizes }),
    )
    // Before the first owner there were no turns.
    if (claimed !== undefined && claimed.epoch > 1) this.#tables.forgetTurns(sessionId)
    else this.#tables.sessions.rows.forget([sessionId])
    return claimed
  }

  /** Closes turns of sessions whose owners have gone. @param over leases that ran out a while ago */
  async free(over: readonly number[]): Promise<void> {
    await this.#withClient((client) => freeSessions(client, over))
  }

  /** Somebody has ended the lease: nothing that is remembered holds any more. */
  async renew(): Promise<void> {
    await this.#withClient(async (client) => {
      this.#lease = await takeLease(client, this.#name)
    })
    this.#remember()
  }

  /**
   * Commits a table that has room for a turn, and drops it in the same transaction. A commit of a few bytes still fits into a
   * full disk, and a row may fit into a page that deleted rows have left.
   * @throws Error of the driver: 53100 for a full disk
   */
  async tryCommit(): Promise<void> {
    const table = `llm_proxy.probe_${this.lease}`
    const rows = `SELECT repeat(' ', 1000) FROM generate_series(1, ${ROOM_KB})`
    await this.#ask(`CREATE TABLE ${table} AS ${rows}; DROP TABLE ${table}`)
  }

  /** Removes sessions whose time has run out since then. @returns their ids */
  async sweep(nowMs: number, sinceMs: number, limit: number): Promise<string[]> {
    const { rows } = await this.#ask(
      `SELECT session_id FROM llm_proxy.sessions WHERE ${IS_EXPIRED} AND updated_at_ms + ttl_ms > $2 LIMIT $3`,
      [nowMs, sinceMs, limit],
    )
    const expired = rows.map(({ session_id: id }) => id as string)
    const calls = expired.map((sessionId, id): ThreadCall<WriteMethods> => {
      return { id, method: 'deleteSession', args: [sessionId] }
    })
    const failed = (await this.commit(calls)).find((reply) => 'error' in reply)
    if (failed !== undefined && 'error' in failed) throw fromWireError(failed.error)
    return expired
  }

  /** Removes some rows of deleted or reset sessions. @returns whether there may be more */
  async purge(): Promise<boolean> {
    const { rows } = await this.#ask('SELECT id FROM llm_proxy.trees WHERE dropped = 1 LIMIT 1')
    if (rows[0] === undefined) return false
    const tree = rows[0].id
    for (const table of PURGED_TABLES) {
      const some = `SELECT id FROM llm_proxy.${table} WHERE tree = $1 LIMIT ${PURGE_ROWS}`
      const gone = `DELETE FROM llm_proxy.${table} WHERE id IN (${some})`
      if (table !== 'blob_uses') {
        const { rowCount } = await this.#ask(table === 'turns' ? withNotes(gone) : gone, [tree])
        if (rowCount! > 0) return true
        continue
      }
      const { rows: uses } = await this.#ask(`${gone} RETURNING blob`, [tree])
      if (uses.length === 0) continue
      await this.#dropUnused(uses.map(({ blob }) => blob as number))
      return true
    }
    await this.#ask('DELETE FROM llm_proxy.trees WHERE id = $1', [tree])
    return true
  }

  /** A blob goes with the last text that has it. */
  async #dropUnused(blobs: readonly number[]): Promise<void> {
    await this.#withClient((client) =>
      inTransaction(client, async () => {
        // A group that points to one of them has its row: what it adds is seen behind that.
        await client.query(
          'SELECT FROM llm_proxy.blobs WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE',
          [blobs],
        )
        await client.query(
          `DELETE FROM llm_proxy.blobs WHERE id = ANY($1::bigint[])
             AND NOT EXISTS (SELECT 1 FROM llm_proxy.blob_uses WHERE blob_uses.blob = blobs.id)`,
          [blobs],
        )
      }),
    )
    // What is remembered of them is not true any more, and which of them have gone is not worth asking.
    this.#tables.blobs.forgetAll()
    this.#tables.blobUses.forgetAll()
  }

  /** What it owned is free at once. */
  async close(): Promise<void> {
    await endLeases(this.#client, [this.lease]).catch(() => {})
    await this.#disconnect()
  }

  async #disconnect(): Promise<void> {
    await this.#client.end().catch(() => {})
  }

  /** What is worked out without a row that is there is worked out again, with it. */
  async #workOut(calls: readonly ThreadCall<WriteMethods>[]): Promise<Reply[]> {
    let isAlone = false
    while (true) {
      const tables = this.#tables
      tables.begin()
      const replies = this.#attempt(calls, isAlone)
      if (tables.hasMissing) {
        const isThere = await this.#withClient((client) => fetchMissing(client, tables))
        // Under a new lease nothing of it holds.
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

  /** @returns undefined if a call has failed, and each is to be tried alone */
  #attempt(calls: readonly ThreadCall<WriteMethods>[], isAlone: boolean): Reply[] | undefined {
    const apply = (call: ThreadCall<WriteMethods>): Reply => ({
      id: call.id,
      value: invoke(this.#methods, call),
    })
    if (isAlone) return calls.map((call) => this.#alone(call, apply))
    try {
      return calls.map(apply)
    } catch {
      return undefined
    }
  }

  #alone(call: ThreadCall<WriteMethods>, apply: (call: ThreadCall<WriteMethods>) => Reply): Reply {
    try {
      return this.#tables.alone(() => apply(call))
    } catch (error) {
      this.#turns.forget()
      return { id: call.id, error: toWireError(error) }
    }
  }

  /** @returns whether the group is on record; else what it was worked out with is forgotten */
  async #write(): Promise<boolean> {
    const group = this.#group + 1
    const nextIds = JSON.stringify(this.#tables.nextIds)
    for (let last: number | undefined = this.#group; last !== group; ) {
      const lease = { id: this.lease, epoch: this.#epoch }
      const statement = new GroupStatement({ lease, group, nextIds, ...this.#tables.conditions })
      this.#tables.writeTo(statement)
      try {
        const { rows } = await this.#client.query<GroupAnswer>(statement.query)
        if (rows[0]!.writers !== 1) {
          await this.#learnWhy(rows[0]!)
          return false
        }
        last = group
      } catch (error) {
        if (!isConnectionLoss(error)) throw error
        // Nobody knows whether it was a commit, and nobody is answered before somebody does.
        const before = this.lease
        last = await this.#resume(Number.POSITIVE_INFINITY)
        if (this.lease !== before) return last === group
        if (last !== group && last !== this.#group) throw this.#lose(GONE_BACK)
      }
    }
    this.#group = group
    return true
  }

  /** Why a group was not put on record. */
  async #learnWhy(same: GroupAnswer): Promise<void> {
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
   * Under a new epoch, in which nothing that was sent before can still be committed; or under a new lease, where somebody has
   * ended this one.
   * @returns the number of the last group that was put on record before; undefined: nobody knows any more
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

  /** For what changes nothing, or may be done twice. */
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

  /** Nothing that this writer knows is true any more. */
  #lose(message: string): ProxyError {
    this.#lost = new ProxyError('store_failed', message)
    return this.#lost
  }

  #ask(sql: string, values: readonly unknown[] = []) {
    return this.#withClient((client) => client.query<Record<string, unknown>>(sql, [...values]))
  }
}

const isServedAlone = (): never => {
  throw new Error('It is served alone')
}

/**
 * A sweep may delete any session, a check creates a table, and the database itself works out what belongs to consumers.
 */
const IN_NO_GROUP = {
  sweep: isServedAlone,
  tryCommit: isServedAlone,
  createConsumer: isServedAlone,
  deleteConsumer: isServedAlone,
  leaseSessions: isServedAlone,
  changeLease: isServedAlone,
  putIntoGroups: isServedAlone,
  discardGroups: isServedAlone,
  putGiven: isServedAlone,
  setImported: isServedAlone,
}

const GONE_BACK =
  'the database has lost what it had acknowledged, as a standby may that was behind: restart llm-proxy'

/** A unique index has the key already. */
function isTaken(error: unknown): boolean {
  return (error as { code?: unknown }).code === '23505'
}

/** What PostgreSQL refuses of the values that it is given (classes 22 and 23): a second turn with one id, as a rule. */
function isOfOneCall(error: unknown): boolean {
  const { code } = error as { code?: unknown }
  return typeof code === 'string' && /^2[23]...$/.test(code)
}

/** Turns go with what notes that the search has not indexed them: where nobody searches, nobody else removes that. */
function withNotes(turnsGone: string): string {
  return `WITH gone AS (${turnsGone} RETURNING id),
    notes AS (DELETE FROM llm_proxy.unsearched USING gone WHERE unsearched.id = gone.id)
    SELECT FROM gone`
}
