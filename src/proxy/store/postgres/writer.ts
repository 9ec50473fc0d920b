/**
 * Commits commands in groups, under optimistic concurrency control. Runs on the writer thread.
 *
 * 1. The common code ({@link TurnWriter}) computes the group's changes synchronously, on rows that the writer caches.
 * 2. If it looked up rows that the caches lack, they are loaded, and the group is computed again.
 * 3. One statement ({@link GroupStatement}) locks the sessions that the group depends on, verifies that the cached rows
 *    are unchanged, and writes the changes. If another node has changed a row, that row is dropped from the caches, and
 *    the group is computed again.
 *
 * A node records all turns of the sessions that it owns, so its caches are nearly always valid, and a commit is one
 * statement in one round trip. A pipelined transaction that reads under the locks and then writes, a statement for each
 * table, takes two. In the bench row `small` (target `local-postgres`) it had a p50 of 4.7 instead of 3.6 ms and took
 * 2.8 instead of 2.2 ms of CPU time for a turn of one agent; 42 instead of 47 ms and 0.77 instead of 0.83 ms with 64.
 */
import type { Client } from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import {
  fromWireError,
  invoke,
  type RemoteMethods,
  type ThreadCommand,
  type ThreadReply,
  toWireError,
} from '../common/calls.ts'
import { TurnWriter } from '../common/turns.ts'
import {
  createSessionWriteMethods,
  OpenFailures,
  type OtherWriteMethods,
  type SessionWriteMethods,
  type WriteMethods,
} from '../common/write-methods.ts'
import type { SessionOwnership } from '../port/node-coordination.ts'
import { bindQueries, isProgramError, type ServerProcess } from './connection.ts'
import { consumerWrites } from './consumers.ts'
import { GroupStatement } from './group-statement.ts'
import { importWrites } from './imports.ts'
import { claimSession, freeSessions, type NodeLease } from './lease.ts'
import { loadMissingRows } from './missing-rows.ts'
import { purgeRows } from './purge.ts'
import { IS_EXPIRED } from './select-sessions.ts'
import { type DatabaseReconnector, GroupRejectedError, WriterConnection } from './writer-connection.ts'
import { WriterTables } from './writer-tables.ts'

/** The size of the probe table, which exceeds that of most turns. */
const PROBE_KB = 1024

/**
 * The maximum number of computations of one group. Changes of other nodes invalidate a group this often only by a
 * defect.
 */
const MAX_ATTEMPTS = 100

interface WriterOptions {
  client: Client
  reconnect: DatabaseReconnector
  /** Name of the machine or pod. */
  name: string
  /** Memory for the token ids of recent turns. */
  cacheBytes: number
}

/** The caches, and the methods that change them. They are valid under one lease. */
interface WriterState {
  readonly lease: NodeLease
  readonly tables: WriterTables
  readonly turns: TurnWriter
  readonly methods: SessionWriteMethods
}

export class Writer {
  readonly #connection: WriterConnection
  readonly #cacheBytes: number
  readonly #unopened = new OpenFailures()
  #lastState: WriterState
  /**
   * The methods of consumers and imports, which are not part of groups. They wait for concurrent changes of a consumer
   * by other nodes.
   */
  readonly others: RemoteMethods<OtherWriteMethods> = bindQueries(
    { ...consumerWrites, ...importWrites },
    (change) => this.#connection.run(change),
  )

  /** Acquires a lease, and marks turns that crashed nodes left open as `interrupted`. */
  static async open({ client, reconnect, name, cacheBytes }: WriterOptions): Promise<Writer> {
    const connection = await WriterConnection.open(client, reconnect, name)
    await freeSessions(client, [], true)
    return new Writer(connection, cacheBytes)
  }

  private constructor(connection: WriterConnection, cacheBytes: number) {
    this.#connection = connection
    this.#cacheBytes = cacheBytes
    this.#lastState = this.#createState()
  }

