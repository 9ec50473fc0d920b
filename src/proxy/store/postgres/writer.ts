/**
 * Works calls out, a group at a time, and puts each group on record by one statement. Runs on the writer thread.
 *
 * Only one writes: each connection raises the record's epoch, which voids what an earlier one still sends. So a commit whose
 * answer was lost is looked up under the new epoch, by the group's number, and sent again if it is not there.
 */
import { randomUUID } from 'node:crypto'
import type { Client } from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import { fromWireError, invoke, type Reply, type ThreadCall, toWireError } from '../record/calls.ts'
import { TurnWriter } from '../record/turns.ts'
import { UnopenedTurns, type WriteMethods, writeMethods } from '../record/write-methods.ts'
import { isConnectionLoss } from './connection.ts'
import { GroupStatement } from './group-statement.ts'
import { fetchMissing } from './missing-rows.ts'
import { IS_EXPIRED } from './select-sessions.ts'
import { FIRST_IDS, type NextIds, WriterTables } from './writer-tables.ts'

/** Rows of deleted sessions that one step removes: some milliseconds' work. What points to others goes first. */
const PURGE_ROWS = 1_000
const PURGED_TABLES = ['details', 'turns', 'nodes', 'texts', 'blob_uses']

/** Gives a new connection, however long that takes, or the reason why there will be none. */
export type Reconnect = (patienceMs: number) => Promise<Client>

/** A call that has changed nothing yet waits for the database no longer. */
export const PATIENCE_MS = 10_000

export class Writer {
  readonly #reconnect: Reconnect
  readonly #tables: WriterTables
  readonly #turns: TurnWriter
  readonly #methods: WriteMethods
  readonly #unopened = new UnopenedTurns()
  /** Names this writer among all that there have been. */
  readonly #owner: string
  #client: Client
  #lost: ProxyError | undefined
  #epoch: number
  /** The number of the last group that is on record. */
  #group: number

  /** Takes the record over, and marks turns that were left open as `interrupted`. */
  static async open(client: Client, reconnect: Reconnect, cacheBytes: number): Promise<Writer> {
    const owner = randomUUID()
    const { rows } = await client.query<WriterRow>(
      'UPDATE llm_proxy.writer SET owner = $1, epoch = epoch + 1 RETURNING epoch, last_group, next_ids',
      [owner],
    )
    await client.query(CLOSE_OPEN_TURNS)
    return new Writer({ client, reconnect, owner }, rows[0]!, cacheBytes)
  }

