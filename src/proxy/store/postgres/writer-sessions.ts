/**
 * The sessions as the writer sees them while it computes a group: cached rows and uncommitted changes. No method sends
 * a query.
 */
import { LruCache } from '../../../base/lru-cache.ts'
import {
  type NewSessionRow,
  NO_CHANGE,
  type OwnershipRow,
  type SessionCounterChange,
  type SessionRow,
} from '../common/session-rows.ts'
import { SessionWriter } from '../common/session-writer.ts'
import type { ColumnValues } from '../common/tables.ts'
import { createSessionMovedError } from '../port/node-coordination.ts'
import type { SessionCreation } from '../port/turn-store.ts'
import type { GroupChanges } from './group-changes.ts'
import { RowCache } from './row-cache.ts'

/** Cache limits: the number of trees whose session ids are cached, and the characters of session rows. */
const MAX_TREES = 200_000
const MAX_SESSION_CHARS = 32 * 1024 * 1024
/** The size of a session's row in characters, without its texts. */
const SESSION_CHARS = 500

/** The epoch of a session whose creator owns it. */
const FIRST_EPOCH = 1

/** A cached session. It is valid while its `version` equals that of the committed row. */
export interface WriterSessionRow extends SessionRow, OwnershipRow {
  version: number
}

export class WriterSessions extends SessionWriter<WriterSessionRow> {
  readonly rows = new RowCache<string, WriterSessionRow>(MAX_SESSION_CHARS, countSessionChars)
  readonly #changes: GroupChanges
  readonly #lease: number
  /** Ids of the sessions that the group depends on. */
  readonly #dependencies = new Set<string>()
  /** Ids of sessions by their trees. */
  readonly #sessionIds = new LruCache<number, string>(MAX_TREES, () => 1)

  /** @param lease lease of the writer's node */
  constructor(changes: GroupChanges, lease: number) {
    super()
    this.#changes = changes
    this.#lease = lease
  }

  begin(): void {
    this.#dependencies.clear()
  }

  /** The cached rows that the group depends on. */
  get dependencies(): WriterSessionRow[] {
    return [...this.#dependencies].flatMap((sessionId) => this.rows.getCommitted(sessionId) ?? [])
  }

  findTree(sessionId: string): number | undefined {
    const tree = this.find(sessionId)?.tree
    if (tree !== undefined) this.#sessionIds.set(tree, sessionId)
    return tree
  }

  checkEpoch(sessionId: string, epoch: number): void {
    const row = this.find(sessionId)
    // Only a sweep of another node deletes a session without its owner.
    if (row?.epoch === epoch && row.owner === this.#lease) return
    throw createSessionMovedError(sessionId)
  }

  override create(session: NewSessionRow): SessionCreation {
    const creation = super.create(session)
    return creation.created && session.isOwn ? { ...creation, epoch: FIRST_EPOCH } : creation
  }

  protected insert(session: Omit<SessionRow, 'id'>, isOwn: boolean): WriterSessionRow {
    const id = this.#changes.allocateId('sessions')
    const ownership = isOwn ? { owner: this.#lease, epoch: FIRST_EPOCH } : { owner: 0, epoch: 0 }
    const row: WriterSessionRow = { ...session, id, ...ownership, version: 0 }
    this.#changes.insert('sessions', { id })
    this.rows.set(session.session_id, row)
    return row
  }

  protected update(row: WriterSessionRow, change: Partial<SessionRow>): WriterSessionRow {
    const changed = { ...row, ...change, version: row.version + 1 }
    this.rows.set(row.session_id, changed)
    return changed
  }

  protected remove({ id, session_id: sessionId }: WriterSessionRow): void {
    this.#changes.deleteSession(id)
    this.rows.set(sessionId, undefined)
  }

  protected createTree(): number {
    const id = this.#changes.allocateId('trees')
    this.#changes.insert('trees', { id, dropped: 0 })
    return id
  }

  protected dropTree(tree: number): void {
    this.#changes.dropTree(tree)
  }

  touch(sessionId: string, change: SessionCounterChange, atMs: number): void {
    const row = this.find(sessionId)
    if (row === undefined) return
    const { newTurns, openTurns, failedTurns, inexactTurns, sampledTokens } = { ...NO_CHANGE, ...change }
    this.update(row, {
      turn_count: row.turn_count + newTurns,
      open_turns: row.open_turns + openTurns,
      failed_turns: row.failed_turns + failedTurns,
      inexact_turns: row.inexact_turns + inexactTurns,
      sampled_tokens: row.sampled_tokens + sampledTokens,
      updated_at_ms: Math.max(row.updated_at_ms, atMs),
    })
  }

  /** Finds a session, and makes the group depend on its row. */
  find(sessionId: string): WriterSessionRow | undefined {
    this.#dependencies.add(sessionId)
    return this.rows.get(sessionId)
  }

  /** Advances the next turn index of the session. */
  advanceNextIndex({ tree, call_index: index }: ColumnValues): void {
    const session = this.rows.get(this.#sessionIds.get(tree as number)!)!
    const next = Math.max(session.next_index, (index as number) + 1)
    if (next > session.next_index) this.rows.set(session.session_id, { ...session, next_index: next })
  }
}

function countSessionChars({ metadata, sampling_params: params, marks }: WriterSessionRow): number {
  return SESSION_CHARS + metadata.length + params.length + (marks?.length ?? 0)
}
