import type { ProxyError } from '../../../base/errors.ts'
import { readContextOverflow } from './context-overflow.ts'

/** OpenAI's error body, as its SDKs read it. */
interface OpenAiErrorBody {
  error: {
    message: string
    type: string
    param: string | null
    code: string | number | null
    [field: string]: unknown
  }
}

/**
 * Converts an error into OpenAI's form: https://platform.openai.com/docs/guides/error-codes. The message of an engine's
 * error is unchanged; a context overflow has the code by which agents recognize it.
 */
export function buildOpenAiError(error: ProxyError): OpenAiErrorBody {
  const fromEngine = findEngineError(error.engineBody)
  const { message, type, param, code } = fromEngine ?? { param: error.param }
  return {
    error: {
      ...fromEngine,
      message: String(message ?? error.message),
      type: typeof type === 'string' ? type : getErrorType(error.status),
      param: typeof param === 'string' ? param : null,
      code: toErrorCode(code) ?? error.code,
      ...describeOverflow(error),
    },
  }
}

/**
 * Returns OpenAI's type and code for a context overflow; empty for any other error. Engines send another type, and the
 * HTTP status as the code.
 */
function describeOverflow(error: ProxyError): { type?: string; code?: string } {
  if (!readContextOverflow(error)) return {}
  return { type: 'invalid_request_error', code: 'context_length_exceeded' }
}

/**
 * Returns the engine's error, which is wrapped as `{"error": {...}}` or flat as `{"object": "error", "message": ...}`.
 */
function findEngineError(body: unknown): Record<string, unknown> | undefined {
  if (typeof body !== 'object' || body === null) return undefined
  const { error, message } = body as { error?: unknown; message?: unknown }
  if (typeof error === 'object' && error !== null) return error as Record<string, unknown>
  if (typeof error === 'string') return { message: error }
  return typeof message === 'string' ? (body as Record<string, unknown>) : undefined
}

function toErrorCode(code: unknown): string | number | undefined {
  return typeof code === 'string' || typeof code === 'number' ? code : undefined
}

function getErrorType(status: number): string {
  if (status === 401) return 'authentication_error'
  if (status === 403) return 'permission_error'
  if (status === 404) return 'not_found_error'
  if (status === 429) return 'rate_limit_error'
  return status < 500 ? 'invalid_request_error' : 'server_error'
}
