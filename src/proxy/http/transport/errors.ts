/** Error handling that all routes share, whatever the error's form on the wire. */
import type { FastifyRequest } from 'fastify'
import { type ErrorCode, ProxyError, toProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'

/**
 * Converts Fastify's own errors (a body over the limit, a broken content-length), and clients that leave before their
 * request is complete, into a {@link ProxyError}.
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

/** The log lines per interval for failed requests of an agent with a key; further lines would add no information. */
const LINES_PER_INTERVAL = 10
const LOG_INTERVAL_MS = 10_000

interface FailureBurst {
  endsAtMs: number
  failures: number
}

/**
 * The failures by logger, because each server has its own, and by session of an agent with failures in this interval.
 */
const failureBursts = new WeakMap<Logger, Map<string, FailureBurst>>()

/** @returns the number of failures omitted before this one, to be logged with it; undefined: omit this one, too */
function countOmitted(logger: Logger, sessionId: string): number | undefined {
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
 * Logs one line for a failed request: the error, never the content. Unauthenticated requests have a separate log, and
 * an agent with a key cannot fill the disk with log lines.
 */
export function logFailure(logger: Logger, request: FastifyRequest, error: ProxyError): void {
  const { caller } = request
  if (caller?.is === 'stranger') return
  const missing = caller?.is === 'agent' ? countOmitted(logger, caller.sessionId) : 0
  if (missing === undefined) return
  const { sessionId } = request.params as { sessionId?: string }
  const { code, status, cause, logMessage } = error
  logEvent(logger, 'request_failed', {
    ...{ code, status, request_id: request.id, session_id: sessionId, reason: logMessage, err: cause },
    left_out: missing || undefined,
  })
}

/** Errors for which a retry cannot help; the OpenAI and Anthropic SDKs would otherwise retry every 409 and 5xx. */
const FINAL: ReadonlySet<ErrorCode> = new Set([
  'session_ended',
  'limit_reached',
  'turn_cancelled',
  'data_damaged',
  'internal',
])

/**
 * Default delays of retries in seconds: an unavailable part (an engine, a worker, the disk) rarely recovers within the
 * second or two after which the SDKs would give up.
 */
const RETRY_AFTER_S: Partial<Record<ErrorCode, number>> = {
  engine_unreachable: 5,
  no_worker: 5,
  policy_not_served: 5,
  paused: 5,
  store_failed: 5,
}

/**
 * The maximum delay that is reported, equal to the longest ejection of an engine: an agent that waits longer for a quota
 * blocks its rollout.
 */
const MAX_RETRY_AFTER_S = 300

/** Returns the headers of an error, which the SDKs' retry loops use or HTTP requires. */
export function buildErrorHeaders(error: ProxyError): Record<string, string> {
  // 501: not implemented, now or later.
  if (FINAL.has(error.code) || error.status === 501) return { 'x-should-retry': 'false' }
  if (error.status === 401) return { 'www-authenticate': 'Bearer realm="llm-proxy"' }
  const retryAfterS = error.retryAfterS ?? RETRY_AFTER_S[error.code]
  return retryAfterS === undefined ? {} : { 'retry-after': String(Math.min(retryAfterS, MAX_RETRY_AFTER_S)) }
}
