/** The tables of turns, accessed by prepared statements. */
import { hash } from 'node:crypto'
import type Database from 'better-sqlite3'
import type { TokenDataBlob } from '../../../protocol/token-data/token-data.ts'
import {
  type ColumnValues,
  MAX_ECHO_CANDIDATES,
  MAX_PAGE_TURNS,
  type NewNode,
  type NewText,
  type NodeRow,
  type OpenTurnRow,
  type ReaderTables,
  type ReadingPosition,
  type SequenceRow,
  type SequenceTables,
  type TextRow,
  type TurnEndRow,
  type TurnTables,
} from '../common/tables.ts'
import { OUTCOME_COLUMNS, OUTLINE_COLUMNS, REQUEST_COLUMNS, STEP_COLUMNS } from '../common/turn-columns.ts'
import type { CompletionRow, StepRow, TurnRow } from '../common/turn-rows.ts'

const OPENED_COLUMNS = [...REQUEST_COLUMNS, 'status']
const RECORDED_COLUMNS = [...REQUEST_COLUMNS, ...OUTCOME_COLUMNS]

/** The number of turns of one node that are compared: a node may have hundreds of turns, as samples of one prompt. */
const MAX_SIBLINGS = 16

function prepareSequenceTables(db: Database.Database): SequenceTables {
  const sequence = db.prepare<[number], SequenceRow>(`
    SELECT id, prompt_base AS base, prompt_shared AS shared, prompt_rest AS rest, completion_ids AS completion,
      ids_sum AS sum
    FROM turns WHERE id = ?`)
  // The unary plus prevents SQLite from planning a sorted query again for each new value of a parameter, which takes
  // far longer than the query.
  const siblingsOf = db
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
  const turnBefore = db
    .prepare<[number, number], number>(`
    SELECT id FROM turns WHERE tree = +? AND id <> ? AND prompt_rest IS NOT NULL
    ORDER BY call_index DESC LIMIT 1`)
    .pluck()
  const turnsOf = db.prepare<[number], number>('SELECT id FROM turns WHERE tree = ?').pluck()
  return {
    findSequence: (id) => sequence.get(id),
    /**
     * Yields the turn of the session with the highest index first, which this one usually continues: finding others
     * takes far longer than comparing it.
     */
    *listBases(turn) {
      const previous = turnBefore.get(turn.tree, turn.id)
      if (previous !== undefined) yield previous
      const siblings = siblingsOf.all({ tree: turn.tree, node: turn.node, turn: turn.id })
      yield* siblings.filter((sibling) => sibling !== previous)
    },
    listTurns: (tree) => turnsOf.all(tree),
  }
}

export function prepareWriterTables(db: Database.Database): TurnTables {
  const findText = db
    .prepare<[number, Buffer], number>('SELECT id FROM texts WHERE tree = ? AND hash = ?')
    .pluck()
  const treeOfText = db.prepare<[number], number>('SELECT tree FROM texts WHERE id = ?').pluck()
  const addText = db.prepare<[NewText]>(
    'INSERT INTO texts (tree, hash, echo_of, blobs, body) VALUES (@tree, @hash, @echoOf, @blobs, @body)',
  )
  const findNode = db.prepare<[number, Buffer], { id: number; depth: number }>(
    'SELECT id, depth FROM nodes WHERE tree = ? AND hash = ?',
  )
  const addNode = db.prepare<[NewNode]>(
    'INSERT INTO nodes (tree, parent, depth, texts, hash, node_sum) VALUES (@tree, @parent, @depth, @texts, @hash, @sum)',
  )
  // Unary plus: see prepareSequenceTables.
  const responses = db.prepare<[{ tree: number; node: number }], CompletionRow>(`
    WITH
      to_this AS (
        SELECT id FROM turns WHERE tree = +@tree AND node = +@node AND tool_calls IS NOT NULL
        ORDER BY id DESC LIMIT ${MAX_ECHO_CANDIDATES}
      ),
      latest AS (
        SELECT id FROM turns WHERE tree = +@tree AND tool_calls IS NOT NULL
        ORDER BY call_index DESC LIMIT ${MAX_ECHO_CANDIDATES}
      )
    SELECT id, completion_text, reasoning, tool_calls FROM turns
    WHERE id IN (SELECT id FROM to_this UNION SELECT id FROM latest)
    ORDER BY id DESC`)
  const findBlob = db.prepare<[Buffer], number>('SELECT id FROM blobs WHERE sha256 = ?').pluck()
  const addBlob = db.prepare<[Buffer, Buffer]>('INSERT INTO blobs (sha256, body) VALUES (?, ?)')
  const useBlob = db.prepare<[number, number]>(
    'INSERT INTO blob_uses (tree, blob) VALUES (?, ?) ON CONFLICT DO NOTHING',
  )
  // Values are bound by position: looking up thirty names takes longer than writing the row.
  const openTurn = db.prepare<[unknown[]]>(createInsert(OPENED_COLUMNS))
  const findOpen = db.prepare<[number, string], OpenTurnRow>(
    `SELECT id, ${REQUEST_COLUMNS.join(', ')} FROM turns WHERE tree = ? AND turn_id = ? AND status = 'open'`,
  )
  const assignments = OUTCOME_COLUMNS.map((column) => `${column} = ?`)
  const closeTurn = db.prepare<[unknown[]]>(`UPDATE turns SET ${assignments.join(', ')} WHERE id = ?`)
  const addTurn = db.prepare<[unknown[]]>(createInsert(RECORDED_COLUMNS))
  const findEnded = db.prepare<[string, string], TurnEndRow>(`
    SELECT turns.id, turns.status, exact, finish_reason, error_code, annotations, sessions.status AS session_status
    FROM turns JOIN sessions ON sessions.tree = turns.tree WHERE session_id = ? AND turn_id = ?`)
  const deliver = db.prepare<[ColumnValues]>(`
    UPDATE turns SET status = @status, error_code = @code, error_message = @message, annotations = @annotations
    WHERE id = @id`)
  const putDetail = db.prepare<[ColumnValues]>(`
    INSERT INTO details (tree, turn, kind, body, detail_sum) VALUES (@tree, @turn, @kind, @body, @sum)
    ON CONFLICT (tree, turn, kind) DO UPDATE SET body = excluded.body, detail_sum = excluded.detail_sum`)
  return {
    ...prepareSequenceTables(db),
    findText: (tree, textHash) => findText.get(tree, textHash),
    findTreeOfText: (id) => treeOfText.get(id),
    addText: (text) => getRowid(addText.run(text)),
    findNode: (tree, nodeHash) => findNode.get(tree, nodeHash),
    addNode: (node) => getRowid(addNode.run(node)),
    listEchoCandidates: (tree, node) => responses.iterate({ tree, node }),
    putBlob(tree, body) {
      const sha256 = hash('sha256', body, 'buffer')
      const blob = findBlob.get(sha256) ?? getRowid(addBlob.run(sha256, body))
      useBlob.run(tree, blob)
      return blob
    },
    openTurn: (row) => {
      openTurn.run(toValues(row, OPENED_COLUMNS))
    },
    findOpen: (tree, turnId) => findOpen.get(tree, turnId),
    closeTurn: (id, row) => {
      closeTurn.run([...toValues(row, OUTCOME_COLUMNS), id])
    },
    addTurn: (row) => getRowid(addTurn.run(toValues(row, RECORDED_COLUMNS))),
    findEnded: (sessionId, turnId) => findEnded.get(sessionId, turnId),
    deliver: (row) => {
      deliver.run(row)
    },
    putDetail: (row) => {
      putDetail.run(row)
    },
  }
}

