/** What can go wrong between the proxy and an engine, as ProxyErrors. */
import { type ErrorCode, ProxyError } from '../../../../base/errors.ts'
import { isRecord, parseJson } from '../../../../base/json.ts'

const EXCERPT_CHARS = 200
const NOT_HTTP = /^HPE_/
const LOST = new Set(['UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE', 'UND_ERR_DESTROYED', 'UND_ERR_CLOSED'])
const SILENT = new Set(['UND_ERR_HEADERS_TIMEOUT', 'UND_ERR_BODY_TIMEOUT'])

/** An error of undici before the engine's answer began: was there a connection? */
export function requestFailure(engine: string, thrown: unknown): ProxyError {
  const code = codeOf(thrown)
  if (SILENT.has(code) || LOST.has(code) || NOT_HTTP.test(code)) return answerFailure(engine, thrown)
  return failure('engine_unreachable', `cannot connect to the engine at ${engine}`, code, thrown)
}

/** An error of undici once there was a connection. */
export function answerFailure(engine: string, thrown: unknown): ProxyError {
  const code = codeOf(thrown)
  if (SILENT.has(code)) return failure('engine_timeout', `the engine at ${engine} fell silent`, code, thrown)
  if (NOT_HTTP.test(code)) {
    // The parser's error holds what it could not read.
    return failure('engine_failed', `what answered at ${engine} does not speak HTTP`, code, undefined)
  }
  return failure('engine_lost', `the connection to the engine at ${engine} was lost`, code, thrown)
}

function failure(code: ErrorCode, message: string, detail: string, cause: unknown): ProxyError {
  return new ProxyError(code, detail === '' ? message : `${message} (${detail})`, { cause })
}

function codeOf(thrown: unknown): string {
  if (!(thrown instanceof Error)) return ''
  const { code, name } = thrown as Error & { code?: unknown }
  // undici has no code for some of what its parser refuses.
  if (code === undefined && name === 'HTTPParserError') return 'HPE_INVALID'
  return code === undefined ? '' : String(code)
}

/** An answer that has come to its end before the engine said why it is one. */
export function answerUnfinished(engine: string): ProxyError {
  return new ProxyError('engine_lost', `the answer of the engine at ${engine} ended without a finish reason`)
}

/** What is larger than any answer would end the process. @param limit in bytes */
export function answerTooLarge(engine: string, limit: number): ProxyError {
  return new ProxyError('engine_failed', `the engine at ${engine} sent more than ${limit} bytes at once`)
}

export interface RefusedAnswer {
  engine: string
  status: number
  /** The body, free of credentials. */
  text: string
  retryAfter?: string | undefined
}

/** An answer with an HTTP status that is not 2xx. */
export function refusalError({ engine, status, text, retryAfter }: RefusedAnswer): ProxyError {
  const body = parseJson(text)
  const said = engineMessage(body) ?? excerpt(text)
  const retryAfterS = retryAfter === undefined ? undefined : secondsUntil(retryAfter)
  if (status >= 400 && status < 500) {
    return new ProxyError('engine_rejected', said === '' ? `the engine answered with HTTP ${status}` : said, {
      status,
      engineBody: body ?? text,
      logMessage: 'the engine refused the call',
      retryAfterS,
    })
  }
  const logMessage = `the engine at ${engine} answered with HTTP ${status}`
  const message = said === '' ? logMessage : `${logMessage}: ${said}`
  return new ProxyError('engine_failed', message, { logMessage, retryAfterS })
}

/**
 * Whether an answer, or an event of a stream, is an error: `{"error": …}`, or the error itself (SGLang, older vLLM). An
 * empty `error` is none: gateways write one beside what they forward.
 */
export function isError(answer: Record<string, unknown>): boolean {
  const { error, object } = answer
  return object === 'error' || (isRecord(error) ? Object.keys(error).length > 0 : Boolean(error))
}

/**
 * An error where an answer should be. Once a stream has begun its status is 200, and vLLM (0.32) and SGLang (0.5.23) say the
 * real one in `error.code`; 4xx is what the caller did wrong, as a sampling parameter that the engine's core refuses.
 * @param json the answer as it came
 */
export function answerError(engine: string, json: string, redact: (text: string) => string): ProxyError {
  const text = redact(json)
  const answer = parseJson(text)
  const status = isRecord(answer) && isRecord(answer.error) ? Number(answer.error.code) : Number.NaN
  if (status >= 400 && status < 500) return refusalError({ engine, status, text })
  return saidBy(
    'engine_failed',
    `the engine at ${engine} failed`,
    `: ${engineMessage(answer) ?? excerpt(text)}`,
  )
}

/** A failure in words of ours, and then an engine's own, which are for the agent and the record, and no log. */
export function saidBy(code: ErrorCode, ours: string, theirs: string): ProxyError {
  return new ProxyError(code, ours + theirs, { logMessage: ours })
}

/** What went wrong when an engine was asked how it is; to a health check, every refusal is a failure. */
export function healthFailure(thrown: unknown): unknown {
  if (!(thrown instanceof ProxyError)) return thrown
  const { code, message, status } = thrown
  if (code === 'engine_lost' || code === 'engine_timeout') {
    return new ProxyError('engine_unreachable', message, { cause: thrown })
  }
  if (code !== 'engine_rejected') return thrown
  return new ProxyError('engine_failed', `the engine refused to say how it is (HTTP ${status}): ${message}`)
}

/** The text of a retry-after header, seconds or a date, in seconds. */
function secondsUntil(retryAfter: string): number | undefined {
  const seconds = /^\d+$/.test(retryAfter) ? Number(retryAfter) : (Date.parse(retryAfter) - Date.now()) / 1000
  return Number.isFinite(seconds) ? Math.max(0, Math.ceil(seconds)) : undefined
}

/**
 * What an error body says. Seen: `{"error":{"message"}}` (OpenAI, vLLM), `{"object":"error","message"}` (SGLang, older
 * vLLM), `{"error":"Unauthorized"}` (vLLM's key check), `{"detail"}` (FastAPI).
 */
export function engineMessage(body: unknown): string | undefined {
  if (!isRecord(body)) return undefined
  for (const said of [isRecord(body.error) ? body.error.message : body.error, body.message, body.detail]) {
    if (typeof said === 'string') return said
    if (said !== undefined && said !== null) return excerpt(JSON.stringify(said))
  }
  return undefined
}

/** The beginning of a text, on one line. */
export function excerpt(text: string): string {
  const line = text
    .slice(0, 2 * EXCERPT_CHARS)
    .replace(/\s+/g, ' ')
    .trim()
  return line.length > EXCERPT_CHARS ? `${line.slice(0, EXCERPT_CHARS)}…` : line
}
