/** Conversion of failures between the proxy and an engine to ProxyErrors. */
import { type ErrorCode, ProxyError } from '../../../../base/errors.ts'
import { isRecord, parseJson } from '../../../../base/json.ts'

const EXCERPT_CHARS = 200
const NOT_HTTP = /^HPE_/
const LOST = new Set(['UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE', 'UND_ERR_DESTROYED', 'UND_ERR_CLOSED'])
const SILENT = new Set(['UND_ERR_HEADERS_TIMEOUT', 'UND_ERR_BODY_TIMEOUT'])

/** Converts an error of undici before the response began. The code depends on whether there was a connection. */
export function convertRequestError(engine: string, thrown: unknown): ProxyError {
  const code = getErrorCode(thrown)
  if (SILENT.has(code) || LOST.has(code) || NOT_HTTP.test(code)) return convertResponseError(engine, thrown)
  return createFailure('engine_unreachable', `cannot connect to the engine at ${engine}`, code, thrown)
}

/** Converts an error of undici after a connection was established. */
export function convertResponseError(engine: string, thrown: unknown): ProxyError {
  const code = getErrorCode(thrown)
  if (SILENT.has(code))
    return createFailure('engine_timeout', `the engine at ${engine} fell silent`, code, thrown)
  if (NOT_HTTP.test(code)) {
    // The cause is omitted: the parser's error contains the data that it could not parse.
    return createFailure('engine_failed', `the server at ${engine} does not speak HTTP`, code, undefined)
  }
  return createFailure('engine_lost', `the connection to the engine at ${engine} was lost`, code, thrown)
}

function createFailure(code: ErrorCode, message: string, detail: string, cause: unknown): ProxyError {
  return new ProxyError(code, detail === '' ? message : `${message} (${detail})`, { cause })
}

function getErrorCode(thrown: unknown): string {
  if (!(thrown instanceof Error)) return ''
  const { code, name } = thrown as Error & { code?: unknown }
  // undici has no code for some parser errors.
  if (code === undefined && name === 'HTTPParserError') return 'HPE_INVALID'
  return code === undefined ? '' : String(code)
}

/** Returns the error for a response that ended before its finish reason. */
export function createUnfinishedResponseError(engine: string): ProxyError {
  return new ProxyError(
    'engine_lost',
    `the response of the engine at ${engine} ended without a finish reason`,
  )
}

/** Returns the error for a response that is too large to be buffered. @param limit in bytes */
export function createResponseTooLargeError(engine: string, limit: number): ProxyError {
  return new ProxyError('engine_failed', `the engine at ${engine} sent more than ${limit} bytes at once`)
}

/** A response whose HTTP status is not 2xx. */
export interface EngineRejection {
  engine: string
  status: number
  /** The body without credentials. */
  text: string
  retryAfter?: string | undefined
}

/** Converts a response whose HTTP status is not 2xx. */
export function convertRejection({ engine, status, text, retryAfter }: EngineRejection): ProxyError {
  const body = parseJson(text)
  const detail = findEngineMessage(body) ?? toExcerpt(text)
  const retryAfterS = retryAfter === undefined ? undefined : parseRetryAfter(retryAfter)
  if (status >= 400 && status < 500) {
    return new ProxyError(
      'engine_rejected',
      detail === '' ? `the engine responded with HTTP ${status}` : detail,
      {
        status,
        engineBody: body ?? text,
        logMessage: 'the engine rejected the request',
        retryAfterS,
      },
    )
  }
  const logMessage = `the engine at ${engine} responded with HTTP ${status}`
  const message = detail === '' ? logMessage : `${logMessage}: ${detail}`
  return new ProxyError('engine_failed', message, { logMessage, retryAfterS })
}

/** Statuses of rejections by an overloaded server. */
const OVERLOAD_STATUSES: ReadonlySet<number> = new Set([408, 429])

