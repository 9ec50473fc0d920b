/** The tables of the record as the writer's logic sees them while it works out a group of calls. Asks nothing of the database. */
import { hash as digest } from 'node:crypto'
import { RecentlyUsed } from '../../../base/recently-used.ts'
import { sessionMoved } from '../port/shared-record.ts'
import type { Reward, SessionRecord, SessionStatus } from '../port/turn-store.ts'
import type { StoredText } from '../record/packing.ts'
import {
  type NewSessionRow,
  NO_CHANGE,
  type OwnedRow,
  type SessionRow as PlainSessionRow,
  rewardColumns,
  type TurnChange,
  toRecord,
} from '../record/session-rows.ts'
import {
  type EndedRow,
  MAX_ANSWERS,
  type NewNode,
  type NewText,
  type OpenRow,
  type Row,
  type SequenceRow,
  type SessionTables,
  type TurnTables,
} from '../record/tables.ts'
import type { CompletionRow, StepRow } from '../record/turn-rows.ts'
import { OUTCOME_COLUMNS } from '../record/turns.ts'
import { COLUMNS } from './columns.ts'
import type { GroupStatement } from './group-statement.ts'
import { Attempt, Layer } from './layers.ts'

/** What is remembered of what is on record: rows' numbers, and of the larger ones so many bytes. */
const MAX_KEYS = 200_000
const MAX_CHARS = 8 * 1024 * 1024
const MAX_ID_BYTES = 16 * 1024 * 1024
const MAX_SESSION_CHARS = 32 * 1024 * 1024
/** Of a session's row beside its texts. */
const SESSION_CHARS = 500

const one = () => 1

/** Of ids that one proxy gives out, none is another's: this is more than there are proxies at a time. */
export const SLOTS = 1024

/** A session as this writer knows it, good as long as its `version` is the one on record. */
export interface SessionRow extends PlainSessionRow, OwnedRow {
  version: number
}

/** How many ids of each table that is numbered on its own were given out, and one. */
export interface NextIds {
  trees: number
  sessions: number
  texts: number
  nodes: number
  turns: number
  others: number
}

/** Whose writer it is. */
export interface ProxyPlace {
  readonly lease: number
  /** Below {@link SLOTS}. */
  readonly slot: number
}

export const FIRST_IDS: NextIds = { trees: 1, sessions: 1, texts: 1, nodes: 1, turns: 1, others: 1 }

/** A turn's delivery. */
const DELIVERY_COLUMNS = ['status', 'error_code', 'error_message', 'annotations']

/** What of a session changes. */
const SESSION_COLUMNS = COLUMNS.sessions.filter((column) => column !== 'id' && column !== 'session_id')

/** Of a group: rows that are new, by table, and what changes of others. */
class Changes {
  readonly added = new Map<keyof typeof COLUMNS, Row[]>()
  /** Turns that are new or closed in this group, by their ids: as they are to be written. */
  readonly turns = new Map<number, { row: Record<string, unknown>; isNew: boolean }>()
  readonly deliveries = new Map<number, Row>()
  /** The last one of each turn and kind: a statement writes no row twice. */
  readonly details = new Map<string, Row>()
  readonly deletedSessions: number[] = []
  readonly droppedTrees: number[] = []
}

export class WriterTables implements TurnTables, SessionTables {
  readonly sessions = new Layer<string, SessionRow>(MAX_SESSION_CHARS, sessionChars)
  readonly #place: ProxyPlace
  /** Sessions that the group goes by, and blobs on record that it points to. */
  readonly #consulted = new Set<string>()
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
  readonly endedTurns = new Layer<string, Omit<EndedRow, 'session_status'>>(MAX_KEYS / 20, one)
  readonly sequences = new Layer<number, SequenceRow>(MAX_ID_BYTES, sequenceBytes)
  /** The last turn with a prompt, by tree. */
  readonly lastPrompts = new Layer<number, number>(MAX_KEYS, one)
  /** Of each tree, the newest first. Nobody asks the database for them: a message that is no known echo is stored whole. */
  readonly #answers = new RecentlyUsed<number, readonly CompletionRow[]>(MAX_CHARS, answersChars)
  /** Sessions by their trees. */
  readonly #owners = new RecentlyUsed<number, string>(MAX_KEYS, one)
  /** The ended turn that was found last. */
  #found: { key: string; row: Omit<EndedRow, 'session_status'> } | undefined
  #recordedIds: NextIds
  #ids: NextIds
  #changes = new Changes()
  #attempt = new Attempt()

  /** @param ids the next of each table */
  constructor(place: ProxyPlace, ids: NextIds) {
    this.#place = place
    this.#recordedIds = ids
    this.#ids = { ...ids }
  }

