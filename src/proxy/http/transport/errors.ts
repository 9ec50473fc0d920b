/** Converts and logs errors, for all routes; each dialect formats the body of an error itself. */
import type { FastifyRequest } from 'fastify'
import { type ErrorCode, ProxyError, toProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'

/**
 * Converts any error into a {@link ProxyError}, including Fastify's own (such as a body over the limit or an invalid
 * Content-Length) and the disconnect of a client before its request is complete.
 */
export function toRequestError(thrown: unknown): ProxyError {
  if (thrown instanceof ProxyError || !(thrown instanceof Error)) return toProxyError(thrown)
  const { statusCode: status, code } = thrown as { statusCode?: number; code?: string }
  if (code === 'ECONNRESET') {
    return new ProxyError('agent_gone', 'The client closed its connection before the request was complete')
  }
  if (status === undefined || status >= 500 || !code?.startsWith('FST_')) return toProxyError(thrown)
  const own: ErrorCode = status === 413 ? 'body_too_large' : 'invalid_request'
  return new ProxyError(own, thrown.message, { status, cause: thrown })
}

/** The maximum number of log lines per interval for failed requests of one agent; more would add no information. */
const LINES_PER_INTERVAL = 10
const LOG_INTERVAL_MS = 10_000

/** The failures of one session within one interval. */
interface FailureBurst {
  endsAtMs: number
  failures: number
}

/** The current intervals by session id, and by logger, because each server has its own logger. */
const failureBursts = new WeakMap<Logger, Map<string, FailureBurst>>()

/**
 * Counts a failure of a session.
 * @returns the number of failures whose lines were omitted before, to be logged with this one; undefined: omit this one
 */
function countFailure(logger: Logger, sessionId: string): number | undefined {
  const of = failureBursts.get(logger) ?? new Map<string, FailureBurst>()
  failureBursts.set(logger, of)
  const nowMs = performance.now()
  const last = of.get(sessionId)
  if (last && nowMs < last.endsAtMs) {
    last.failures += 1
    return last.failures <= LINES_PER_INTERVAL ? 0 : undefined
  }
  for (const [id, { endsAtMs }] of of) if (endsAtMs <= nowMs && id !== sessionId) of.delete(id)
  of.set(sessionId, { endsAtMs: nowMs + LOG_INTERVAL_MS, failures: 1 })
  return Math.max(0, (last?.failures ?? 0) - LINES_PER_INTERVAL)
}

/**
 * Logs a failed request: the error, never the content. Unauthenticated requests are logged elsewhere. The lines of one
 * agent are limited, so that it cannot fill the disk.
 */
export function logFailure(logger: Logger, request: FastifyRequest, error: ProxyError): void {
  const { caller } = request
  if (caller?.is === 'stranger') return
  const omitted = caller?.is === 'agent' ? countFailure(logger, caller.sessionId) : 0
  if (omitted === undefined) return
  const { sessionId } = request.params as { sessionId?: string }
  const { code, status, cause, logMessage } = error
  logEvent(logger, 'request_failed', {
    ...{ code, status, request_id: request.id, session_id: sessionId, reason: logMessage, err: cause },
    left_out: omitted || undefined,
  })
}

/** Errors that a retry cannot resolve. By default, the OpenAI and Anthropic SDKs retry every 409 and 5xx. */
const FINAL: ReadonlySet<ErrorCode> = new Set([
  'session_ended',
  'limit_reached',
  'turn_cancelled',
  'data_damaged',
  'internal',
])

/**
 * Default delays of retries in seconds. An unavailable engine, worker or disk rarely recovers within the second or two
 * after which the SDKs would stop retrying.
 */
const RETRY_AFTER_S: Partial<Record<ErrorCode, number>> = {
  engine_unreachable: 5,
  no_worker: 5,
  policy_not_served: 5,
  paused: 5,
  store_failed: 5,
}

/**
 * The maximum delay that is reported, equal to the longest ejection of an engine: an agent that waits longer for a
 * quota blocks its rollout.
 */
const MAX_RETRY_AFTER_S = 300

/** Returns the headers of an error response that HTTP requires or the retry loops of SDKs read. */
export function buildErrorHeaders(error: ProxyError): Record<string, string> {
  // An unimplemented feature (501) stays unimplemented.
  if (FINAL.has(error.code) || error.status === 501) return { 'x-should-retry': 'false' }
  if (error.status === 401) return { 'www-authenticate': 'Bearer realm="llm-proxy"' }
  const retryAfterS = error.retryAfterS ?? RETRY_AFTER_S[error.code]
  return retryAfterS === undefined ? {} : { 'retry-after': String(Math.min(retryAfterS, MAX_RETRY_AFTER_S)) }
}