  private constructor(
    { client, reconnect, owner }: { client: Client; reconnect: Reconnect; owner: string },
    { epoch, last_group: group, next_ids: ids }: WriterRow,
    cacheBytes: number,
  ) {
    this.#client = client
    this.#reconnect = reconnect
    this.#owner = owner
    this.#epoch = epoch
    this.#group = group
    this.#tables = new WriterTables({ ...FIRST_IDS, ...(JSON.parse(ids) as Partial<NextIds>) })
    this.#turns = new TurnWriter(this.#tables, this.#tables, cacheBytes)
    this.#methods = writeMethods(this.#turns, this.#tables, this.#unopened, {
      sweep: () => [],
      tryCommit: () => {},
    })
  }

  /** Why this writer can never write again; undefined: it can. */
  get lost(): ProxyError | undefined {
    return this.#lost
  }

  /** An operation that fails does so alone; if the commit fails, all of them have failed. */
  async commit(calls: readonly ThreadCall<WriteMethods>[]): Promise<Reply[]> {
    let replies: Reply[]
    try {
      replies = await this.#workOut(calls)
      await this.#write()
      this.#tables.commit()
    } catch (error) {
      this.#turns.forget()
      this.#tables.forgetGroup()
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

  /** Removes sessions whose time has run out. @returns their ids */
  async sweep(nowMs: number, limit: number): Promise<string[]> {
    const { rows } = await this.#ask(
      `SELECT session_id FROM llm_proxy.sessions WHERE ${IS_EXPIRED} LIMIT $2`,
      [nowMs, limit],
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
        const { rowCount } = await this.#ask(gone, [tree])
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
    await this.#ask(
      `DELETE FROM llm_proxy.blobs WHERE id = ANY($1::bigint[])
         AND NOT EXISTS (SELECT 1 FROM llm_proxy.blob_uses WHERE blob_uses.blob = blobs.id) RETURNING id`,
      [blobs],
    )
    // What is remembered of them is not true any more, and which of them have gone is not worth asking.
    this.#tables.blobs.forgetAll()
    this.#tables.blobUses.forgetAll()
  }

  async close(): Promise<void> {
    await this.#client.end().catch(() => {})
  }

  /** What is worked out without a row that is there is worked out again, with it. */
  async #workOut(calls: readonly ThreadCall<WriteMethods>[]): Promise<Reply[]> {
    let isAlone = false
    while (true) {
      this.#tables.begin()
      const replies = this.#attempt(calls, isAlone)
      if (this.#tables.hasMissing) {
        const isThere = await this.#withClient((client) => fetchMissing(client, this.#tables))
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

  async #write(): Promise<void> {
    const group = this.#group + 1
    const nextIds = JSON.stringify(this.#tables.nextIds)
    for (let last = this.#group; last < group; ) {
      const statement = new GroupStatement({ epoch: this.#epoch, group, nextIds })
      this.#tables.writeTo(statement)
      try {
        const { rows } = await this.#client.query<{ writers: number }>(statement.query)
        if (rows[0]!.writers !== 1) throw this.#lose(TAKEN_OVER)
        last = group
      } catch (error) {
        if (!isConnectionLoss(error)) throw error
        // Nobody knows whether it was a commit, and nobody is answered before somebody does.
        last = await this.#resume(Number.POSITIVE_INFINITY)
        if (last !== group && last !== this.#group) throw this.#lose(GONE_BACK)
      }
    }
    this.#group = group
  }

  /**
   * Under a new epoch, in which nothing that was sent before can still be committed.
   * @returns the number of the last group on record
   */
  async #resume(patienceMs: number): Promise<number> {
    while (true) {
      await this.close()
      this.#client = await this.#reconnect(patienceMs)
      try {
        const { rows } = await this.#client.query<WriterRow>(
          'UPDATE llm_proxy.writer SET epoch = epoch + 1 WHERE owner = $1 RETURNING epoch, last_group, next_ids',
          [this.#owner],
        )
        if (rows[0] === undefined) throw this.#lose(TAKEN_OVER)
        this.#epoch = rows[0].epoch
        return rows[0].last_group
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
        if ((await this.#resume(PATIENCE_MS)) !== this.#group) throw this.#lose(GONE_BACK)
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

interface WriterRow {
  epoch: number
  last_group: number
  next_ids: string
}

const GONE_BACK =
  'the database has lost what it had acknowledged, as a standby may that was behind: restart llm-proxy'
const TAKEN_OVER = 'another llm-proxy has taken this record over: let only one write to it'

/** What PostgreSQL refuses of the values that it is given (classes 22 and 23): a second turn with one id, as a rule. */
function isOfOneCall(error: unknown): boolean {
  const { code } = error as { code?: unknown }
  return typeof code === 'string' && /^2[23]...$/.test(code)
}

/** In one transaction: sessions count their turns. */
const CLOSE_OPEN_TURNS = `
WITH closed AS (
  UPDATE llm_proxy.turns SET status = 'interrupted' WHERE status = 'open' RETURNING tree
), counted AS (SELECT tree, count(*) AS turns FROM closed GROUP BY tree)
UPDATE llm_proxy.sessions SET failed_turns = failed_turns + counted.turns, open_turns = 0
FROM counted WHERE sessions.tree = counted.tree`
