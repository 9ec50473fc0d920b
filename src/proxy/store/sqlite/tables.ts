/** The tables of the record, by prepared statements. */
import { hash } from 'node:crypto'
import type Database from 'better-sqlite3'
import type { PackedDetail } from '../../../protocol/details/details.ts'
import {
  type EndedRow,
  MAX_ANSWERS,
  MAX_PAGE_TURNS,
  type NewNode,
  type NewText,
  type NodeRow,
  type OpenRow,
  type Place,
  type ReadTables,
  type Row,
  type SequenceRow,
  type SequenceTables,
  type TextRow,
  type TurnTables,
} from '../record/tables.ts'
import {
  type CompletionRow,
  STEP_COLUMNS,
  type StepRow,
  TURN_COLUMNS,
  type TurnRow,
} from '../record/turn-rows.ts'
import { OUTCOME_COLUMNS, REQUEST_COLUMNS } from '../record/turns.ts'

const OPENED_COLUMNS = [...REQUEST_COLUMNS, 'status']
const RECORDED_COLUMNS = [...REQUEST_COLUMNS, ...OUTCOME_COLUMNS]

/** A node may have hundreds of turns (the same prompt, sampled again and again); this many are looked at. */
const MAX_SIBLINGS = 16

class TokenTables implements SequenceTables {
  readonly #row: Database.Statement<[number], SequenceRow>
  readonly #siblings: Database.Statement<[{ tree: number; node: number; turn: number }], number>
  readonly #previous: Database.Statement<[number, number], number>
  readonly #turnsOf: Database.Statement<[number], number>

