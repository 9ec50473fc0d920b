/** The tables as the writer sees them while it computes a group of operations. Sends no queries. */
import { hash as digest } from 'node:crypto'
import { LruCache } from '../../../base/lru-cache.ts'
import type { TextColumn } from '../common/packing.ts'
import {
  MAX_ANSWERS,
  type NewNode,
  type NewText,
  type OpenRow,
  type Row,
  type SequenceRow,
  type TurnEndRow,
  type TurnTables,
} from '../common/tables.ts'
import type { CompletionRow, StepRow } from '../common/turn-rows.ts'
import { GroupChanges, type NextIds } from './group-changes.ts'
import type { GroupStatement } from './group-statement.ts'
import { Attempt, Layer } from './layers.ts'
import { WriterSessions } from './writer-sessions.ts'

/** Cache limits: numbers of small rows, and sizes of larger ones. */
const MAX_KEYS = 200_000
const MAX_CHARS = 8 * 1024 * 1024
const MAX_ID_BYTES = 16 * 1024 * 1024
const one = () => 1

/** The lease and slot of the writer's node. */
export interface ProxyPosition {
  readonly lease: number
  /** Below {@link SLOTS}. */
  readonly slot: number
}

export class WriterTables implements TurnTables {
  readonly sessions: WriterSessions
  readonly #changes: GroupChanges
  #attempt = new Attempt()
  /** Committed blobs that the group references. */
  readonly #knownBlobs = new Map<number, string>()
  /** Ids, by tree and hash. */
  readonly texts = new Layer<string, number>(MAX_KEYS, one)
  /** Trees, by the ids of texts. */
  readonly textTrees = new Layer<number, number>(MAX_KEYS, one)
  readonly nodes = new Layer<string, { id: number; depth: number }>(MAX_KEYS, one)
  readonly blobs = new Layer<string, number>(MAX_KEYS, one)
  readonly blobUses = new Layer<string, number>(MAX_KEYS, one)
  /** By tree and turn id. */
  readonly openTurns = new Layer<string, OpenRow>(MAX_KEYS, one)
  readonly endedTurns = new Layer<string, Omit<TurnEndRow, 'session_status'>>(MAX_KEYS / 20, one)
  readonly sequences = new Layer<number, SequenceRow>(MAX_ID_BYTES, sequenceBytes)
  /** The last turn with a prompt, by tree. */
  readonly lastPrompts = new Layer<number, number>(MAX_KEYS, one)
  /**
   * Completions by tree, the newest first. They are not read from the database: a message that is not a known echo is
   * stored in full.
   */
  readonly #answers = new LruCache<number, readonly CompletionRow[]>(MAX_CHARS, answersChars)
  /** The ended turn of the last lookup. */
  #found: { key: string; row: Omit<TurnEndRow, 'session_status'> } | undefined