  #createState(): WriterState {
    const { lease } = this.#connection
    const tables = new WriterTables(lease)
    const turns = new TurnWriter(tables, tables.sessions, this.#cacheBytes)
    const methods = createSessionWriteMethods(turns, tables.sessions, this.#unopened)
    return { lease, tables, turns, methods }
  }

  /** The state under the current lease. A new lease starts with empty caches. */
  get #state(): WriterState {
    if (this.#lastState.lease !== this.#connection.lease) this.#lastState = this.#createState()
    return this.#lastState
  }

  /** The number of the writer's lease. */
  get lease(): number {
    return this.#connection.lease.id
  }

  /** See {@link WriterConnection.serverProcess}. */
  get serverProcess(): ServerProcess {
    return this.#connection.serverProcess
  }

  /** See {@link WriterConnection.destroyConnectionTo}. */
  destroyConnectionTo(serverProcess: ServerProcess): void {
    this.#connection.destroyConnectionTo(serverProcess)
  }

  /** The reason why this writer can never write again; undefined: it can. */
  get lost(): ProxyError | undefined {
    return this.#connection.lost
  }

  /** Commits a group. A failed operation fails alone; a failed commit fails all of them. */
  async commit(commands: readonly ThreadCommand<WriteMethods>[]): Promise<ThreadReply[]> {
    try {
      const replies = await this.#commitGroup(commands)
      this.#unopened.recordOutcomes(commands, replies)
      return replies
    } catch (error) {
      if (commands.length === 1 || !concernsOneCommand(error)) return this.reject(commands, error)
      const alone: ThreadReply[] = []
      for (const command of commands) alone.push(...(await this.commit([command])))
      return alone
    }
  }

  /** Rejects commands, none of which has changed anything. */
  reject(commands: readonly ThreadCommand<WriteMethods>[], error: unknown): ThreadReply[] {
    const replies = commands.map(({ id }) => ({ id, error: toWireError(error) }))
    this.#unopened.recordOutcomes(commands, replies)
    return replies
  }

  /**
   * Makes this node the session's owner, as {@link claimSession} does.
   * @returns undefined: there is no such session, or another node owns it
   */
  async claim(sessionId: string, seizes: boolean): Promise<SessionOwnership | undefined> {
    const claimed = await this.#connection.run((client) =>
      claimSession(client, sessionId, { lease: this.lease, seizes }),
    )
    const { tables } = this.#state
    // A session that had no owner has no turns.
    if (claimed !== undefined && claimed.epoch > 1) tables.invalidateTurns(sessionId)
    else tables.sessions.rows.invalidate([sessionId])
    return claimed
  }

  /** Acquires a new lease after another node has ended this one. All caches are dropped. */
  renew(): Promise<void> {
    return this.#connection.renew()
  }