  constructor(db: Database.Database) {
    this.#row = db.prepare(`
      SELECT id, prompt_base AS base, prompt_shared AS shared, prompt_rest AS rest, completion_ids AS completion,
        ids_sum AS sum
      FROM turns WHERE id = ?`)
    // The plus signs: a query that is sorted is otherwise planned anew for each new value of a parameter, which takes
    // far longer than the query.
    this.#siblings = db
      .prepare<[{ tree: number; node: number; turn: number }], number>(`
      WITH RECURSIVE
        up(node) AS (
          SELECT @node
          UNION ALL
          SELECT nodes.parent FROM up JOIN nodes ON nodes.id = up.node
        ),
        nearest(node) AS (
          SELECT up.node FROM up CROSS JOIN turns
          WHERE turns.tree = +@tree AND turns.node = up.node AND turns.prompt_rest IS NOT NULL AND turns.id <> @turn
          LIMIT 1
        )
      SELECT turns.id FROM nearest CROSS JOIN turns
      WHERE turns.tree = +@tree AND turns.node = nearest.node AND turns.prompt_rest IS NOT NULL AND turns.id <> @turn
      ORDER BY turns.id DESC LIMIT ${MAX_SIBLINGS}`)
      .pluck()
    this.#previous = db
      .prepare<[number, number], number>(`
      SELECT id FROM turns WHERE tree = +? AND id <> ? AND prompt_rest IS NOT NULL
      ORDER BY call_index DESC LIMIT 1`)
      .pluck()
    this.#turnsOf = db.prepare<[number], number>('SELECT id FROM turns WHERE tree = ?').pluck()
  }

  sequence(id: number): SequenceRow | undefined {
    return this.#row.get(id)
  }

  /** The turn before this one is what it continues, as a rule; the search for others takes far longer than its comparison. */
  *basesFor(turn: { id: number; tree: number; node: number }): Generator<number> {
    const previous = this.#previous.get(turn.tree, turn.id)
    if (previous !== undefined) yield previous
    const siblings = this.#siblings.all({ tree: turn.tree, node: turn.node, turn: turn.id })
    yield* siblings.filter((sibling) => sibling !== previous)
  }

  turnsOf(tree: number): number[] {
    return this.#turnsOf.all(tree)
  }
}

export class WriterTables extends TokenTables implements TurnTables {
  readonly #findText: Database.Statement<[number, Buffer], number>
  readonly #treeOfText: Database.Statement<[number], number>
  readonly #addText: Database.Statement<[NewText]>
  readonly #findNode: Database.Statement<[number, Buffer], { id: number; depth: number }>
  readonly #addNode: Database.Statement<[NewNode]>
  readonly #answers: Database.Statement<[{ tree: number; node: number }], CompletionRow>
  readonly #findBlob: Database.Statement<[Buffer], number>
  readonly #addBlob: Database.Statement<[Buffer, Buffer]>
  readonly #useBlob: Database.Statement<[number, number]>
  readonly #open: Database.Statement<[unknown[]]>
  readonly #findOpen: Database.Statement<[number, string], OpenRow>
  readonly #close: Database.Statement<[unknown[]]>
  readonly #record: Database.Statement<[unknown[]]>
  readonly #findEnded: Database.Statement<[string, string], EndedRow>
  readonly #deliver: Database.Statement<[Row]>
  readonly #putDetail: Database.Statement<[Row]>

  constructor(db: Database.Database) {
    super(db)
    this.#findText = db
      .prepare<[number, Buffer], number>('SELECT id FROM texts WHERE tree = ? AND hash = ?')
      .pluck()
    this.#treeOfText = db.prepare<[number], number>('SELECT tree FROM texts WHERE id = ?').pluck()
    this.#addText = db.prepare(
      'INSERT INTO texts (tree, hash, echo_of, blobs, body) VALUES (@tree, @hash, @echoOf, @blobs, @body)',
    )
    this.#findNode = db.prepare('SELECT id, depth FROM nodes WHERE tree = ? AND hash = ?')
    this.#addNode = db.prepare(
      'INSERT INTO nodes (tree, parent, depth, texts, hash, node_sum) VALUES (@tree, @parent, @depth, @texts, @hash, @sum)',
    )
    // The plus signs: see TokenTables.
    this.#answers = db.prepare(`
      WITH
        to_this AS (
          SELECT id FROM turns WHERE tree = +@tree AND node = +@node AND tool_calls IS NOT NULL
          ORDER BY id DESC LIMIT ${MAX_ANSWERS}
        ),
        latest AS (
          SELECT id FROM turns WHERE tree = +@tree AND tool_calls IS NOT NULL
          ORDER BY call_index DESC LIMIT ${MAX_ANSWERS}
        )
      SELECT id, completion_text, reasoning, tool_calls FROM turns
      WHERE id IN (SELECT id FROM to_this UNION SELECT id FROM latest)
      ORDER BY id DESC`)
    this.#findBlob = db.prepare<[Buffer], number>('SELECT id FROM blobs WHERE sha256 = ?').pluck()
    this.#addBlob = db.prepare('INSERT INTO blobs (sha256, body) VALUES (?, ?)')
    this.#useBlob = db.prepare('INSERT INTO blob_uses (tree, blob) VALUES (?, ?) ON CONFLICT DO NOTHING')
    // Values are bound by their places: to find thirty names takes longer than to write the row.
    this.#open = db.prepare(insertOf(OPENED_COLUMNS))
    this.#findOpen = db.prepare(
      `SELECT id, ${REQUEST_COLUMNS.join(', ')} FROM turns WHERE tree = ? AND turn_id = ? AND status = 'open'`,
    )
    const assignments = OUTCOME_COLUMNS.map((column) => `${column} = ?`)
    this.#close = db.prepare(`UPDATE turns SET ${assignments.join(', ')} WHERE id = ?`)
    this.#record = db.prepare(insertOf(RECORDED_COLUMNS))
    this.#findEnded = db.prepare(`
      SELECT turns.id, turns.status, exact, finish_reason, error_code, annotations, sessions.status AS session_status
      FROM turns JOIN sessions ON sessions.tree = turns.tree WHERE session_id = ? AND turn_id = ?`)
    this.#deliver = db.prepare(`
      UPDATE turns SET status = @status, error_code = @code, error_message = @message, annotations = @annotations
      WHERE id = @id`)
    this.#putDetail = db.prepare(`
      INSERT INTO details (tree, turn, kind, body, detail_sum) VALUES (@tree, @turn, @kind, @body, @sum)
      ON CONFLICT (tree, turn, kind) DO UPDATE SET body = excluded.body, detail_sum = excluded.detail_sum`)
  }

  findText(tree: number, hash: Buffer): number | undefined {
    return this.#findText.get(tree, hash)
  }

  treeOfText(id: number): number | undefined {
    return this.#treeOfText.get(id)
  }

  addText(text: NewText): number {
    return rowid(this.#addText.run(text))
  }

  findNode(tree: number, hash: Buffer): { id: number; depth: number } | undefined {
    return this.#findNode.get(tree, hash)
  }

  addNode(node: NewNode): number {
    return rowid(this.#addNode.run(node))
  }

  answers(tree: number, node: number): Iterable<CompletionRow> {
    return this.#answers.iterate({ tree, node })
  }

  putBlob(tree: number, body: Buffer): number {
    const sha256 = hash('sha256', body, 'buffer')
    const blob = this.#findBlob.get(sha256) ?? rowid(this.#addBlob.run(sha256, body))
    this.#useBlob.run(tree, blob)
    return blob
  }

  openTurn(row: Row): void {
    this.#open.run(valuesOf(row, OPENED_COLUMNS))
  }

  findOpen(tree: number, turnId: string): OpenRow | undefined {
    return this.#findOpen.get(tree, turnId)
  }

  closeTurn(id: number, row: Row): void {
    this.#close.run([...valuesOf(row, OUTCOME_COLUMNS), id])
  }

  addTurn(row: Row): number {
    return rowid(this.#record.run(valuesOf(row, RECORDED_COLUMNS)))
  }

  findEnded(sessionId: string, turnId: string): EndedRow | undefined {
    return this.#findEnded.get(sessionId, turnId)
  }

  deliver(row: Row): void {
    this.#deliver.run(row)
  }

  putDetail(row: Row): void {
    this.#putDetail.run(row)
  }
}

export class ReaderTables extends TokenTables implements ReadTables {
  readonly #tree: Database.Statement<[string], number>
  readonly #turnsAfter: Database.Statement<[Place], TurnRow>
  readonly #stepsAfter: Database.Statement<[Place], StepRow>
  readonly #turnById: Database.Statement<[number, string], TurnRow>
  readonly #node: Database.Statement<[number], NodeRow>
  readonly #text: Database.Statement<[number], TextRow>
  readonly #blob: Database.Statement<[number], Buffer>
  readonly #completion: Database.Statement<[number], CompletionRow>
  readonly #detailsOf: Database.Statement<[number, string], PackedDetail & { detail_sum: number | null }>
  readonly inOneSnapshot: <T>(read: () => T) => T

  constructor(db: Database.Database) {
    super(db)
    this.#tree = db.prepare<[string], number>('SELECT tree FROM sessions WHERE session_id = ?').pluck()
    // The plus signs: see TokenTables.
    const after = (columns: string) => `
      SELECT ${columns} FROM turns WHERE tree = +@tree AND (call_index, id) > (@index, @id)
      ORDER BY call_index, id LIMIT ${MAX_PAGE_TURNS}`
    this.#turnsAfter = db.prepare(after(TURN_COLUMNS))
    this.#stepsAfter = db.prepare(after(STEP_COLUMNS))
    this.#turnById = db.prepare(`SELECT ${TURN_COLUMNS} FROM turns WHERE tree = ? AND turn_id = ?`)
    this.#node = db.prepare('SELECT tree, parent, depth, texts, node_sum FROM nodes WHERE id = ?')
    this.#text = db.prepare('SELECT echo_of, blobs, body, hash FROM texts WHERE id = ?')
    this.#blob = db.prepare<[number], Buffer>('SELECT body FROM blobs WHERE id = ?').pluck()
    this.#completion = db.prepare('SELECT id, completion_text, reasoning, tool_calls FROM turns WHERE id = ?')
    this.#detailsOf = db.prepare(`
      SELECT details.* FROM turns JOIN details ON details.tree = turns.tree AND details.turn = turns.id
      WHERE turns.tree = ? AND turns.turn_id = ?`)
    const transaction = db.transaction((read: () => unknown) => read())
    this.inOneSnapshot = <T>(read: () => T) => transaction(read) as T
  }

  tree(sessionId: string): number | undefined {
    return this.#tree.get(sessionId)
  }

  turnsAfter(place: Place): Iterable<TurnRow> {
    return this.#turnsAfter.iterate(place)
  }

  stepsAfter(place: Place): Iterable<StepRow> {
    return this.#stepsAfter.iterate(place)
  }

  turnById(tree: number, turnId: string): TurnRow | undefined {
    return this.#turnById.get(tree, turnId)
  }

  node(id: number): NodeRow | undefined {
    return this.#node.get(id)
  }

  text(id: number): TextRow | undefined {
    return this.#text.get(id)
  }

  blob(id: number): Buffer | undefined {
    return this.#blob.get(id)
  }

  completion(id: number): CompletionRow | undefined {
    return this.#completion.get(id)
  }

  detailsOf(tree: number, turnId: string) {
    return this.#detailsOf.all(tree, turnId)
  }
}

function rowid(result: Database.RunResult): number {
  return Number(result.lastInsertRowid)
}

function valuesOf(row: Row, columns: readonly string[]): unknown[] {
  return columns.map((column) => row[column])
}

function insertOf(columns: readonly string[]): string {
  return `INSERT INTO turns (${columns.join(', ')}) VALUES (${columns.map(() => '?').join(', ')})`
}