  get layers() {
    return [
      ...[this.sessions, this.texts, this.textTrees, this.nodes, this.blobs, this.blobUses],
      ...[this.openTurns, this.endedTurns, this.sequences, this.lastPrompts],
    ]
  }

  /** A group is to be worked out, for the first time or once more. */
  begin(): void {
    this.#attempt = new Attempt()
    this.#ids = { ...this.#recordedIds }
    this.#changes = new Changes()
    this.#consulted.clear()
    this.#knownBlobs.clear()
    for (const layer of this.layers) layer.begin(this.#attempt)
  }

  /** One call, which changes nothing if it throws. */
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
    return this.#ids
  }

  /** What must be on record for the group to hold. */
  get conditions() {
    const sessions = [...this.#consulted].flatMap((sessionId) => this.sessions.recorded(sessionId) ?? [])
    return { sessions, blobs: [...this.#knownBlobs.keys()] }
  }

  /** Forgets what another proxy has changed. @param same ids of what is as it was */
  forgetOthers(same: { sessions: readonly number[]; blobs: readonly number[] }): void {
    const { sessions } = this.conditions
    const changed = sessions.filter(({ id }) => !same.sessions.includes(id))
    this.sessions.forget(changed.map(({ session_id: sessionId }) => sessionId))
    const gone = [...this.#knownBlobs].filter(([id]) => !same.blobs.includes(id))
    this.blobs.forget(gone.map(([, sha256]) => sha256))
    if (gone.length > 0) this.blobUses.forgetAll()
  }

  /** A session has come to this proxy, or left it: its turns may be others than those that are remembered. */
  forgetTurns(sessionId: string): void {
    this.sessions.forget([sessionId])
    this.openTurns.forgetAll()
    this.endedTurns.forgetAll()
    this.lastPrompts.forgetAll()
  }

  writeTo(statement: GroupStatement): void {
    const { added, turns, deliveries, details, deletedSessions, droppedTrees } = this.#changes
    const changed = [...this.sessions.changed.values()].filter((row) => row !== undefined)
    const isNew = new Set(added.get('sessions')?.map(({ id }) => id))
    for (const [table, rows] of added) if (table !== 'sessions') statement.insert(table, rows)
    const rows = (these: readonly SessionRow[]) => these as unknown as readonly Row[]
    statement.insert('sessions', rows(changed.filter(({ id }) => isNew.has(id))))
    statement.update('sessions', SESSION_COLUMNS, rows(changed.filter(({ id }) => !isNew.has(id))))
    statement.delete('sessions', deletedSessions)
    const dropped = droppedTrees.map((id) => ({ id, dropped: 1 }))
    statement.update('trees', ['dropped'], dropped)
    const written = [...turns.values()]
    statement.insert(
      'turns',
      written.filter(({ isNew }) => isNew).map(({ row }) => row),
    )
    const closed = written.filter(({ isNew }) => !isNew).map(({ row }) => row)
    statement.update('turns', OUTCOME_COLUMNS, closed)
    statement.update('turns', DELIVERY_COLUMNS, [...deliveries.values()])
    statement.put('details', ['tree', 'turn', 'kind'], [...details.values()])
  }

  commit(): void {
    this.#recordedIds = { ...this.#ids }
    for (const layer of this.layers) layer.commit()
    for (const { row } of this.#changes.turns.values()) this.#rememberAnswer(row)
  }

  forgetGroup(): void {
    for (const layer of this.layers) layer.forgetGroup()
  }

  // Requests.

  findText(tree: number, hash: Buffer): number | undefined {
    return this.texts.get(keyOf(tree, hash))
  }

  treeOfText(id: number): number | undefined {
    return this.textTrees.get(id)
  }

  addText({ echoOf, ...text }: NewText): number {
    const id = this.#nextId('texts')
    this.#add('texts', { ...text, id, echo_of: echoOf })
    this.texts.put(keyOf(text.tree, text.hash), id)
    this.textTrees.put(id, text.tree)
    return id
  }

  findNode(tree: number, hash: Buffer): { id: number; depth: number } | undefined {
    return this.nodes.get(keyOf(tree, hash))
  }

  addNode({ sum, ...node }: NewNode): number {
    const id = this.#nextId('nodes')
    this.#add('nodes', { ...node, id, node_sum: sum })
    this.nodes.put(keyOf(node.tree, node.hash), { id, depth: node.depth })
    return id
  }

  answers(tree: number): Iterable<CompletionRow> {
    return this.#answers.get(tree) ?? []
  }

  putBlob(tree: number, body: Buffer): number {
    const sha256 = digest('sha256', body, 'buffer')
    const key = sha256.toString('hex')
    const known = this.blobs.get(key)
    const blob = known ?? this.#nextId('others')
    if (known === undefined) {
      this.#add('blobs', { id: blob, sha256, body })
      this.blobs.put(key, blob)
    } else if (this.blobs.recorded(key) === known) this.#knownBlobs.set(known, key)
    const use = `${tree} ${blob}`
    if (this.blobUses.get(use) === undefined) {
      const id = this.#nextId('others')
      this.#add('blob_uses', { id, tree, blob })
      this.blobUses.put(use, id)
    }
    return blob
  }

  // Turns.

  openTurn(row: Row): void {
    const open = { ...row, id: this.#nextId('turns') } as unknown as OpenRow
    this.#putTurn(open, true)
    this.#countIndex(row)
    this.openTurns.put(turnKey(open), open)
  }

  findOpen(tree: number, turnId: string): OpenRow | undefined {
    return this.openTurns.get(`${tree} ${turnId}`)
  }

  closeTurn(id: number, row: Row): void {
    this.#putTurn({ ...row, id }, this.#changes.turns.get(id)?.isNew ?? false)
    this.openTurns.put(turnKey(row), undefined)
    this.#end({ ...row, id })
  }

  addTurn(row: Row): number {
    const id = this.#nextId('turns')
    this.#putTurn({ ...row, id }, true)
    this.#countIndex(row)
    this.#end({ ...row, id })
    return id
  }

  findEnded(sessionId: string, turnId: string): EndedRow | undefined {
    const session = this.#session(sessionId)
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
      this.endedTurns.put(found.key, { ...found.row, ...(delivery as Partial<EndedRow>) })
    }
    const turn = this.#changes.turns.get(id as number)
    if (turn !== undefined) this.#putTurn({ ...turn.row, ...delivery }, turn.isNew)
    else this.#putDelivery({ id, ...delivery })
  }

  putDetail({ sum, ...detail }: Row): void {
    const row = { ...detail, id: this.#nextId('others'), detail_sum: sum }
    this.#set(this.#changes.details, `${detail.turn} ${detail.kind}`, row)
  }

  // Token ids.

  sequence(id: number): SequenceRow | undefined {
    return this.sequences.get(id)
  }

  *basesFor({ tree, id }: { id: number; tree: number }): Generator<number> {
    const last = this.lastPrompts.get(tree)
    if (last !== undefined && last !== id) yield last
  }

  /** What is remembered of tokens goes by age alone. */
  turnsOf(): number[] {
    return []
  }

  // Sessions.

  tree(sessionId: string): number | undefined {
    const tree = this.#session(sessionId)?.tree
    if (tree !== undefined) this.#owners.set(tree, sessionId)
    return tree
  }

  checkEpoch(sessionId: string, epoch: number): void {
    const row = this.#session(sessionId)
    if (row === undefined || (row.epoch === epoch && row.owner === this.#place.lease)) return
    throw sessionMoved(sessionId)
  }

  create(session: NewSessionRow): CreatedRow {
    const existing = this.#session(session.sessionId)
    if (existing !== undefined) return { created: false, session: toRecord(existing) }
    const epoch = session.isOwn ? 1 : 0
    const row: SessionRow = {
      id: this.#nextId('sessions'),
      tree: this.#plantTree(),
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
      limits: session.limits,
      key_tag: session.keyTag,
      owner: epoch && this.#place.lease,
      epoch,
      version: 0,
      ...NEW_LIFE,
    }
    this.#add('sessions', { id: row.id })
    this.sessions.put(session.sessionId, row)
    return { created: true, session: toRecord(row), ...(epoch > 0 && { epoch }) }
  }

  end(sessionId: string, status: 'completed' | 'aborted', atMs: number): SessionRecord | undefined {
    const row = this.#session(sessionId)
    if (row?.status !== 'active') return row && toRecord(row)
    return this.#change(row, { status, ended_at_ms: atMs, updated_at_ms: atMs })
  }

  setReward(sessionId: string, reward: Reward, atMs: number): SessionRecord | undefined {
    const row = this.#session(sessionId)
    return row && this.#change(row, { ...rewardColumns(sessionId, reward), updated_at_ms: atMs })
  }

  reset(sessionId: string, atMs: number): SessionRecord | undefined {
    const row = this.#session(sessionId)
    if (row === undefined) return undefined
    this.#drop(row.tree)
    return this.#change(row, { ...NEW_LIFE, tree: this.#plantTree(), updated_at_ms: atMs })
  }

  delete(sessionId: string): boolean {
    const row = this.#session(sessionId)
    if (row === undefined) return false
    this.#drop(row.tree)
    this.#push(this.#changes.deletedSessions, row.id)
    this.sessions.put(sessionId, undefined)
    return true
  }

  touch(sessionId: string, change: TurnChange, atMs: number): void {
    const row = this.#session(sessionId)
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

  #change(row: SessionRow, change: Partial<SessionRow>): SessionRecord {
    const changed = { ...row, ...change, version: row.version + 1 }
    this.sessions.put(row.session_id, changed)
    return toRecord(changed)
  }

  /** The group holds only if this is what is on record. */
  #session(sessionId: string): SessionRow | undefined {
    this.#consulted.add(sessionId)
    return this.sessions.get(sessionId)
  }

  #drop(tree: number): void {
    this.#push(this.#changes.droppedTrees, tree)
  }

  #plantTree(): number {
    const id = this.#nextId('trees')
    this.#add('trees', { id, dropped: 0 })
    return id
  }

  #nextId(table: keyof NextIds): number {
    const count = this.#ids[table]
    this.#ids[table] += 1
    return count * SLOTS + this.#place.slot
  }

  #add(table: keyof typeof COLUMNS, row: Row): void {
    const rows = this.#changes.added.get(table) ?? []
    this.#changes.added.set(table, rows)
    this.#push(rows, row)
  }

  #push<T>(list: T[], item: T): void {
    list.push(item)
    this.#attempt.onUndo(() => list.pop())
  }

  #putTurn(row: Row, isNew: boolean): void {
    this.#set(this.#changes.turns, row.id as number, { row: { ...row }, isNew })
  }

  #putDelivery(row: Row): void {
    this.#set(this.#changes.deliveries, row.id as number, row)
  }