  /**
   * Commits a table as large as a turn, and drops it in the same transaction. A smaller probe would not detect a full
   * disk: a commit of a few bytes still fits, and a row may fit into a page with space of deleted rows.
   * @throws Error of the driver: 53100 for a full disk
   */
  async tryCommit(): Promise<void> {
    const table = `llm_proxy.probe_${this.lease}`
    const rows = `SELECT repeat(' ', 1000) FROM generate_series(1, ${PROBE_KB})`
    await this.#connection.run((client) =>
      client.query(`CREATE TABLE ${table} AS ${rows}; DROP TABLE ${table}`),
    )
  }

  /** Deletes sessions that have expired since `sinceMs`. @returns their ids */
  async sweep(nowMs: number, sinceMs: number, limit: number): Promise<string[]> {
    const { rows } = await this.#connection.run((client) =>
      client.query<{ session_id: string }>(
        `SELECT session_id FROM llm_proxy.sessions WHERE ${IS_EXPIRED} AND updated_at_ms + ttl_ms > $2 LIMIT $3`,
        [nowMs, sinceMs, limit],
      ),
    )
    const expired = rows.map(({ session_id: id }) => id)
    const deletions = expired.map((sessionId, id): ThreadCommand<WriteMethods> => {
      return { id, method: 'deleteExpired', args: [sessionId, nowMs] }
    })
    const replies = await this.commit(deletions)
    const failed = replies.find((reply) => 'error' in reply)
    if (failed !== undefined && 'error' in failed) throw fromWireError(failed.error)
    // Another node may have used a session since it was selected.
    return expired.filter((_, id) => (replies[id] as { value: boolean }).value)
  }

  /** Removes some rows of deleted or reset sessions. @returns whether there may be more */
  async purge(): Promise<boolean> {
    const purged = await this.#connection.run(purgeRows)
    if (purged === 'blobs') this.#state.tables.invalidateBlobs()
    return purged !== 'done'
  }

  /** Ends the lease, which frees the node's sessions immediately. */
  close(): Promise<void> {
    return this.#connection.close()
  }

  /** Commits a group, or leaves the caches as they were. */
  async #commitGroup(
    commands: readonly ThreadCommand<WriteMethods>[],
    isRetry = false,
  ): Promise<ThreadReply[]> {
    try {
      for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt += 1) {
        const state = this.#state
        const replies = await this.#compute(state, commands)
        if (replies === undefined || !(await this.#write(state))) continue
        state.tables.commit()
        return replies
      }
      throw new ProxyError(
        'store_failed',
        'other nodes changed the same sessions during each attempt to commit',
      )
    } catch (error) {
      this.#state.turns.forget()
      this.#state.tables.rollback()
      // Another node may have inserted the key first: the next attempt finds its row.
      if (commands.length > 1 || isRetry || !isDuplicateKey(error)) throw error
      return this.#commitGroup(commands, true)
    }
  }

  /**
   * Computes a group. Repeats this after it has loaded rows that the group looked up, if any of them exists.
   * @returns undefined: the lease has ended meanwhile
   */
  async #compute(
    state: WriterState,
    commands: readonly ThreadCommand<WriteMethods>[],
  ): Promise<ThreadReply[] | undefined> {
    const { lease, tables, turns } = state
    let hasSavepoints = false
    while (true) {
      tables.begin()
      const replies = hasSavepoints
        ? commands.map((command) => applyWithSavepoint(command, state))
        : applyAll(commands, state)
      if (tables.hasMissing) {
        const exists = await this.#connection.run((client) => loadMissingRows(client, tables))
        if (lease !== this.#connection.lease) return undefined
        if (replies !== undefined && !exists) return replies
      } else if (replies !== undefined) return replies
      else hasSavepoints = true
      if (replies === undefined) turns.forget()
    }
  }

  /** Writes the group. @returns whether it is committed; if not, the rows that have changed are no longer cached */
  async #write({ tables, turns }: WriterState): Promise<boolean> {
    const nextIds = JSON.stringify(tables.nextIds)
    const { preconditions } = tables
    const result = await this.#connection.commitGroup((number) => {
      const statement = new GroupStatement({ ...number, nextIds, ...preconditions })
      tables.writeTo(statement)
      return statement
    })
    if (result.committed === 1) return true
    tables.invalidateChanged(result)
    turns.forget()
    await this.#connection.ensureLease()
    return false
  }
}

/** Applies a command. Groups contain only commands of {@link SessionWriteMethods}. */
function apply(command: ThreadCommand<WriteMethods>, methods: SessionWriteMethods): unknown {
  return invoke(methods, command as ThreadCommand<SessionWriteMethods>)
}

/** Applies all commands. @returns undefined if one has failed, and each must be applied with a savepoint */
function applyAll(
  commands: readonly ThreadCommand<WriteMethods>[],
  { methods }: WriterState,
): ThreadReply[] | undefined {
  try {
    return commands.map((command) => ({ id: command.id, value: apply(command, methods) }))
  } catch {
    return undefined
  }
}

function applyWithSavepoint(
  command: ThreadCommand<WriteMethods>,
  { tables, turns, methods }: WriterState,
): ThreadReply {
  try {
    return { id: command.id, value: tables.withSavepoint(() => apply(command, methods)) }
  } catch (error) {
    turns.forget()
    return { id: command.id, error: toWireError(error) }
  }
}

/** Returns whether a unique index already contains the key. */
function isDuplicateKey(error: unknown): boolean {
  return (error as { code?: unknown }).code === '23505'
}

/** Returns whether the failure of a group may be that of one command, so that the others succeed without it. */
function concernsOneCommand(error: unknown): boolean {
  return isRejectedRow(error) || isProgramError(error) || error instanceof GroupRejectedError
}

/** Returns whether PostgreSQL rejected a row (classes 22 and 23): usually a second turn with the same id. */
function isRejectedRow(error: unknown): boolean {
  const { code } = error as { code?: unknown }
  return typeof code === 'string' && /^2[23]...$/.test(code)
}
