/**
 * Port: where sessions and turns are kept. Adapters: `sqlite/` and `postgres/`. Both pass `test/conformance/turn-store.ts`.
 *
 * Text that the store has no business to understand travels as JSON text, message by message, so that a long
 * conversation is parsed and written as JSON once and its old messages are stored once.
 */
import type { ProxyError } from '../../../base/errors.ts'
import type { Message, MessageTree } from '../../../protocol/canonical/conversation.ts'
import type { TokenDataKind } from '../../../protocol/token-data/kinds.ts'
import type { TokenDataBlob } from '../../../protocol/token-data/token-data.ts'
import type { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import type { ConsumerReader, ConsumerStore } from './consumers.ts'
import type { ImportReader, ImportStore } from './imports.ts'
import type { MarksChange } from './marks.ts'
import type { EditedCalls, Reward, SessionLimits, SessionRecord, SessionStatus } from './session-record.ts'
import type { SessionCount, SessionGroup, SessionTotals } from './session-summary.ts'
import type { SharedRecord } from './shared-record.ts'

export type { EditedCalls, Reward, SessionLimits, SessionRecord, SessionStatus } from './session-record.ts'
export type { RewardStatistics, SessionCount, SessionGroup, SessionTotals } from './session-summary.ts'

/**
 * `open`: in flight. `completed`: answered. `aborted`: the agent left, or the session was ended or reset under it.
 * `failed`: the engine, the worker or the proxy failed it. `interrupted`: open when the process died.
 */
export type TurnStatus = 'open' | 'completed' | 'aborted' | 'failed' | 'interrupted'

export interface NewSession {
  sessionId: string
  createdAtMs: number
  ttlMs: number | null
  metadata: Record<string, unknown>
  samplingParams: Record<string, unknown>
  trustAgent: boolean
  /** Absent: null. */
  record?: readonly string[] | null
  /** Default: none. */
  policies?: Record<string, string>
  /** Absent: null. */
  editedCalls?: EditedCalls | null
  /** Absent: null. */
  limits?: SessionLimits | null
  /** Absent: null. */
  keyTag?: string | null
  /** Of a record that several proxies share: it is to be this one's. Default: nobody's. */
  isOwn?: boolean
}

/** What is known when a call begins. */
export interface OpenTurn {
  turnId: string
  sessionId: string
  /** Order of calls in the session, from 0. A call that could not be put on record may leave a gap. */
  index: number
  /** The agent-facing route: `chat`, `completions`, `messages`, `responses`. */
  dialect: string
  startedAtMs: number
  /** The last of the canonical messages, and by its parents all of them; undefined when there are none. */
  lastMessage: Message | undefined
  /** JSON text of the tools as sent; null when there were none. */
  tools: string | null
  /** JSON text of the rest of the canonical body: model, sampling, unknown fields. */
  params: string
  /**
   * What a completion goes on from, as texts that are the whole when joined; none for a chat. A prompt that extends an
   * earlier one begins with all its texts but the last. A record of an older database has none and its prompt in `params`.
   */
  promptPieces: readonly string[]
  /** How many times the agent's client had tried this same call before, as its SDK tells; 0 when unknown. */
  retryCount: number
  /** Of a record that several proxies share: under which the session is this one's; see {@link SharedRecord}. */
  epoch?: number | undefined
}

/** What failed or aborted a turn. */
export interface TurnError {
  code: string
  message: string
}

/** What became known of a turn after its end. */
export interface TurnDetails {
  turnId: string
  details: readonly TokenDataBlob[]
}

/** What is known when it ends. Arrays are handed over: the caller does not touch them again. */
export interface TurnOutcome {
  turnId: string
  sessionId: string
  /** As of its opening. */
  epoch?: number | undefined
  status: Exclude<TurnStatus, 'open' | 'interrupted'>
  endedAtMs: number
  /** When the first piece of the completion came; null if none did. */
  firstTokenAtMs: number | null
  model: string | null
  engine: string | null
  completionText: string | null
  reasoning: string | null
  /** JSON text of the completed tool calls (an array; `[]` when there are none). */
  toolCalls: string
  finishReason: string | null
  /** JSON text of the stop string or token id. */
  stopReason: string | null
  /** Token ids of the prompt as the engine saw it; none when it did not tell. */
  promptTokenIds: PromptIds
  /** Token ids sampled; empty when the engine did not tell. */
  completionTokenIds: Int32Array
  /** Natural-log probability of each sampled token, bit for bit as reported; length of completionTokenIds or 0. */
  completionLogprobs: Float64Array
  /** Whether ids and logprobs are complete and consistent, so that the turn can be trained on. */
  exact: boolean
  /** Why not. */
  inexactReason: string | null
  weightVersionStart: string | null
  weightVersionEnd: string | null
  /** JSON text of the engine's usage. */
  usage: string | null
  /** JSON object of what else is worth knowing of the turn: how its prompt came about, what was changed in it. */
  annotations: string
  error: TurnError | null
  /** What else the engine reported of its tokens; kept apart, see {@link TurnReader.readDetails}. */
  details?: readonly TokenDataBlob[]
}

/** One turn, whole. Everything of TurnOutcome is null or empty (`[]`, `{}`) while the turn is open or interrupted. */
export type TurnRecord = OpenTurn &
  Omit<TurnOutcome, 'status' | 'endedAtMs' | 'promptTokenIds' | 'details'> & {
    promptTokenIds: Int32Array
    status: TurnStatus
    endedAtMs: number | null
  }

/** A turn without its token ids and logprobs. */
export type TurnOutline = Omit<TurnRecord, 'promptTokenIds' | 'completionTokenIds' | 'completionLogprobs'> & {
  promptTokens: number
  sampledTokens: number
}

/**
 * A turn with its prompt as the first `shared` tokens of what an earlier turn of the same reading has, prompt and
 * completion together, and the `rest` of its own. `base` is that turn's id; null: nothing is shared.
 */
export type TurnStep = Omit<TurnRecord, 'promptTokenIds'> & {
  promptStep: { base: string | null; shared: number; rest: Int32Array }
}

/** Prompts that share fewer tokens have no `base`. */
export const MIN_SHARED_TOKENS = 8

/** Which sessions; without any condition all of them. */
export interface SessionFilter {
  status?: SessionStatus | undefined
  /** Only sessions whose metadata has each of these top-level values. */
  metadata?: Record<string, string | number | boolean>
  /** Only sessions that changed then or later; milliseconds since the epoch. */
  sinceMs?: number | undefined
  /** What the id begins with. */
  idPrefix?: string | undefined
  /** Part of the id, of a value anywhere in the metadata, of a label or a note, in whatever case. */
  text?: string | undefined
  /** Inclusive. A session without a reward is in no range. */
  rewardMin?: number | undefined
  rewardMax?: number | undefined
  /** Only sessions that have inexact turns, or that have none. */
  inexact?: boolean | undefined
  /** Only sessions that have failed or interrupted turns, or that have none. */
  failed?: boolean | undefined
  /** A label of the session, or of one of its turns. */
  label?: string | undefined
}

export interface TurnSearch extends SessionFilter {
  /** Of three characters or more; found in whatever case. */
  wanted: string
  limit: number
  /** Hits of one session in one page. */
  perSession: number
  /** From the previous page's `nextCursor`. */
  cursor?: string | undefined
}

/** A turn that has the text, and its first place there. */
export interface SearchHit {
  session: SessionRecord
  turnId: string
  /** Of the turn in its session. */
  index: number
  startedAtMs: number
  foundIn: 'completion' | 'request'
  before: string
  match: string
  after: string
}

export interface SearchPage {
  /** The latest turns first. */
  hits: SearchHit[]
  /** Absent: all turns have been looked at. */
  nextCursor?: string
}

const SESSION_SORTS = ['created', 'changed', 'reward', 'turns', 'tokens'] as const

export type SessionSort = (typeof SESSION_SORTS)[number]

export interface SessionQuery extends SessionFilter {
  /** Default: `created`. */
  sort?: SessionSort | undefined
  /** Default: `desc`. Sessions without a reward come last either way. */
  order?: 'asc' | 'desc'
  limit: number
  /** From the previous page's `nextCursor`; its sort and order must be the same. */
  cursor?: string | undefined
}

export interface SessionPage {
  sessions: SessionRecord[]
  /** Absent on the last page. */
  nextCursor?: string
}

/** What can be read, of a store that a proxy writes or of a file alone. */
export interface TurnReader {
  getSession(sessionId: string): Promise<SessionRecord | undefined>
  listSessions(query: SessionQuery): Promise<SessionPage>
  totalSessions(filter: SessionFilter): Promise<SessionTotals>
  /** Counts rows and reads none, for it is asked often. @param nowMs in milliseconds since the epoch */
  countSessions(nowMs: number): Promise<SessionCount>
  /** Turns that have a text, in what was sampled or in what their requests add. A page may end early, with a cursor. */
  searchTurns(search: TurnSearch): Promise<SearchPage>
  /**
   * Groups in order of their first sessions, newest first; sessions without the metadata key are in none.
   * @param passReward a reward of at least this passes
   */
  groupSessions(by: string, filter: SessionFilter, passReward?: number): Promise<SessionGroup[]>

  /**
   * The session's turns in call order; read in pages, so that a long session never stands in memory twice. Ends early
   * if the session is deleted or reset meanwhile. Their messages are of one tree: `===` tells who begins like whom.
   */
  readTurns(sessionId: string): AsyncIterable<TurnRecord>

  /** As {@link readTurns}, at a cost that does not grow with the length of prompts. */
  readOutlines(sessionId: string): AsyncIterable<TurnOutline>

  /**
   * As {@link readTurns}, at a cost that grows with what is new in each prompt, not with the prompts' length.
   * @param messages the tree that the turns' messages are to be of; absent: one of their own
   */
  readSteps(sessionId: string, messages?: MessageTree): AsyncIterable<TurnStep>

  /**
   * What is on record of these turns beyond their rows, of these kinds; turns without any are not in it. All of it is in
   * memory at once.
   */
  readDetails(
    sessionId: string,
    turnIds: readonly string[],
    kinds: readonly TokenDataKind[],
  ): Promise<ReadonlyMap<string, readonly TokenDataBlob[]>>

  /** One turn of the session, at a cost that does not grow with its other turns; undefined: there is none. */
  getTurn(sessionId: string, turnId: string): Promise<TurnRecord | undefined>

  close(): Promise<void>
}

/**
 * What an acknowledged turn survives. `power`: a commit waits until the disk has it, so that it survives loss of power.
 * `process`: it waits until the operating system has it, so that it survives the end of the process, however sudden.
 */
export type Durability = 'power' | 'process'

export interface CreatedSession {
  created: boolean
  session: SessionRecord
  /** It was created as this proxy's own, and this is its epoch. */
  epoch?: number
}

/**
 * Every method that changes something resolves when the change is durable, and rejects with ProxyError
 * `store_failed` when it is not; a rejected change has not happened. Changes to one session take effect in call order.
 */
export interface TurnStore extends TurnReader, ConsumerReader, ConsumerStore, ImportReader, ImportStore {
  /** Creates a session, or finds the one that has this id; an existing one is not changed. */
  createSession(session: NewSession): Promise<CreatedSession>
  /**
   * @param epoch of a record that several proxies share: only if the session is this one's under it; so in the two below
   * @returns undefined when there is no such session; an ended session keeps the status it has.
   * @throws ProxyError `session_moved`
   */
  endSession(
    sessionId: string,
    status: 'completed' | 'aborted',
    atMs: number,
    epoch?: number,
  ): Promise<SessionRecord | undefined>
  setReward(sessionId: string, reward: Reward, atMs: number): Promise<SessionRecord | undefined>
  /** @throws ProxyError `invalid_request` for more than a session may hold */
  changeMarks(sessionId: string, change: MarksChange, atMs: number): Promise<SessionRecord | undefined>
  /** Forgets the session's turns, reward and marks and makes it active again. */
  resetSession(sessionId: string, atMs: number, epoch?: number): Promise<SessionRecord | undefined>
  /** @returns whether there was such a session. */
  deleteSession(sessionId: string, epoch?: number): Promise<boolean>
  /**
   * Removes sessions whose time to live has run out; never one with a turn in flight, nor one that is held for a consumer.
   * @param sinceMs absent, or: only those whose time ran out after this
   * @returns their ids
   */
  sweep(nowMs: number, sinceMs?: number): Promise<string[]>

  /**
   * Puts a turn on record as `open`. The caller need not wait, nor handle a rejection: a later closeTurn of the same
   * turn follows it, and rejects if the turn could not be put on record.
   * @throws ProxyError `session_not_found`
   */
  openTurn(turn: OpenTurn): Promise<void>
  /**
   * Ends an open turn. Resolves when it is on disk. A turn that was deleted or reset meanwhile stays gone, and the
   * promise resolves all the same.
   */
  closeTurn(outcome: TurnOutcome): Promise<void>
  /**
   * A completed turn whose answer never reached the agent becomes `aborted`.
   * @param retriesAnswered how many retries had been given the answer when it was sent out. Where there are more by
   *   now, the news is old: the turn stays as it is
   */
  markUndelivered(
    sessionId: string,
    turnId: string,
    error: TurnError,
    retriesAnswered?: number,
  ): Promise<void>
  /**
   * A turn with a whole answer, delivered or not, is given to a retry: it is `completed`, and its annotations have the
   * retry's count at the end of `answered_retries`.
   * @returns how many retries it was given to; undefined, and nothing is changed: the session has ended, or there is no
   *   such turn with a whole answer
   */
  answerRetry(sessionId: string, turnId: string, retryCount: number): Promise<number | undefined>

  /**
   * Adds to turns that have ended; a detail of a kind that is there already is replaced. All of them, or none.
   * @throws ProxyError `session_not_found`, `turn_not_found`
   */
  addDetails(sessionId: string, turns: readonly TurnDetails[]): Promise<void>

  /** How this proxy shares the record with others; absent: it has it for itself. */
  readonly shared?: SharedRecord | undefined

  /** The process that wrote the record before has ended in order: it has handed over its answers. Absent: nobody knows. */
  readonly endedWell?: boolean

  /** Resolves if a change could be made durable now. @throws ProxyError `store_failed` */
  check(): Promise<void>

  /** Resolves with the cause when the store has ended though nobody closed it; else never. */
  readonly lost: Promise<ProxyError>

  /** Ends after every change that was asked for is durable. */
  close(): Promise<void>
}