  #set<K, V>(changes: Map<K, V>, key: K, value: V): void {
    const before = changes.get(key)
    this.#attempt.onUndo(() => (before === undefined ? changes.delete(key) : changes.set(key, before)))
    changes.set(key, value)
  }

  /** Where the order of a session's turns goes on. */
  #countIndex({ tree, call_index: index }: Row): void {
    const session = this.sessions.get(this.#owners.get(tree as number)!)!
    const next = Math.max(session.next_index, (index as number) + 1)
    if (next > session.next_index) this.sessions.put(session.session_id, { ...session, next_index: next })
  }

  /** A turn has ended: what later ones ask of it. */
  #end(row: Row): void {
    const { id, tree, prompt_base, prompt_shared, prompt_rest, completion_ids, ids_sum } =
      row as unknown as StepRow & {
        tree: number
      }
    this.endedTurns.put(turnKey(row), row as unknown as EndedRow)
    if (prompt_rest === null) return
    const prompt = { base: prompt_base, shared: prompt_shared, rest: prompt_rest }
    this.sequences.put(id, { id, ...prompt, completion: completion_ids, sum: ids_sum })
    this.lastPrompts.put(tree, id)
  }

  #rememberAnswer(row: Row): void {
    const { tree, tool_calls: toolCalls } = row as { tree: number; tool_calls?: StoredText | null }
    if (toolCalls === null || toolCalls === undefined) return
    const { id, completion_text, reasoning } = row as unknown as CompletionRow
    const answer: CompletionRow = { id, completion_text, reasoning, tool_calls: toolCalls }
    const others = (this.#answers.get(tree) ?? []).filter((other) => other.id !== id)
    this.#answers.set(tree, [answer, ...others].slice(0, MAX_ANSWERS))
  }
}

