/** The sessions as the writer sees them while it computes a group. Sends no queries. */
import { LruCache } from '../../../base/lru-cache.ts'
import {
  marksColumn,
  type NewSessionRow,
  NO_CHANGE,
  type OwnershipRow,
  rewardColumns,
  type SessionRow,
  type TurnChange,
  toRecord,
} from '../common/session-rows.ts'
import type { Row, SessionTables } from '../common/tables.ts'
import { changedMarks, type MarksChange } from '../port/marks.ts'
import { sessionMoved } from '../port/node-coordination.ts'
import type { Reward, SessionCreation, SessionRecord, SessionStatus } from '../port/turn-store.ts'
import type { GroupChanges } from './group-changes.ts'
import { RowCache } from './row-cache.ts'

/** Cache limits: the number of trees whose sessions are known, and the size of session rows. */
const MAX_TREES = 200_000
const MAX_SESSION_CHARS = 32 * 1024 * 1024
/** Size of a session's row without its texts. */
const SESSION_CHARS = 500

/** A cached session. It is valid while its `version` equals that of the committed row. */
export interface SessionOwnershipRow extends SessionRow, OwnershipRow {
  version: number
}

export class WriterSessions implements SessionTables {
  readonly rows = new RowCache<string, SessionOwnershipRow>(MAX_SESSION_CHARS, sessionChars)
  readonly #changes: GroupChanges
  readonly #lease: number
  /** Ids of the sessions that the group depends on. */
  readonly #dependencies = new Set<string>()
  /** Ids of sessions by their trees. */
  readonly #sessionIds = new LruCache<number, string>(MAX_TREES, () => 1)

  /** @param lease lease of the writer's node */
  constructor(changes: GroupChanges, lease: number) {
    this.#changes = changes
    this.#lease = lease
  }

  begin(): void {
    this.#dependencies.clear()
  }

  /** The cached rows that the group depends on. */
  get dependencies(): SessionOwnershipRow[] {
    return [...this.#dependencies].flatMap((sessionId) => this.rows.getCommitted(sessionId) ?? [])
  }

  tree(sessionId: string): number | undefined {
    const tree = this.find(sessionId)?.tree
    if (tree !== undefined) this.#sessionIds.set(tree, sessionId)
    return tree
  }

  checkEpoch(sessionId: string, epoch: number): void {
    const row = this.find(sessionId)
    if (row === undefined || (row.epoch === epoch && row.owner === this.#lease)) return
    throw sessionMoved(sessionId)
  }

  create(session: NewSessionRow): SessionCreation {
    const existing = this.find(session.sessionId)
    if (existing !== undefined) return { created: false, session: toRecord(existing) }
    const epoch = session.isOwn ? 1 : 0
    const row: SessionOwnershipRow = {
      id: this.#changes.allocateId('sessions'),
      tree: this.#createTree(),
      session_id: session.sessionId,
      created_at_ms: session.createdAtMs,
      updated_at_ms: session.createdAtMs,
      ttl_ms: session.ttlMs,
      metadata: session.metadata,
      sampling_params: session.samplingParams,
      trust_agent: session.trustAgent ? 1 : 0,
      record: session.record,
      policies: session.policies,
      edited_calls: session.editedCalls,
      continue_responses: session.continueResponses,
      limits: session.limits,
      key_tag: session.keyTag,
      owner: epoch && this.#lease,
      epoch,
      version: 0,
      ...NO_TURNS,
    }
    this.#changes.insert('sessions', { id: row.id })
    this.rows.set(session.sessionId, row)
    return { created: true, session: toRecord(row), ...(epoch > 0 && { epoch }) }
  }

  end(sessionId: string, status: 'completed' | 'aborted', atMs: number): SessionRecord | undefined {
    const row = this.find(sessionId)
    if (row?.status !== 'active') return row && toRecord(row)
    return this.#change(row, { status, ended_at_ms: atMs, updated_at_ms: atMs })
  }

  setReward(sessionId: string, reward: Reward, atMs: number): SessionRecord | undefined {
    const row = this.find(sessionId)
    return row && this.#change(row, { ...rewardColumns(sessionId, reward), updated_at_ms: atMs })
  }

  changeMarks(sessionId: string, change: MarksChange, atMs: number): SessionRecord | undefined {
    const row = this.find(sessionId)
    if (row === undefined) return undefined
    const marks = marksColumn(changedMarks(toRecord(row).marks, change))
    return this.#change(row, { marks, updated_at_ms: atMs })
  }

  reset(sessionId: string, atMs: number): SessionRecord | undefined {
    const row = this.find(sessionId)
    if (row === undefined) return undefined
    this.#changes.dropTree(row.tree)
    return this.#change(row, { ...NO_TURNS, tree: this.#createTree(), updated_at_ms: atMs })
  }

  delete(sessionId: string): boolean {
    const row = this.find(sessionId)
    if (row === undefined) return false
    this.#changes.dropTree(row.tree)
    this.#changes.deleteSession(row.id)
    this.rows.set(sessionId, undefined)
    return true
  }

  touch(sessionId: string, change: TurnChange, atMs: number): void {
    const row = this.find(sessionId)
    if (row === undefined) return
    const { newTurns, openTurns, failedTurns, inexactTurns, sampledTokens } = { ...NO_CHANGE, ...change }
    this.#change(row, {
      turn_count: row.turn_count + newTurns,
      open_turns: row.open_turns + openTurns,
      failed_turns: row.failed_turns + failedTurns,
      inexact_turns: row.inexact_turns + inexactTurns,
      sampled_tokens: row.sampled_tokens + sampledTokens,
      updated_at_ms: Math.max(row.updated_at_ms, atMs),
    })
  }

  #change(row: SessionOwnershipRow, change: Partial<SessionOwnershipRow>): SessionRecord {
    const changed = { ...row, ...change, version: row.version + 1 }
    this.rows.set(row.session_id, changed)
    return toRecord(changed)
  }

  /** Finds a session, and makes the group depend on its row. */
  find(sessionId: string): SessionOwnershipRow | undefined {
    this.#dependencies.add(sessionId)
    return this.rows.get(sessionId)
  }

  #createTree(): number {
    const id = this.#changes.allocateId('trees')
    this.#changes.insert('trees', { id, dropped: 0 })
    return id
  }

  /** Advances the next turn index of the session. */
  advanceNextIndex({ tree, call_index: index }: Row): void {
    const session = this.rows.get(this.#sessionIds.get(tree as number)!)!
    const next = Math.max(session.next_index, (index as number) + 1)
    if (next > session.next_index) this.rows.set(session.session_id, { ...session, next_index: next })
  }
}

/** The columns of a session without turns. */
const NO_TURNS = {
  status: 'active' as SessionStatus,
  ended_at_ms: null,
  reward: null,
  reward_components: null,
  reward_lines: null,
  reward_turns: null,
  reward_sum: null,
  marks: null,
  turn_count: 0,
  next_index: 0,
  open_turns: 0,
  failed_turns: 0,
  inexact_turns: 0,
  sampled_tokens: 0,
}

function sessionChars({ metadata, sampling_params: params, marks }: SessionOwnershipRow): number {
  return SESSION_CHARS + metadata.length + params.length + (marks?.length ?? 0)
}