/**
 * Returns whether the server has rejected a request for a lasting reason, such as a missing route. All other failures
 * may be transient: 5xx, overload, a lost connection.
 */
export function isLastingRejection(thrown: unknown): boolean {
  return (
    thrown instanceof ProxyError && thrown.code === 'engine_rejected' && !OVERLOAD_STATUSES.has(thrown.status)
  )
}

/**
 * Returns whether a response, or an event of a stream, is an error: `{"error": …}`, or the error itself (SGLang, older
 * vLLM). An empty `error` does not count: gateways add one to responses that they forward.
 */
export function isError(response: Record<string, unknown>): boolean {
  const { error, object } = response
  return object === 'error' || (isRecord(error) ? Object.keys(error).length > 0 : Boolean(error))
}

/**
 * Converts an error in place of a response. The HTTP status of a stream is 200 once it has begun, and vLLM (0.32) and
 * SGLang (0.5.23) report the real one in `error.code`; 4xx is an error of the client, for instance a sampling parameter
 * that the engine's core rejects.
 * @param json the response as received
 * @param code the code of an error of the engine. `engine_lost`: in the middle of a response, as vLLM reports the end
 *   of its core; the tokens before it are complete
 */
export function convertErrorBody(
  engine: string,
  json: string,
  redact: (text: string) => string,
  code: 'engine_failed' | 'engine_lost' = 'engine_failed',
): ProxyError {
  const text = redact(json)
  const body = parseJson(text)
  const status = isRecord(body) && isRecord(body.error) ? Number(body.error.code) : Number.NaN
  if (status >= 400 && status < 500) return convertRejection({ engine, status, text })
  return createEngineError(
    code,
    `the engine at ${engine} failed`,
    `: ${findEngineMessage(body) ?? toExcerpt(text)}`,
  )
}

/** Returns an error with the proxy's message and the engine's text, of which logs contain only the former. */
export function createEngineError(code: ErrorCode, ours: string, theirs: string): ProxyError {
  return new ProxyError(code, ours + theirs, { logMessage: ours })
}

/** Converts an error of a health check, for which every rejection is a failure. */
export function convertHealthError(thrown: unknown): unknown {
  if (!(thrown instanceof ProxyError)) return thrown
  const { code, message, status } = thrown
  if (code === 'engine_lost' || code === 'engine_timeout') {
    return new ProxyError('engine_unreachable', message, { cause: thrown })
  }
  if (code !== 'engine_rejected') return thrown
  return new ProxyError('engine_failed', `the engine rejected the health check (HTTP ${status}): ${message}`)
}

/** Converts a Retry-After header, seconds or a date, to seconds. */
function parseRetryAfter(retryAfter: string): number | undefined {
  const seconds = /^\d+$/.test(retryAfter) ? Number(retryAfter) : (Date.parse(retryAfter) - Date.now()) / 1000
  return Number.isFinite(seconds) ? Math.max(0, Math.ceil(seconds)) : undefined
}

/**
 * Returns the message of an error body. Known forms: `{"error":{"message"}}` (OpenAI, vLLM),
 * `{"object":"error","message"}` (SGLang, older vLLM), `{"error":"Unauthorized"}` (vLLM's key check), `{"detail"}`
 * (FastAPI).
 */
export function findEngineMessage(body: unknown): string | undefined {
  if (!isRecord(body)) return undefined
  for (const value of [isRecord(body.error) ? body.error.message : body.error, body.message, body.detail]) {
    if (typeof value === 'string') return value
    if (value !== undefined && value !== null) return toExcerpt(JSON.stringify(value))
  }
  return undefined
}

/** Returns the beginning of a text as one line. */
export function toExcerpt(text: string): string {
  const line = text
    .slice(0, 2 * EXCERPT_CHARS)
    .replace(/\s+/g, ' ')
    .trim()
  return line.length > EXCERPT_CHARS ? `${line.slice(0, EXCERPT_CHARS)}…` : line
}
