/** Changes of sessions. The databases differ in how a row is found and written. */
import { applyMarks, type MarksChange } from '../port/marks.ts'
import type { Reward, SESSION_WRITES, SessionCreation, SessionRecord, TurnStore } from '../port/turn-store.ts'
import type { ThreadMethods } from './calls.ts'
import {
  buildRewardColumns,
  formatMarksColumn,
  type NewSessionRow,
  NO_TURNS,
  type SessionCounterChange,
  type SessionRow,
  toRecord,
} from './session-rows.ts'

/** The operations of the port that change only the row of a session. */
type PortWrites = ThreadMethods<Pick<TurnStore, (typeof SESSION_WRITES)[number]>>

export abstract class SessionWriter<R extends SessionRow = SessionRow> implements PortWrites {
  /** Returns `trees.id` of the session's turns. */
  abstract findTree(sessionId: string): number | undefined
  /**
   * Verifies the epoch of a session in a database that several nodes share.
   * @throws ProxyError `session_moved` if this node does not own the session, or owns it with another epoch
   */
  abstract checkEpoch(sessionId: string, epoch: number): void
  /** Updates the session's counters after a change of its turns. */
  abstract touch(sessionId: string, change: SessionCounterChange, atMs: number): void

  abstract find(sessionId: string): R | undefined
  /** @param isOwn whether this node becomes the owner, in a database that several nodes share */
  protected abstract insert(row: Omit<SessionRow, 'id'>, isOwn: boolean): R
  /** Writes the columns of `change`. @returns the changed row */
  protected abstract update(row: R, change: Partial<SessionRow>): R
  protected abstract remove(row: R): void
  /** Adds a tree for turns. @returns its row id */
  protected abstract createTree(): number
  /** Marks a tree as dropped; its rows are removed later, in batches. */
  protected abstract dropTree(tree: number): void

  create({ isOwn, ...session }: NewSessionRow): SessionCreation {
    const existing = this.find(session.session_id)
    if (existing !== undefined) return { created: false, session: toRecord(existing) }
    const row = { ...session, ...NO_TURNS, updated_at_ms: session.created_at_ms, tree: this.createTree() }
    return { created: true, session: toRecord(this.insert(row, isOwn)) }
  }

  end(sessionId: string, status: 'completed' | 'aborted', atMs: number): SessionRecord | undefined {
    const row = this.find(sessionId)
    if (row?.status !== 'active') return row && toRecord(row)
    return toRecord(this.update(row, { status, ended_at_ms: atMs, updated_at_ms: atMs }))
  }

  setReward(sessionId: string, reward: Reward, atMs: number): SessionRecord | undefined {
    return this.#change(sessionId, () => ({ ...buildRewardColumns(sessionId, reward), updated_at_ms: atMs }))
  }

  changeMarks(sessionId: string, change: MarksChange, atMs: number): SessionRecord | undefined {
    return this.#change(sessionId, (row) => ({
      marks: formatMarksColumn(applyMarks(toRecord(row).marks, change)),
      updated_at_ms: atMs,
    }))
  }

  reset(sessionId: string, atMs: number): SessionRecord | undefined {
    return this.#change(sessionId, (row) => {
      this.dropTree(row.tree)
      return { ...NO_TURNS, tree: this.createTree(), updated_at_ms: atMs }
    })
  }

  /** Deletes the session immediately; its turns are removed later, in batches. @returns whether it existed */
  delete(sessionId: string): boolean {
    const row = this.find(sessionId)
    if (row === undefined) return false
    this.dropTree(row.tree)
    this.remove(row)
    return true
  }

  /**
   * Deletes the session if it has still expired, and no turn is in flight: it may have changed since it was selected.
   * @returns whether it was deleted
   */
  deleteExpired(sessionId: string, nowMs: number): boolean {
    const row = this.find(sessionId)
    const hasExpired = row !== undefined && row.ttl_ms !== null && row.updated_at_ms + row.ttl_ms <= nowMs
    return hasExpired && row.open_turns === 0 && this.delete(sessionId)
  }

  #change(sessionId: string, getChange: (row: R) => Partial<SessionRow>): SessionRecord | undefined {
    const row = this.find(sessionId)
    return row && toRecord(this.update(row, getChange(row)))
  }
}
