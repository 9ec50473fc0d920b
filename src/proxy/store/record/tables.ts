/**
 * What the record's own logic asks of a database: rows, found by their keys and put. `sqlite/` answers with prepared
 * statements, `postgres/` from rows that it has fetched before. The columns are the same in both.
 */
import type { TokenDataBlob } from '../../../protocol/token-data/token-data.ts'
import type { MarksChange } from '../port/marks.ts'
import type { CreatedSession, Reward, SessionRecord, SessionStatus, TurnStatus } from '../port/turn-store.ts'
import type { StoredText } from './packing.ts'
import type { NewSessionRow, TurnChange } from './session-rows.ts'
import type { CompletionRow, StepRow, TurnRow } from './turn-rows.ts'

/** Values by the names of their columns. */
export type Row = Readonly<Record<string, unknown>>

export interface NewNode {
  tree: number
  parent: number
  depth: number
  texts: Buffer
  hash: Buffer
  sum: number
}

export interface NewText {
  tree: number
  hash: Buffer
  echoOf: number | null
  blobs: Buffer | null
  body: StoredText
}

export interface RequestTables {
  findText(tree: number, hash: Buffer): number | undefined
  treeOfText(id: number): number | undefined
  /** @returns its row */
  addText(text: NewText): number
  findNode(tree: number, hash: Buffer): { id: number; depth: number } | undefined
  /** @returns its row */
  addNode(node: NewNode): number
  /** Answers that a message after this node may repeat, the likeliest first. */
  answers(tree: number, node: number): Iterable<CompletionRow>
  /** @returns the blob's row, which stays as long as the tree does */
  putBlob(tree: number, body: Buffer): number
}

/** The columns of `turns` that hold a prompt. */
export interface StoredPrompt {
  base: number | null
  shared: number | null
  rest: Buffer | null
}

export interface SequenceRow extends StoredPrompt {
  id: number
  completion: Buffer | null
  sum: number | null
}

export interface SequenceTables {
  sequence(id: number): SequenceRow | undefined
  /** Turns whose prompts this one's may go on from, the likeliest first. */
  basesFor(turn: { id: number; tree: number; node: number }): Iterable<number>
  turnsOf(tree: number): Iterable<number>
}

/** An open turn: its id, and the columns of its request. */
export type OpenRow = Row & { id: number; tree: number; node: number }

/** Of a turn that has ended, what its delivery changes. */
export interface EndedRow {
  id: number
  status: TurnStatus
  exact: number
  finish_reason: StoredText | null
  error_code: string | null
  annotations: StoredText | null
  session_status: SessionStatus
}

export interface TurnTables extends RequestTables, SequenceTables {
  /** A turn in flight. */
  openTurn(row: Row): void
  findOpen(tree: number, turnId: string): OpenRow | undefined
  /** @param row of an open turn, with its outcome */
  closeTurn(id: number, row: Row): void
  /** A turn that has ended already. @returns its row */
  addTurn(row: Row): number
  findEnded(sessionId: string, turnId: string): EndedRow | undefined
  /** @param row `id`, `status`, `code`, `message`, `annotations` */
  deliver(row: Row): void
  /** In the place of one of its turn and kind, if there is one. */
  putDetail(row: Row): void
}

export interface SessionTables {
  /** @returns `trees.id` of the session's turns */
  tree(sessionId: string): number | undefined
  /**
   * Of a record that several proxies share.
   * @throws ProxyError `session_moved` if the session is not this one's any more, or again
   */
  checkEpoch(sessionId: string, epoch: number): void
  create(session: NewSessionRow): CreatedSession
  end(sessionId: string, status: 'completed' | 'aborted', atMs: number): SessionRecord | undefined
  setReward(sessionId: string, reward: Reward, atMs: number): SessionRecord | undefined
  /** @throws ProxyError `invalid_request` for more than a session may hold */
  changeMarks(sessionId: string, change: MarksChange, atMs: number): SessionRecord | undefined
  reset(sessionId: string, atMs: number): SessionRecord | undefined
  /** Takes the session off the record at once; its turns are removed later, bit by bit. */
  delete(sessionId: string): boolean
  /** Notes that the session's turns changed. */
  touch(sessionId: string, change: TurnChange, atMs: number): void
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
  body: StoredText
  hash: Buffer
}

/** How far a reading of a session's turns has come: the last one that was given out. */
export interface Place {
  tree: number
  index: number
  id: number
}

export interface ReadTables extends SequenceTables {
  tree(sessionId: string): number | undefined
  /** Without the columns of token ids. */
  turnsAfter(place: Place): Iterable<TurnRow>
  stepsAfter(place: Place): Iterable<StepRow>
  turnById(tree: number, turnId: string): TurnRow | undefined
  node(id: number): NodeRow | undefined
  text(id: number): TextRow | undefined
  blob(id: number): Buffer | undefined
  completion(id: number): CompletionRow | undefined
  detailsOf(tree: number, turnId: string): (TokenDataBlob & { detail_sum: number | null })[]
  /** What is read meanwhile does not change. */
  inOneSnapshot<T>(read: () => T): T
}

/** An assistant message is compared with the latest answers to the history before it, and with the session's latest. */
export const MAX_ANSWERS = 8

/** A page of turns has no more. */
export const MAX_PAGE_TURNS = 64