  /** @param ids the next ids of each table */
  constructor({ lease, slot }: ProxyPosition, ids: NextIds) {
    this.#changes = new GroupChanges(slot, ids)
    this.sessions = new WriterSessions(this.#changes, lease)
  }

  get layers() {
    return [
      ...[this.sessions.rows, this.texts, this.textTrees, this.nodes, this.blobs, this.blobUses],
      ...[this.openTurns, this.endedTurns, this.sequences, this.lastPrompts],
    ]
  }

  /** Starts to compute a group, for the first time or again. */
  begin(): void {
    this.#attempt = this.#changes.begin()
    this.sessions.begin()
    this.#knownBlobs.clear()
    for (const layer of this.layers) layer.begin(this.#attempt)
  }

  /** Runs one operation. Undoes its changes if it throws. */
  alone<T>(call: () => T): T {
    const mark = this.#attempt.mark
    try {
      return call()
    } catch (error) {
      this.#attempt.undoTo(mark)
      throw error
    }
  }

  get hasMissing(): boolean {
    return this.layers.some((layer) => layer.missing.length > 0)
  }

  get nextIds(): NextIds {
    return this.#changes.nextIds
  }

  /** The preconditions of the group's statement. */
  get conditions() {
    return { sessions: this.sessions.consulted, blobs: [...this.#knownBlobs.keys()] }
  }

  /** Drops cached rows that another node has changed. @param same ids of rows that are unchanged */
  forgetOthers(same: { sessions: readonly number[]; blobs: readonly number[] }): void {
    const { sessions } = this.conditions
    const changed = sessions.filter(({ id }) => !same.sessions.includes(id))
    this.sessions.rows.forget(changed.map(({ session_id: sessionId }) => sessionId))
    const gone = [...this.#knownBlobs].filter(([id]) => !same.blobs.includes(id))
    this.blobs.forget(gone.map(([, sha256]) => sha256))
    if (gone.length > 0) this.blobUses.forgetAll()
  }

  /** Drops cached turns after the session's owner changed: another node may have added turns. */
  forgetTurns(sessionId: string): void {
    this.sessions.rows.forget([sessionId])
    this.openTurns.forgetAll()
    this.endedTurns.forgetAll()
    this.lastPrompts.forgetAll()
  }

  writeTo(statement: GroupStatement): void {
    const changed = [...this.sessions.rows.changed.values()].filter((row) => row !== undefined)
    this.#changes.writeTo(statement, changed as readonly object[] as readonly Row[])
  }

  commit(): void {
    this.#changes.commit()
    for (const layer of this.layers) layer.commit()
    for (const row of this.#changes.turnRows()) this.#rememberAnswer(row)
  }

  forgetGroup(): void {
    for (const layer of this.layers) layer.forgetGroup()
  }

  // Requests.

  findText(tree: number, hash: Buffer): number | undefined {
    return this.texts.get(getKey(tree, hash))
  }

  treeOfText(id: number): number | undefined {
    return this.textTrees.get(id)
  }

  addText({ echoOf, ...text }: NewText): number {
    const id = this.#changes.nextId('texts')
    this.#changes.add('texts', { ...text, id, echo_of: echoOf })
    this.texts.put(getKey(text.tree, text.hash), id)
    this.textTrees.put(id, text.tree)
    return id
  }

  findNode(tree: number, hash: Buffer): { id: number; depth: number } | undefined {
    return this.nodes.get(getKey(tree, hash))
  }

  addNode({ sum, ...node }: NewNode): number {
    const id = this.#changes.nextId('nodes')
    this.#changes.add('nodes', { ...node, id, node_sum: sum })
    this.nodes.put(getKey(node.tree, node.hash), { id, depth: node.depth })
    return id
  }

  answers(tree: number): Iterable<CompletionRow> {
    return this.#answers.get(tree) ?? []
  }

  putBlob(tree: number, body: Buffer): number {
    const sha256 = digest('sha256', body, 'buffer')
    const key = sha256.toString('hex')
    const known = this.blobs.get(key)
    const blob = known ?? this.#changes.nextId('others')
    if (known === undefined) {
      this.#changes.add('blobs', { id: blob, sha256, body })
      this.blobs.put(key, blob)
    } else if (this.blobs.recorded(key) === known) this.#knownBlobs.set(known, key)
    const use = `${tree} ${blob}`
    if (this.blobUses.get(use) === undefined) {
      const id = this.#changes.nextId('others')
      this.#changes.add('blob_uses', { id, tree, blob })
      this.blobUses.put(use, id)
    }
    return blob
  }

  // Turns.

  openTurn(row: Row): void {
    const open = { ...row, id: this.#changes.nextId('turns') } as unknown as OpenRow
    this.#changes.putTurn(open, true)
    this.sessions.countIndex(row)
    this.openTurns.put(turnKey(open), open)
  }

  findOpen(tree: number, turnId: string): OpenRow | undefined {
    return this.openTurns.get(`${tree} ${turnId}`)
  }

  closeTurn(id: number, row: Row): void {
    this.#changes.putTurn({ ...row, id }, this.#changes.turn(id)?.isNew ?? false)
    this.openTurns.put(turnKey(row), undefined)
    this.#end({ ...row, id })
  }

  addTurn(row: Row): number {
    const id = this.#changes.nextId('turns')
    this.#changes.putTurn({ ...row, id }, true)
    this.sessions.countIndex(row)
    this.#end({ ...row, id })
    return id
  }

  findEnded(sessionId: string, turnId: string): TurnEndRow | undefined {
    const session = this.sessions.find(sessionId)
    if (session === undefined) return undefined
    const key = `${session.tree} ${turnId}`
    const row = this.endedTurns.get(key)
    this.#found = row && { key, row }
    return row && { ...row, session_status: session.status }
  }

  deliver({ id, status, code, message, annotations }: Row): void {
    const delivery = { status, error_code: code, error_message: message, annotations }
    const found = this.#found
    if (found !== undefined && found.row.id === id) {
      this.endedTurns.put(found.key, { ...found.row, ...(delivery as Partial<TurnEndRow>) })
    }
    const turn = this.#changes.turn(id as number)
    if (turn !== undefined) this.#changes.putTurn({ ...turn.row, ...delivery }, turn.isNew)
    else this.#changes.putDelivery({ id, ...delivery })
  }

  putDetail({ sum, ...detail }: Row): void {
    this.#changes.putDetail({ ...detail, id: this.#changes.nextId('others'), detail_sum: sum })
  }

  // Token ids.

  sequence(id: number): SequenceRow | undefined {
    return this.sequences.get(id)
  }

  *basesFor({ tree, id }: { id: number; tree: number }): Generator<number> {
    const last = this.lastPrompts.get(tree)
    if (last !== undefined && last !== id) yield last
  }

  /** Returns no turns: cached tokens are evicted by age alone. */
  listTurns(): number[] {
    return []
  }

  /** Caches what later turns need of a turn that ended. */
  #end(row: Row): void {
    const { id, tree, prompt_base, prompt_shared, prompt_rest, completion_ids, ids_sum } =
      row as unknown as StepRow & {
        tree: number
      }
    this.endedTurns.put(turnKey(row), row as unknown as TurnEndRow)
    if (prompt_rest === null) return
    const prompt = { base: prompt_base, shared: prompt_shared, rest: prompt_rest }
    this.sequences.put(id, { id, ...prompt, completion: completion_ids, sum: ids_sum })
    this.lastPrompts.put(tree, id)
  }

  #rememberAnswer(row: Row): void {
    const { tree, tool_calls: toolCalls } = row as { tree: number; tool_calls?: TextColumn | null }
    if (toolCalls === null || toolCalls === undefined) return
    const { id, completion_text, reasoning } = row as unknown as CompletionRow
    const answer: CompletionRow = { id, completion_text, reasoning, tool_calls: toolCalls }
    const others = (this.#answers.get(tree) ?? []).filter((other) => other.id !== id)
    this.#answers.set(tree, [answer, ...others].slice(0, MAX_ANSWERS))
  }
}

/** Returns the key of a text or of a list of texts. */
export function getKey(tree: number, hash: Buffer): string {
  return `${tree} ${hash.toString('hex')}`
}

function turnKey({ tree, turn_id: turnId }: Row): string {
  return `${tree} ${turnId}`
}

function sequenceBytes({ rest, completion }: SequenceRow): number {
  return (rest?.length ?? 0) + (completion?.length ?? 0)
}

function answersChars(answers: readonly CompletionRow[]): number {
  return answers.reduce((sum, { completion_text: text, reasoning, tool_calls: calls }) => {
    return sum + (text?.length ?? 0) + (reasoning?.length ?? 0) + (calls?.length ?? 0)
  }, 0)
}
