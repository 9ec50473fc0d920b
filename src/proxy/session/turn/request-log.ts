/**
 * The life of requests as log lines: each step at `debug`, and one line per turn when it has ended, at `debug` or, with
 * `--log-requests`, at `info`. If none of these lines is written, none of these objects exists.
 */
import { type ErrorCode, toProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import { type ContextLogger, isLevelEnabled, type Logger, withContext } from '../../../base/logger.ts'
import type { GenerationLog, PromptMatch } from '../../../protocol/canonical/generation-log.ts'
import type { OpenTurn, TurnOutcome } from '../../store/port/turn-store.ts'
import type { TurnUsage } from '../state/limits.ts'

interface RequestIds {
  readonly session_id: string
  readonly request_id: string
}

interface TurnLogIds extends RequestIds {
  readonly turn_id: string
}

interface LogTarget {
  readonly logger: Logger
  /** Whether the steps are written. */
  readonly hasSteps: boolean
  /** The level of the line per turn. */
  readonly level: 'debug' | 'info'
}

/** Logs a request on arrival. @returns the log of its further life */
export type RequestLogger = (ids: RequestIds, dialect: string) => RequestLog

/**
 * Creates the logger of requests.
 * @param logsRequests whether the line per turn is `info`
 * @returns undefined if the logger writes none of the lines
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

  /** Logs that the request is recorded as a turn. @param agentRole the role that it declares @returns its log */
  logOpened(turn: OpenTurn, agentRole: string | undefined): TurnLog {
    const log = new TurnLog(this.#target, { ...this.#ids, turn_id: turn.turnId }, turn, agentRole)
    log.logOpened()
    return log
  }

  /** Logs that the request, a retry, joined a turn in flight. */
  logJoined(turnId: string, retryCount: number): void {
    if (this.#target.hasSteps)
      logEvent(this.#target.logger, 'retry_joined', this.#fields(turnId, { retry_count: retryCount }))
  }

  /** Logs that the request, a retry, receives a recorded response. */
  logRedelivered(turnId: string, retryCount: number): void {
    if (this.#target.hasSteps)
      logEvent(this.#target.logger, 'response_redelivered', this.#fields(turnId, { retry_count: retryCount }))
  }

  /** Logs the end of the response. @param complete whether all of it was sent */
  logDelivered(turnId: string, status: number, complete: boolean): void {
    if (this.#target.hasSteps)
      logEvent(this.#target.logger, 'response_delivered', this.#fields(turnId, { status, complete }))
  }

  #fields<Fields extends object>(turnId: string, fields: Fields): TurnLogIds & Fields {
    return { ...this.#ids, turn_id: turnId, ...fields }
  }
}

const NOT_MATCHED = { prompt_reason: undefined, reused_tokens: 0 }

/** The reasons of prompts that begin no branch, or may not. */
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
  /** The time since which the request waits; 0: it does not wait. */
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

  /** Logs the first token. @param atMs its time, in milliseconds since the epoch */
  logFirstToken(atMs: number): void {
    if (!this.#hasSteps) return
    logEvent(this.#logger, 'turn_first_token', { first_token_ms: atMs - this.#turn.startedAtMs })
  }

  /**
   * Logs that the turn is committed, and the line of the turn.
   * @param tokens the numbers of its tokens: the store may own the outcome's lists already
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