export function prepareReaderTables(db: Database.Database): ReaderTables {
  const tree = db.prepare<[string], number>('SELECT tree FROM sessions WHERE session_id = ?').pluck()
  // Unary plus: see prepareSequenceTables.
  const after = (columns: string) => `
    SELECT ${columns} FROM turns WHERE tree = +@tree AND (call_index, id) > (@index, @id)
    ORDER BY call_index, id LIMIT ${MAX_PAGE_TURNS}`
  const turnsAfter = db.prepare<[ReadingPosition], TurnRow>(after(OUTLINE_COLUMNS))
  const stepsAfter = db.prepare<[ReadingPosition], StepRow>(after(STEP_COLUMNS))
  const turnById = db.prepare<[number, string], TurnRow>(
    `SELECT ${OUTLINE_COLUMNS} FROM turns WHERE tree = ? AND turn_id = ?`,
  )
  const node = db.prepare<[number], NodeRow>(
    'SELECT tree, parent, depth, texts, node_sum FROM nodes WHERE id = ?',
  )
  const text = db.prepare<[number], TextRow>('SELECT echo_of, blobs, body, hash FROM texts WHERE id = ?')
  const blob = db.prepare<[number], Buffer>('SELECT body FROM blobs WHERE id = ?').pluck()
  const completion = db.prepare<[number], CompletionRow>(
    'SELECT id, completion_text, reasoning, tool_calls FROM turns WHERE id = ?',
  )
  const detailsOf = db.prepare<[number, string], TokenDataBlob & { detail_sum: number | null }>(`
    SELECT details.* FROM turns JOIN details ON details.tree = turns.tree AND details.turn = turns.id
    WHERE turns.tree = ? AND turns.turn_id = ?`)
  const transaction = db.transaction((read: () => unknown) => read())
  return {
    ...prepareSequenceTables(db),
    findTree: (sessionId) => tree.get(sessionId),
    listTurnsAfter: (position) => turnsAfter.iterate(position),
    listStepsAfter: (position) => stepsAfter.iterate(position),
    findTurn: (ofTree, turnId) => turnById.get(ofTree, turnId),
    getNode: (id) => node.get(id),
    getText: (id) => text.get(id),
    findBlob: (id) => blob.get(id),
    findCompletion: (id) => completion.get(id),
    listDetails: (ofTree, turnId) => detailsOf.all(ofTree, turnId),
    runInSnapshot: <T>(read: () => T) => transaction(read) as T,
  }
}

function getRowid(result: Database.RunResult): number {
  return Number(result.lastInsertRowid)
}

function toValues(row: ColumnValues, columns: readonly string[]): unknown[] {
  return columns.map((column) => row[column])
}

function createInsert(columns: readonly string[]): string {
  return `INSERT INTO turns (${columns.join(', ')}) VALUES (${columns.map(() => '?').join(', ')})`
}
