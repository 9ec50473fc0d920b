/**
 * The tables as the writer sees them while it computes a group: cached rows and uncommitted changes. No method sends a
 * query.
 */
import { hash as digest } from 'node:crypto'
import { LruCache } from '../../../base/lru-cache.ts'
import type { TextColumn } from '../common/packing.ts'
import {
  type ColumnValues,
  MAX_ECHO_CANDIDATES,
  type NewNode,
  type NewText,
  type OpenTurnRow,
  type SequenceRow,
  type TurnEndRow,
  type TurnTables,
} from '../common/tables.ts'
import type { CompletionRow, StepRow } from '../common/turn-rows.ts'
import { GroupChanges, type NextIds } from './group-changes.ts'
import type { GroupStatement } from './group-statement.ts'
import type { NodeLease } from './lease.ts'
import { RowCache, UndoLog } from './row-cache.ts'
import { WriterSessions } from './writer-sessions.ts'

/** The limits of each cache: of small rows, their number; of completions, characters; of token ids, bytes. */
const MAX_KEYS = 200_000
const MAX_CHARS = 8 * 1024 * 1024
const MAX_ID_BYTES = 16 * 1024 * 1024
const ONE_ROW = () => 1

/** A row of `nodes`: its id, and the number of texts in its list. */
export interface NodePosition {
  id: number
  depth: number
}

/** The columns of an ended turn that a delivery report or a redelivery reads or changes. */
export type TurnEndColumns = Omit<TurnEndRow, 'session_status'>

export class WriterTables implements TurnTables {
  readonly sessions: WriterSessions
  readonly #changes: GroupChanges
  #undo = new UndoLog()
  /** Committed blobs that the group references, by id. */
  readonly #referencedBlobs = new Map<number, string>()
  /** Ids of texts, by tree and hash. */
  readonly texts = new RowCache<string, number>(MAX_KEYS, ONE_ROW)
  /** The trees of texts, by the ids of the texts. */
  readonly textTrees = new RowCache<number, number>(MAX_KEYS, ONE_ROW)
  readonly nodes = new RowCache<string, NodePosition>(MAX_KEYS, ONE_ROW)
  readonly blobs = new RowCache<string, number>(MAX_KEYS, ONE_ROW)
  readonly blobUses = new RowCache<string, number>(MAX_KEYS, ONE_ROW)
  /** Open turns by tree and turn id. */
  readonly openTurns = new RowCache<string, OpenTurnRow>(MAX_KEYS, ONE_ROW)
  readonly endedTurns = new RowCache<string, TurnEndColumns>(MAX_KEYS / 20, ONE_ROW)
  readonly sequences = new RowCache<number, SequenceRow>(MAX_ID_BYTES, countSequenceBytes)
  /** The row id of the last turn whose prompt ids are stored, by tree. */
  readonly lastPrompts = new RowCache<number, number>(MAX_KEYS, ONE_ROW)
  /**
   * Completions by tree, the newest first. They are not read from the database: an assistant message that is not an
   * echo of a cached completion is stored in full.
   */
  readonly #completions = new LruCache<number, readonly CompletionRow[]>(MAX_CHARS, countCompletionChars)
  /** The turn that {@link findEnded} returned last. */
  #lastEnded: { key: string; row: TurnEndColumns } | undefined

  constructor({ id, slot, nextIds }: Pick<NodeLease, 'id' | 'slot' | 'nextIds'>) {
    this.#changes = new GroupChanges(slot, nextIds)
    this.sessions = new WriterSessions(this.#changes, id)
  }

  get #caches() {
    return [
      ...[this.sessions.rows, this.texts, this.textTrees, this.nodes, this.blobs, this.blobUses],
      ...[this.openTurns, this.endedTurns, this.sequences, this.lastPrompts],
    ]
  }

