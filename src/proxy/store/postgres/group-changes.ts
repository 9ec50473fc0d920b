/** The changes of a group: collected while the group is computed, and written by one statement. */
import type { ColumnValues } from '../common/tables.ts'
import { OUTCOME_COLUMNS } from '../common/turn-columns.ts'
import { COLUMNS } from './columns.ts'
import type { GroupStatement } from './group-statement.ts'
import { UndoLog } from './row-cache.ts'

/**
 * The number of slots. Each node has one, and allocates the ids that are equal to it modulo this number, so that ids of
 * different nodes never collide. It exceeds the number of nodes that run at a time.
 */
export const SLOTS = 1024

/**
 * The next id of each table, divided by {@link SLOTS}. The tables `details`, `blobs` and `blob_uses` share `others`.
 */
export interface NextIds {
  trees: number
  sessions: number
  texts: number
  nodes: number
  turns: number
  others: number
}

export const FIRST_IDS: NextIds = { trees: 1, sessions: 1, texts: 1, nodes: 1, turns: 1, others: 1 }

/** The columns that a delivery report or a redelivery changes. */
const DELIVERY_COLUMNS = ['status', 'error_code', 'error_message', 'annotations']

/** The columns of a session that can change. */
const SESSION_COLUMNS = COLUMNS.sessions.filter((column) => column !== 'id' && column !== 'session_id')

export class GroupChanges {
  readonly #slot: number
  #committedIds: NextIds
  #ids: NextIds
  #undo = new UndoLog()
  /** New rows of tables other than `turns` and `details`. */
  readonly #inserted = new Map<keyof typeof COLUMNS, ColumnValues[]>()
  /** Turns that are new or closed in this group, by id, in their final state. */
  readonly #turns = new Map<number, { row: ColumnValues; isNew: boolean }>()
  readonly #deliveries = new Map<number, ColumnValues>()
  /** The latest row of each turn and kind, because a statement can write a row only once. */
  readonly #details = new Map<string, ColumnValues>()
  readonly #deletedSessions: number[] = []
  readonly #droppedTrees: number[] = []

  /** @param slot the node's slot, below {@link SLOTS} @param ids the next ids of each table */
  constructor(slot: number, ids: NextIds) {
    this.#slot = slot
    this.#committedIds = ids
    this.#ids = { ...ids }
  }

  /** Starts a group. @returns the undo log of its changes */
  begin(): UndoLog {
    this.#undo = new UndoLog()
    this.#ids = { ...this.#committedIds }
    for (const changes of [this.#inserted, this.#turns, this.#deliveries, this.#details]) changes.clear()
    this.#deletedSessions.length = 0
    this.#droppedTrees.length = 0
    return this.#undo
  }

  commit(): void {
    this.#committedIds = { ...this.#ids }
  }

  get nextIds(): NextIds {
    return this.#ids
  }

  /** Yields the rows of turns that are new or closed in this group. */
  *listTurnRows(): Generator<ColumnValues> {
    for (const { row } of this.#turns.values()) yield row
  }

  findTurn(id: number): { row: ColumnValues; isNew: boolean } | undefined {
    return this.#turns.get(id)
  }

  /** Returns an id that no node has used. */
  allocateId(table: keyof NextIds): number {
    const count = this.#ids[table]
    this.#ids[table] += 1
    return count * SLOTS + this.#slot
  }

  insert(table: keyof typeof COLUMNS, row: ColumnValues): void {
    const rows = this.#inserted.get(table) ?? []
    this.#inserted.set(table, rows)
    this.#push(rows, row)
  }

  #push<T>(list: T[], item: T): void {
    list.push(item)
    this.#undo.push(() => list.pop())
  }

  putTurn(row: ColumnValues, isNew: boolean): void {
    this.#set(this.#turns, row.id as number, { row: { ...row }, isNew })
  }

  putDelivery(row: ColumnValues): void {
    this.#set(this.#deliveries, row.id as number, row)
  }

  #set<K, V>(changes: Map<K, V>, key: K, value: V): void {
    const before = changes.get(key)
    this.#undo.push(() => (before === undefined ? changes.delete(key) : changes.set(key, before)))
    changes.set(key, value)
  }

  putDetail(row: ColumnValues): void {
    this.#set(this.#details, `${row.turn} ${row.kind}`, row)
  }

  deleteSession(id: number): void {
    this.#push(this.#deletedSessions, id)
  }

  dropTree(id: number): void {
    this.#push(this.#droppedTrees, id)
  }

  /** Writes the changes to the statement. @param sessions rows of all changed sessions, including new ones */
  writeTo(statement: GroupStatement, sessions: readonly ColumnValues[]): void {
    const isNew = new Set(this.#inserted.get('sessions')?.map(({ id }) => id))
    for (const [table, rows] of this.#inserted) if (table !== 'sessions') statement.insert(table, rows)
    statement.insert(
      'sessions',
      sessions.filter(({ id }) => isNew.has(id)),
    )
    const changed = sessions.filter(({ id }) => !isNew.has(id))
    statement.update('sessions', SESSION_COLUMNS, changed)
    statement.delete('sessions', this.#deletedSessions)
    const dropped = this.#droppedTrees.map((id) => ({ id, dropped: 1 }))
    statement.update('trees', ['dropped'], dropped)
    const written = [...this.#turns.values()]
    statement.insert(
      'turns',
      written.filter(({ isNew }) => isNew).map(({ row }) => row),
    )
    const closed = written.filter(({ isNew }) => !isNew).map(({ row }) => row)
    statement.update('turns', OUTCOME_COLUMNS, closed)
    statement.update('turns', DELIVERY_COLUMNS, [...this.#deliveries.values()])
    statement.put('details', ['tree', 'turn', 'kind'], [...this.#details.values()])
  }
}