interface CreatedRow {
  created: boolean
  session: SessionRecord
  /** The session is its creator's own, in this epoch. */
  epoch?: number
}

/** Of a session without turns. */
const NEW_LIFE = {
  status: 'active' as SessionStatus,
  ended_at_ms: null,
  reward: null,
  reward_components: null,
  reward_lines: null,
  reward_turns: null,
  reward_sum: null,
  turn_count: 0,
  next_index: 0,
  open_turns: 0,
  failed_turns: 0,
  inexact_turns: 0,
  sampled_tokens: 0,
}

/** Of a text or a list of texts. */
export function keyOf(tree: number, hash: Buffer): string {
  return `${tree} ${hash.toString('hex')}`
}

function turnKey({ tree, turn_id: turnId }: Row): string {
  return `${tree} ${turnId}`
}

function sessionChars({ metadata, sampling_params: params }: SessionRow): number {
  return SESSION_CHARS + metadata.length + params.length
}

function sequenceBytes({ rest, completion }: SequenceRow): number {
  return (rest?.length ?? 0) + (completion?.length ?? 0)
}

function answersChars(answers: readonly CompletionRow[]): number {
  return answers.reduce((sum, { completion_text: text, reasoning, tool_calls: calls }) => {
    return sum + (text?.length ?? 0) + (reasoning?.length ?? 0) + (calls?.length ?? 0)
  }, 0)
}