  /** Starts to compute a group, for the first time or again. */
  begin(): void {
    this.#undo = this.#changes.begin()
    this.sessions.begin()
    this.#referencedBlobs.clear()
    for (const cache of this.#caches) cache.begin(this.#undo)
  }

  /** Runs one operation, and undoes its changes if it throws, as a savepoint does. */
  withSavepoint<T>(run: () => T): T {
    const savepoint = this.#undo.length
    try {
      return run()
    } catch (error) {
      this.#undo.undoTo(savepoint)
      throw error
    }
  }

  get hasMissing(): boolean {
    return this.#caches.some((cache) => cache.missing.length > 0)
  }

  get nextIds(): NextIds {
    return this.#changes.nextIds
  }

  /** The cached rows that the group depends on. Its statement verifies that they are unchanged. */
  get preconditions() {
    return { sessions: this.sessions.dependencies, blobs: [...this.#referencedBlobs.keys()] }
  }

  /** Drops cached rows that another node has changed. @param valid ids of the preconditions that are met */
  invalidateChanged(valid: { sessions: readonly number[]; blobs: readonly number[] }): void {
    const changed = this.preconditions.sessions.filter(({ id }) => !valid.sessions.includes(id))
    this.sessions.rows.invalidate(changed.map(({ session_id: sessionId }) => sessionId))
    const deleted = [...this.#referencedBlobs].filter(([id]) => !valid.blobs.includes(id))
    this.blobs.invalidate(deleted.map(([, sha256]) => sha256))
    if (deleted.length > 0) this.blobUses.invalidateAll()
  }

  /** Drops all cached blobs after some were deleted. A query for the deleted ones would cost more. */
  invalidateBlobs(): void {
    this.blobs.invalidateAll()
    this.blobUses.invalidateAll()
  }

  /** Drops cached turns after the session's owner changed: another node may have added turns. */
  invalidateTurns(sessionId: string): void {
    this.sessions.rows.invalidate([sessionId])
    this.openTurns.invalidateAll()
    this.endedTurns.invalidateAll()
    this.lastPrompts.invalidateAll()
  }

  /** Adds the group's changes to its statement. */
  writeTo(statement: GroupStatement): void {
    const changed = [...this.sessions.rows.changed.values()].filter((row) => row !== undefined)
    this.#changes.writeTo(statement, changed as readonly object[] as readonly ColumnValues[])
  }

  /** Applies the group's changes to the caches, after their commit. */
  commit(): void {
    this.#changes.commit()
    for (const cache of this.#caches) cache.commit()
    for (const row of this.#changes.listTurnRows()) this.#cacheCompletion(row)
  }

  /** Discards the changes of a group that was not committed. */
  rollback(): void {
    for (const cache of this.#caches) cache.rollback()
  }

  // The operations of RequestTables.

  findText(tree: number, hash: Buffer): number | undefined {
    return this.texts.get(getKey(tree, hash))
  }

  findTreeOfText(id: number): number | undefined {
    return this.textTrees.get(id)
  }

  addText({ echoOf, ...text }: NewText): number {
    const id = this.#changes.allocateId('texts')
    this.#changes.insert('texts', { ...text, id, echo_of: echoOf })
    this.texts.set(getKey(text.tree, text.hash), id)
    this.textTrees.set(id, text.tree)
    return id
  }

  findNode(tree: number, hash: Buffer): NodePosition | undefined {
    return this.nodes.get(getKey(tree, hash))
  }

  addNode({ sum, ...node }: NewNode): number {
    const id = this.#changes.allocateId('nodes')
    this.#changes.insert('nodes', { ...node, id, node_sum: sum })
    this.nodes.set(getKey(node.tree, node.hash), { id, depth: node.depth })
    return id
  }

  listEchoCandidates(tree: number): Iterable<CompletionRow> {
    return this.#completions.get(tree) ?? []
  }

  putBlob(tree: number, body: Buffer): number {
    const sha256 = digest('sha256', body, 'buffer')
    const key = sha256.toString('hex')
    const existing = this.blobs.get(key)
    const blob = existing ?? this.#changes.allocateId('others')
    if (existing === undefined) {
      this.#changes.insert('blobs', { id: blob, sha256, body })
      this.blobs.set(key, blob)
    } else if (this.blobs.getCommitted(key) === existing) this.#referencedBlobs.set(existing, key)
    const use = `${tree} ${blob}`
    if (this.blobUses.get(use) === undefined) {
      const id = this.#changes.allocateId('others')
      this.#changes.insert('blob_uses', { id, tree, blob })
      this.blobUses.set(use, id)
    }
    return blob
  }

  // The operations of TurnTables.

  openTurn(row: ColumnValues): void {
    const open = { ...row, id: this.#changes.allocateId('turns') } as unknown as OpenTurnRow
    this.#changes.putTurn(open, true)
    this.sessions.advanceNextIndex(row)
    this.openTurns.set(getTurnKey(open), open)
  }

  findOpen(tree: number, turnId: string): OpenTurnRow | undefined {
    return this.openTurns.get(`${tree} ${turnId}`)
  }

  closeTurn(id: number, row: ColumnValues): void {
    this.#changes.putTurn({ ...row, id }, this.#changes.findTurn(id)?.isNew ?? false)
    this.openTurns.set(getTurnKey(row), undefined)
    this.#cacheEnded({ ...row, id })
  }

  addTurn(row: ColumnValues): number {
    const id = this.#changes.allocateId('turns')
    this.#changes.putTurn({ ...row, id }, true)
    this.sessions.advanceNextIndex(row)
    this.#cacheEnded({ ...row, id })
    return id
  }

  findEnded(sessionId: string, turnId: string): TurnEndRow | undefined {
    const session = this.sessions.find(sessionId)
    if (session === undefined) return undefined
    const key = `${session.tree} ${turnId}`
    const row = this.endedTurns.get(key)
    this.#lastEnded = row && { key, row }
    return row && { ...row, session_status: session.status }
  }

  deliver({ id, status, code, message, annotations }: ColumnValues): void {
    const delivery = { status, error_code: code, error_message: message, annotations }
    const found = this.#lastEnded
    if (found !== undefined && found.row.id === id) {
      this.endedTurns.set(found.key, { ...found.row, ...(delivery as Partial<TurnEndRow>) })
    }
    const turn = this.#changes.findTurn(id as number)
    if (turn !== undefined) this.#changes.putTurn({ ...turn.row, ...delivery }, turn.isNew)
    else this.#changes.putDelivery({ id, ...delivery })
  }

  putDetail({ sum, ...detail }: ColumnValues): void {
    this.#changes.putDetail({ ...detail, id: this.#changes.allocateId('others'), detail_sum: sum })
  }

  // The operations of SequenceTables.

  findSequence(id: number): SequenceRow | undefined {
    return this.sequences.get(id)
  }

  *listBases({ tree, id }: { id: number; tree: number }): Generator<number> {
    const last = this.lastPrompts.get(tree)
    if (last !== undefined && last !== id) yield last
  }

  /** Returns no turns: cached sequences are evicted by the cache limit alone. */
  listTurns(): number[] {
    return []
  }

  /** Caches the columns of an ended turn that later turns need. */
  #cacheEnded(row: ColumnValues): void {
    const { id, tree, prompt_base, prompt_shared, prompt_rest, completion_ids, ids_sum } =
      row as unknown as StepRow & {
        tree: number
      }
    this.endedTurns.set(getTurnKey(row), row as unknown as TurnEndRow)
    if (prompt_rest === null) return
    const prompt = { base: prompt_base, shared: prompt_shared, rest: prompt_rest }
    this.sequences.set(id, { id, ...prompt, completion: completion_ids, sum: ids_sum })
    this.lastPrompts.set(tree, id)
  }

  #cacheCompletion(row: ColumnValues): void {
    const { tree, tool_calls: toolCalls } = row as { tree: number; tool_calls?: TextColumn | null }
    if (toolCalls === null || toolCalls === undefined) return
    const { id, completion_text, reasoning } = row as unknown as CompletionRow
    const completion: CompletionRow = { id, completion_text, reasoning, tool_calls: toolCalls }
    const others = (this.#completions.get(tree) ?? []).filter((other) => other.id !== id)
    this.#completions.set(tree, [completion, ...others].slice(0, MAX_ECHO_CANDIDATES))
  }
}

/** Returns the key of a text or of a list of texts. */
export function getKey(tree: number, hash: Buffer): string {
  return `${tree} ${hash.toString('hex')}`
}

function getTurnKey({ tree, turn_id: turnId }: ColumnValues): string {
  return `${tree} ${turnId}`
}

function countSequenceBytes({ rest, completion }: SequenceRow): number {
  return (rest?.length ?? 0) + (completion?.length ?? 0)
}

function countCompletionChars(completions: readonly CompletionRow[]): number {
  return completions.reduce((sum, { completion_text: text, reasoning, tool_calls: calls }) => {
    return sum + (text?.length ?? 0) + (reasoning?.length ?? 0) + (calls?.length ?? 0)
  }, 0)
}
