/**
 * Logs requests: each step at `debug`, and one line per turn when it has ended, at `debug` or, with `--log-requests`,
 * at `info`. If no line would be written, none of these objects is created.
 */
import { type ErrorCode, toProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import { type ContextLogger, isLevelEnabled, type Logger, withContext } from '../../../base/logger.ts'
import type { GenerationLog, PromptMatch } from '../../../protocol/canonical/generation-log.ts'
import type { OpenTurn, TurnOutcome } from '../../store/port/turn-store.ts'
import type { TurnUsage } from '../state/limits.ts'

/** The ids in the log lines of a request. */
interface RequestIds {
  readonly session_id: string
  readonly request_id: string
}

/** The ids in the log lines of a turn. */
interface TurnLogIds extends RequestIds {
  readonly turn_id: string
}

/** The logger, and the lines that are written. */
interface LogTarget {
  readonly logger: Logger
  /** Whether the lines of steps are written. */
  readonly hasSteps: boolean
  /** The level of the line per turn. */
  readonly level: 'debug' | 'info'
}

/** A function that logs that a request was accepted. @returns the log of the request */
export type RequestLogger = (ids: RequestIds, dialect: string) => RequestLog

/**
 * Creates a logger of requests.
 * @param logsRequests whether the line per turn has the level `info`
 * @returns undefined if no line would be written
 */
export function createRequestLogger(logger: Logger, logsRequests: boolean): RequestLogger | undefined {
  const hasSteps = isLevelEnabled(logger, 'debug')
  const level = logsRequests ? 'info' : 'debug'
  if (!isLevelEnabled(logger, level)) return undefined
  const target: LogTarget = { logger, hasSteps, level }
  return (ids, dialect) => {
    if (hasSteps) logEvent(logger, 'request_accepted', { ...ids, dialect })
    return new RequestLog(target, ids)
  }
}

/** The log of one request of an agent. */
export class RequestLog {
  readonly #target: LogTarget
  readonly #ids: RequestIds

  constructor(target: LogTarget, ids: RequestIds) {
    this.#target = target
    this.#ids = ids
  }

  /**
   * Logs that a turn was opened for the request.
   * @param agentRole the role that the request declares
   * @returns the log of the turn
   */
  logOpened(turn: OpenTurn, agentRole: string | undefined): TurnLog {
    const log = new TurnLog(this.#target, { ...this.#ids, turn_id: turn.turnId }, turn, agentRole)
    log.logOpened()
    return log
  }

  /** Logs that the request is a retry and has joined a turn in flight. */
  logJoined(turnId: string, retryCount: number): void {
    if (this.#target.hasSteps)
      logEvent(this.#target.logger, 'retry_joined', this.#fields(turnId, { retry_count: retryCount }))
  }

  /** Logs that the request is a retry and receives a recorded response. */
  logRedelivered(turnId: string, retryCount: number): void {
    if (this.#target.hasSteps)
      logEvent(this.#target.logger, 'response_redelivered', this.#fields(turnId, { retry_count: retryCount }))
  }

  /** Logs that the response has ended. @param complete whether all of it was sent */
  logDelivered(turnId: string, status: number, complete: boolean): void {
    if (this.#target.hasSteps)
      logEvent(this.#target.logger, 'response_delivered', this.#fields(turnId, { status, complete }))
  }

  #fields<Fields extends object>(turnId: string, fields: Fields): TurnLogIds & Fields {
    return { ...this.#ids, turn_id: turnId, ...fields }
  }
}

/** The log fields of a turn for which no parent was searched. */
const NOT_MATCHED = { prompt_reason: undefined, reused_tokens: 0 }

/** The reasons of prompts that begin no branch, or do not certainly begin one. */
const CONTINUATIONS: ReadonlySet<string> = new Set(['first', 'extended', 'unknown'])

/** The log of one turn. */
export class TurnLog implements GenerationLog {
  readonly #logger: ContextLogger<TurnLogIds>
  readonly #hasSteps: boolean
  readonly #level: 'debug' | 'info'
  readonly #turn: OpenTurn
  readonly #agentRole: string | undefined
  #match: { prompt_reason: string | undefined; reused_tokens: number } = NOT_MATCHED
  #attempts = 0
  #queueMs = 0
  /** When the request was queued, by `performance.now()`; 0: it is not queued. */
  #queuedAtMs = 0

  constructor(target: LogTarget, ids: TurnLogIds, turn: OpenTurn, agentRole: string | undefined) {
    this.#logger = withContext(target.logger, ids)
    this.#hasSteps = target.hasSteps
    this.#level = target.level
    this.#turn = turn
    this.#agentRole = agentRole
  }

  logOpened(): void {
    if (this.#hasSteps) logEvent(this.#logger, 'turn_opened', { turn_index: this.#turn.index })
  }

  logMatch({ reason, parent, reusedTokens, knownMessages }: PromptMatch): void {
    this.#match = { prompt_reason: reason, reused_tokens: reusedTokens }
    if (!this.#hasSteps) return
    const fields = { ...this.#match, prompt_reason: reason, parent_turn_id: parent }
    if (CONTINUATIONS.has(reason)) logEvent(this.#logger, 'turn_matched', fields)
    else logEvent(this.#logger, 'turn_branched', { ...fields, known_messages: knownMessages })
  }

  logQueued(): void {
    this.#queuedAtMs = performance.now()
    if (this.#hasSteps) logEvent(this.#logger, 'turn_queued', {})
  }

  logDispatched(member: string): void {
    this.#endWait()
    this.#attempts += 1
    if (!this.#hasSteps) return
    logEvent(this.#logger, 'turn_dispatched', { member, attempt: this.#attempts, queue_ms: this.#queueMs })
  }

  logFailover(member: string, error: unknown): void {
    if (!this.#hasSteps) return
    const { code, logMessage: reason } = toProxyError(error)
    logEvent(this.#logger, 'turn_failed_over', { member, code, reason })
  }

  logContinuation(error: unknown, sampledTokens: number): void {
    if (!this.#hasSteps) return
    const { code, logMessage: reason } = toProxyError(error)
    logEvent(this.#logger, 'turn_continued', { code, reason, sampled_tokens: sampledTokens })
  }

  /** Logs the first token. @param atMs when it arrived, in milliseconds since the epoch */
  logFirstToken(atMs: number): void {
    if (!this.#hasSteps) return
    logEvent(this.#logger, 'turn_first_token', { first_token_ms: atMs - this.#turn.startedAtMs })
  }

  /**
   * Logs that the turn is committed, and the line of the ended turn.
   * @param tokens the numbers of its tokens, which cannot be read from the outcome: the store may have detached its
   *   lists
   */
  logCommitted(
    outcome: TurnOutcome,
    tokens: Pick<TurnUsage, 'promptTokens' | 'sampledTokens'>,
    joinedRetries: number,
  ): void {
    const { status, endedAtMs, firstTokenAtMs, engine, error } = outcome
    const { startedAtMs, index, dialect, retryCount } = this.#turn
    if (this.#hasSteps) logEvent(this.#logger, 'turn_committed', { turn_status: status })
    this.#endWait()
    const fields = {
      turn_index: index,
      agent_role: this.#agentRole,
      dialect,
      engine: engine ?? undefined,
      turn_status: status,
      code: error?.code as ErrorCode | undefined,
      prompt_tokens: tokens.promptTokens,
      sampled_tokens: tokens.sampledTokens,
      ...this.#match,
      queue_ms: this.#queueMs,
      first_token_ms: firstTokenAtMs === null ? undefined : firstTokenAtMs - startedAtMs,
      total_ms: endedAtMs - startedAtMs,
      attempts: this.#attempts,
      retry_count: retryCount,
      joined_retries: joinedRetries,
    }
    logEvent(this.#logger, 'turn_ended', fields, this.#level)
  }

  #endWait(): void {
    if (this.#queuedAtMs > 0) this.#queueMs += Math.round(performance.now() - this.#queuedAtMs)
    this.#queuedAtMs = 0
  }
}
