/**
 * The port of the store of sessions and turns. Adapters: `sqlite/` and `postgres/`. Both pass
 * `test/conformance/turn-store.ts`.
 *
 * Text that the store does not interpret is passed as JSON text, message by message, so that a long conversation is
 * parsed and serialized once, and its old messages are stored once.
 */
import type { ProxyError } from '../../../base/errors.ts'
import type { Message, MessageTree } from '../../../protocol/canonical/conversation.ts'
import type { RecordInput, RecordPart } from '../../../protocol/schema/turn.ts'
import type { TokenDataKind } from '../../../protocol/token-data/kinds.ts'
import type { TokenDataBlob } from '../../../protocol/token-data/token-data.ts'
import type { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import type { ConsumerReader, ConsumerStore } from './consumers.ts'
import type { ImportReader, ImportStore } from './imports.ts'
import type { MarksChange } from './marks.ts'
import type { NodeCoordination } from './node-coordination.ts'
import type {
  Reward,
  SessionLimits,
  SessionRecord,
  SessionStatus,
  ToolCallRewritePolicy,
} from './session-record.ts'
import type { SessionCount, SessionGroup, SessionTotals } from './session-summary.ts'

export type {
  Reward,
  SessionLimits,
  SessionRecord,
  SessionStatus,
  ToolCallRewritePolicy,
} from './session-record.ts'
export type { RewardStatistics, SessionCount, SessionGroup, SessionTotals } from './session-summary.ts'

/**
 * The status of a turn. `open`: in flight. `completed`: it has a complete response. `aborted`: the agent disconnected,
 * or the session was ended or reset meanwhile. `failed`: the engine, the worker or the proxy failed. `interrupted`:
 * open when the process crashed.
 */
export type TurnStatus = RecordPart<'outcome'>['status']

/** A session to create. Fields are described in {@link SessionRecord}; absent ones are null or empty there. */
export interface NewSession {
  sessionId: string
  createdAtMs: number
  ttlMs: number | null
  metadata: Record<string, unknown>
  samplingParams: Record<string, unknown>
  trustAgent: boolean
  record?: readonly string[] | null
  policies?: Record<string, string>
  editedCalls?: ToolCallRewritePolicy | null
  continueResponses?: boolean | null
  limits?: SessionLimits | null
  keyTag?: string | null
  /** In a shared database: whether this node becomes its owner. Default: the session has no owner. */
  isOwn?: boolean
}

/**
 * The data of a turn that is known when its request begins. Indices may have gaps, from requests that could not be
 * stored.
 */
export interface OpenTurn extends RecordInput<RequestPart> {
  /** The epoch in which this node owns the session, in a shared database; see {@link NodeCoordination}. */
  epoch?: number | undefined
}

interface RequestPart extends RecordPart<'request'> {
  sessionId: string
  /** The last of the canonical messages; its ancestors are all messages before it. undefined: there are none. */
  lastMessage: Message | undefined
  /**
   * The prompt of a text completion, as texts to concatenate; empty for a chat. A prompt that extends an earlier one
   * begins with all texts of the earlier one except the last. Turns of older databases have no texts here; their prompt
   * is in `params`.
   */
  promptPieces: readonly string[]
}

/** The reason for which a turn failed or was aborted. */
export interface TurnError {
  code: string
  message: string
}

/** Token data that was added to a turn after its end. */
export interface TurnDetails {
  turnId: string
  details: readonly TokenDataBlob[]
}

/**
 * The data of a turn that is known when it ends. The caller must not use the arrays afterwards. Logprobs are bit for
 * bit as reported; there is one for each sampled token, or none.
 */
export interface TurnOutcome
  extends RecordInput<Omit<OutcomePart, 'status' | 'endedAtMs' | 'promptTokenIds'>> {
  turnId: string
  sessionId: string
  /** The epoch in which the turn was opened. */
  epoch?: number | undefined
  status: Exclude<TurnStatus, 'open' | 'interrupted'>
  endedAtMs: number
  promptTokenIds: PromptIds
  /** Other token data that the engine reported; stored separately, see {@link TurnReader.readDetails}. */
  details?: readonly TokenDataBlob[]
}

type OutcomePart = RecordPart<'outcome'>

/** A complete turn. The fields of its outcome are null or empty (`[]`, `{}`) while it is open or interrupted. */
export interface TurnRecord extends RequestPart, OutcomePart {
  epoch?: number | undefined
}

/** A turn without its token ids and logprobs. */
export type TurnOutline = Omit<TurnRecord, 'promptTokenIds' | 'completionTokenIds' | 'completionLogprobs'> & {
  promptTokens: number
  sampledTokens: number
}

/**
 * A turn whose prompt is expressed as the first `shared` tokens of an earlier turn of the same read, prompt and
 * completion together, followed by `rest`. `base` is the earlier turn's id; null: `rest` is the complete prompt.
 */
export type TurnStep = Omit<TurnRecord, 'promptTokenIds'> & {
  promptStep: { base: string | null; shared: number; rest: Int32Array }
}

/**
 * The minimum number of shared tokens for which a prompt refers to another turn: a reference to fewer tokens would take
 * more space than they do.
 */
export const MIN_SHARED_TOKENS = 8

/** A filter of sessions; without any condition it matches all. */
export interface SessionFilter {
  status?: SessionStatus | undefined
  /** Matches sessions whose metadata has each of these top-level values. */
  metadata?: Record<string, string | number | boolean>
  /** Matches sessions that changed at this time or later; milliseconds since the epoch. */
  sinceMs?: number | undefined
  /** Matches sessions whose id has this prefix. */
  idPrefix?: string | undefined
  /** Matches part of the id, of a value anywhere in the metadata, of a label or a note, ignoring case. */
  text?: string | undefined
  /** Inclusive. A session without a reward never matches. */
  rewardMin?: number | undefined
  rewardMax?: number | undefined
  /** Matches sessions that have inexact turns, or that have none. */
  inexact?: boolean | undefined
  /** Matches sessions that have failed or interrupted turns, or that have none. */
  failed?: boolean | undefined
  /** Matches a label of the session, or of one of its turns. */
  label?: string | undefined
}

/** A search for a text in the turns of sessions that match a filter. */
export interface TurnSearch extends SessionFilter {
  /** The text to find, at least three characters long, ignoring case. */
  wanted: string
  limit: number
  /** The maximum number of hits of one session per page. */
  perSession: number
  /** The previous page's `nextCursor`. */
  cursor?: string | undefined
}

/** A turn that contains the text, and its first occurrence. */
export interface SearchHit {
  session: SessionRecord
  turnId: string
  /** The turn index. */
  index: number
  startedAtMs: number
  foundIn: 'completion' | 'request'
  before: string
  match: string
  after: string
}

/** A page of search hits. */
export interface SearchPage {
  /** The hits, the latest turns first. */
  hits: SearchHit[]
  /** Absent: all turns have been searched. */
  nextCursor?: string
}

const SESSION_SORTS = ['created', 'changed', 'reward', 'turns', 'tokens'] as const

export type SessionSort = (typeof SESSION_SORTS)[number]

/** A query of a page of sessions. */
export interface SessionQuery extends SessionFilter {
  /** Default: `created`. */
  sort?: SessionSort | undefined
  /** Default: `desc`. Sessions without a reward come last in either order. */
  order?: 'asc' | 'desc'
  limit: number
  /** The previous page's `nextCursor`; its sort and order must be the same. */
  cursor?: string | undefined
}

/** A page of a list of sessions. */
export interface SessionPage {
  sessions: SessionRecord[]
  /** Absent on the last page. */
  nextCursor?: string
}

/** The read operations of a proxy's store, or of a database that is opened read-only. */
export interface TurnReader {
  getSession(sessionId: string): Promise<SessionRecord | undefined>
  listSessions(query: SessionQuery): Promise<SessionPage>
  totalSessions(filter: SessionFilter): Promise<SessionTotals>
  /**
   * Counts sessions in the database, without reading their rows, because it is called often.
   * @param nowMs in milliseconds since the epoch
   */
  countSessions(nowMs: number): Promise<SessionCount>
  /** Finds turns by a text in their completion or in what their request adds. A page may end early, with a cursor. */
  searchTurns(search: TurnSearch): Promise<SearchPage>
  /**
   * Groups sessions by their value under the metadata key `by`; sessions without the key are omitted. The group whose
   * first session is the newest comes first.
   * @param passReward the lowest reward that passes
   */
  groupSessions(by: string, filter: SessionFilter, passReward?: number): Promise<SessionGroup[]>

  /**
   * Yields the session's turns by index. It reads them in pages, so that a long session is never in memory twice, and
   * ends early if the session is deleted or reset meanwhile. The messages belong to one tree, so that `===` detects a
   * common beginning.
   */
  readTurns(sessionId: string): AsyncIterable<TurnRecord>

  /**
   * Reads turns like {@link readTurns}, without their token ids and logprobs. The cost grows with the new part of each
   * prompt, not with its length.
   */
  readOutlines(sessionId: string): AsyncIterable<TurnOutline>

  /**
   * Reads turns like {@link readTurns}, at a cost that grows with the new part of each prompt, not with its length.
   * @param messages the tree to which the turns' messages are added; absent: a new one
   */
  readSteps(sessionId: string, messages?: MessageTree): AsyncIterable<TurnStep>

  /**
   * Returns the token data of these kinds for these turns; turns without any are omitted. The complete result is in
   * memory.
   */
  readDetails(
    sessionId: string,
    turnIds: readonly string[],
    kinds: readonly TokenDataKind[],
  ): Promise<ReadonlyMap<string, readonly TokenDataBlob[]>>

  /** Returns one turn of the session, at a cost independent of its other turns; undefined: there is none. */
  getTurn(sessionId: string, turnId: string): Promise<TurnRecord | undefined>

  close(): Promise<void>
}

/**
 * The durability of a commit. `power`: it waits until the disk has the data, which survives a loss of power. `process`:
 * it waits until the operating system has the data, which survives any end of the process.
 */
export type Durability = 'power' | 'process'

/** The result of the creation of a session. */
export interface SessionCreation {
  created: boolean
  session: SessionRecord
  /** The epoch, if it was created with this node as its owner. */
  epoch?: number
}

/**
 * The store of a proxy. Every method that changes data resolves when the change is durable, and rejects with ProxyError
 * `store_failed` when it is not; a rejected change has no effect. Changes to one session take effect in the order of
 * the method calls.
 */
export interface TurnStore extends TurnReader, ConsumerReader, ConsumerStore, ImportReader, ImportStore {
  /** Creates a session, or returns the existing one with this id unchanged. */
  createSession(session: NewSession): Promise<SessionCreation>
  /**
   * Ends a session. An ended session keeps its status.
   * @param epoch in a shared database: requires that this node owns the session in this epoch, as in `resetSession` and
   *   `deleteSession`
   * @returns undefined when there is no such session
   * @throws ProxyError `session_moved`
   */
  endSession(
    sessionId: string,
    status: 'completed' | 'aborted',
    atMs: number,
    epoch?: number,
  ): Promise<SessionRecord | undefined>
  setReward(sessionId: string, reward: Reward, atMs: number): Promise<SessionRecord | undefined>
  /** Changes labels and notes. @throws ProxyError `invalid_request` if they exceed the size limit */
  changeMarks(sessionId: string, change: MarksChange, atMs: number): Promise<SessionRecord | undefined>
  /** Removes the session's turns, reward and marks and makes it active again. */
  resetSession(sessionId: string, atMs: number, epoch?: number): Promise<SessionRecord | undefined>
  /** Deletes a session. @returns whether it existed */
  deleteSession(sessionId: string, epoch?: number): Promise<boolean>
  /**
   * Removes sessions whose time to live has expired, except those with a turn in flight or retained for a consumer.
   * @param sinceMs if present, only sessions that expired after this time are removed
   * @returns their ids
   */
  sweep(nowMs: number, sinceMs?: number): Promise<string[]>

  /**
   * Stores a turn as `open`. The caller need neither wait nor handle a rejection: a later closeTurn of the same turn is
   * applied after it, and rejects if the turn could not be stored.
   * @throws ProxyError `session_not_found`
   */
  openTurn(turn: OpenTurn): Promise<void>
  /**
   * Ends an open turn, durably when it resolves. It resolves without effect if the turn was deleted or reset meanwhile.
   */
  closeTurn(outcome: TurnOutcome): Promise<void>
  /**
   * Marks a completed turn as `aborted` because its response did not reach the agent.
   * @param retriesAnswered how many retries had received the response when it was sent. If there are more now, the
   *   report is outdated and the turn stays unchanged
   */
  markUndelivered(
    sessionId: string,
    turnId: string,
    error: TurnError,
    retriesAnswered?: number,
  ): Promise<void>
  /**
   * Marks a turn with a complete response, delivered or not, as redelivered to a retry: it becomes `completed`, and the
   * retry's count is appended to its annotation `answered_retries`.
   * @returns the number of retries that received it; undefined, without a change: the session has ended, or there is no
   *   such turn with a complete response
   */
  markRedelivered(sessionId: string, turnId: string, retryCount: number): Promise<number | undefined>

  /**
   * Adds token data to turns that have ended, for all of them or none; existing data of the same kind is replaced.
   * @throws ProxyError `session_not_found`, `turn_not_found`
   */
  addDetails(sessionId: string, turns: readonly TurnDetails[]): Promise<void>

  /** The coordination with other nodes that share the database; absent if only this process uses it. */
  readonly shared?: NodeCoordination | undefined

  /** Whether the previous process shut down cleanly, with all responses delivered. Absent: unknown. */
  readonly endedWell?: boolean

  /** Checks that a change can be made durable now. @throws ProxyError `store_failed` */
  check(): Promise<void>

  /** Resolves with the cause when the store ends without having been closed; otherwise never. */
  readonly lost: Promise<ProxyError>

  /** Closes the store after all requested changes are durable. */
  close(): Promise<void>
}

/**
 * Operations for which the threads of both databases have a command of the same name, arguments and result: the store
 * forwards them unchanged, as it does for consumers and imports. For all others, it converts arguments and results.
 */
export const SESSION_READS = ['getSession', 'countSessions'] as const satisfies (keyof TurnReader)[]
export const TURN_READS = ['readDetails'] as const satisfies (keyof TurnReader)[]
export const SESSION_WRITES = ['setReward', 'changeMarks'] as const satisfies (keyof TurnStore)[]
export const TURN_WRITES = [
  'markUndelivered',
  'markRedelivered',
  'addDetails',
] as const satisfies (keyof TurnStore)[]
