/**
 * The operations that the store's common logic requires of a database: finding and storing rows. `sqlite/` implements
 * them with prepared statements, `postgres/` with rows that it has loaded before. The columns are the same in both.
 */
import type { TokenDataBlob } from '../../../protocol/token-data/token-data.ts'
import type { SessionStatus, TurnStatus } from '../port/turn-store.ts'
import type { TextColumn } from './packing.ts'
import type { CompletionRow, StepRow, TurnRow } from './turn-rows.ts'

/** Values by column name. */
export type ColumnValues = Readonly<Record<string, unknown>>

/** The columns of a new row of `nodes`. */
export interface NewNode {
  tree: number
  parent: number
  depth: number
  texts: Buffer
  hash: Buffer
  sum: number
}

/** The columns of a new row of `texts`. */
export interface NewText {
  tree: number
  hash: Buffer
  echoOf: number | null
  blobs: Buffer | null
  body: TextColumn
}

/** The operations on tables that storing a request requires. */
export interface RequestTables {
  findText(tree: number, hash: Buffer): number | undefined
  findTreeOfText(id: number): number | undefined
  /** Adds a text. @returns its row id */
  addText(text: NewText): number
  findNode(tree: number, hash: Buffer): { id: number; depth: number } | undefined
  /** Adds a node. @returns its row id */
  addNode(node: NewNode): number
  /** Returns completions that a message after this node may echo, the most likely first. */
  listEchoCandidates(tree: number, node: number): Iterable<CompletionRow>
  /** Stores a blob, which exists at least as long as the tree. @returns its row id */
  putBlob(tree: number, body: Buffer): number
}

/** The columns of `turns` that contain a prompt. */
export interface PromptColumns {
  base: number | null
  shared: number | null
  rest: Buffer | null
}

/** The columns of `turns` that contain a turn's token ids, and their checksum. */
export interface SequenceRow extends PromptColumns {
  id: number
  completion: Buffer | null
  sum: number | null
}

/** The operations on tables that packing and assembling token ids require. */
export interface SequenceTables {
  findSequence(id: number): SequenceRow | undefined
  /** Returns the row ids of turns whose sequences this turn's prompt may extend, the most likely first. */
  listBases(turn: { id: number; tree: number; node: number }): Iterable<number>
  listTurns(tree: number): Iterable<number>
}

/** An open turn: its id, and the columns of its request. */
export type OpenTurnRow = ColumnValues & { id: number; tree: number; node: number }

/** The columns of an ended turn that a delivery report or a redelivery reads or changes. */
export interface TurnEndRow {
  id: number
  status: TurnStatus
  exact: number
  finish_reason: TextColumn | null
  error_code: string | null
  annotations: TextColumn | null
  session_status: SessionStatus
}

/** The operations on tables that the writer requires. */
export interface TurnTables extends RequestTables, SequenceTables {
  /** Adds an open turn. */
  openTurn(row: ColumnValues): void
  findOpen(tree: number, turnId: string): OpenTurnRow | undefined
  /** Closes an open turn. @param row its columns, with its outcome */
  closeTurn(id: number, row: ColumnValues): void
  /** Adds a turn that has ended already. @returns its row id */
  addTurn(row: ColumnValues): number
  findEnded(sessionId: string, turnId: string): TurnEndRow | undefined
  /** Updates the delivery of a turn. @param row `id`, `status`, `code`, `message`, `annotations` */
  deliver(row: ColumnValues): void
  /** Stores token data, replacing that of the same turn and kind. */
  putDetail(row: ColumnValues): void
}

export interface NodeRow {
  parent: number
  depth: number
  texts: Buffer
  node_sum: number | null
}

export interface TextRow {
  echo_of: number | null
  blobs: Buffer | null
  body: TextColumn
  hash: Buffer
}

/** The position of a reading of a session's turns: the last turn that was returned. */
export interface ReadingPosition {
  tree: number
  index: number
  id: number
}

/** The operations on tables that the reader requires. */
export interface ReaderTables extends SequenceTables {
  findTree(sessionId: string): number | undefined
  /** Returns turns without the columns of token ids. */
  listTurnsAfter(position: ReadingPosition): Iterable<TurnRow>
  listStepsAfter(position: ReadingPosition): Iterable<StepRow>
  findTurn(tree: number, turnId: string): TurnRow | undefined
  getNode(id: number): NodeRow | undefined
  getText(id: number): TextRow | undefined
  findBlob(id: number): Buffer | undefined
  findCompletion(id: number): CompletionRow | undefined
  listDetails(tree: number, turnId: string): (TokenDataBlob & { detail_sum: number | null })[]
  /** Runs `read` in a transaction that sees one snapshot. */
  runInSnapshot<T>(read: () => T): T
}

/**
 * The number of completions with which an assistant message is compared: at most this many of the latest that followed
 * its history (in SQLite), and at most this many of the latest in its tree.
 */
export const MAX_ECHO_CANDIDATES = 8

/** The maximum number of turns in a page. */
export const MAX_PAGE_TURNS = 64
