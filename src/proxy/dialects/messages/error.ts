/** Errors in the form of Anthropic's API: https://platform.claude.com/docs/en/api/errors */
import type { ErrorCode, ProxyError } from '../../../base/errors.ts'
import { type ContextOverflow, readContextOverflow } from '../common/context-overflow.ts'
import { formatSseEvent } from './stream.ts'

/** The error code on which the SDK's tool runner, which requests a thread, sends the complete conversation instead. */
const NO_THREADS = 'thread_unsupported_request'

interface AnthropicErrorBody {
  type: 'error'
  error: {
    type: string
    message: string
    /** The SDK exposes it as `errorCode`; here it is the proxy's own code (`docs/errors.md`). */
    details: { error_code: ErrorCode | typeof NO_THREADS; param?: string | undefined }
  }
  request_id: string | null
}

export function buildAnthropicError(error: ProxyError, requestId: string | null = null): AnthropicErrorBody {
  const { code, param, message } = error
  const overflow = readContextOverflow(error)
  return {
    type: 'error',
    error: {
      type: getErrorType(getAnthropicStatus(error)),
      // Agents shorten their conversation only if they recognize Anthropic's own message.
      message: overflow ? describeOverflow(overflow, message) : message,
      details: {
        error_code: code === 'unsupported' && param === 'thread' ? NO_THREADS : code,
        param,
      },
    },
    request_id: requestId,
  }
}

/** Formats the event of an error that occurs after the stream has begun. */
export function formatAnthropicErrorEvent(error: ProxyError): string {
  const { type, ...fields } = buildAnthropicError(error)
  return formatSseEvent(type, fields)
}

/** Anthropic's HTTP status for an overloaded service. */
const OVERLOADED = 529

export function getAnthropicStatus({ code, status }: ProxyError): number {
  return code === 'queue_full' || code === 'no_worker' ? OVERLOADED : status
}

const TYPE_BY_STATUS: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  402: 'billing_error',
  403: 'permission_error',
  404: 'not_found_error',
  409: 'conflict_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  504: 'timeout_error',
  [OVERLOADED]: 'overloaded_error',
}

function getErrorType(status: number): string {
  return TYPE_BY_STATUS[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error')
}

/**
 * Returns Anthropic's message for a prompt that does not fit. Claude Code compacts its conversation when it reads
 * `prompt is too long: 205123 tokens > 200000 maximum`, and requests fewer tokens when it reads ``input length and
 * `max_tokens` exceed context limit: 188240 + 21333 > 200000``.
 * @param message the engine's message, which is used if it contains no numbers
 */
function describeOverflow({ limit, prompt, completion }: ContextOverflow, message: string): string {
  if (prompt === undefined) return `prompt is too long: ${message}`
  if (completion !== undefined && prompt < limit) {
    return (
      `input length and \`max_tokens\` exceed context limit: ${prompt} + ${completion} > ${limit}, ` +
      'decrease input length or `max_tokens` and try again'
    )
  }
  return `prompt is too long: ${prompt} tokens > ${limit} maximum`
}
