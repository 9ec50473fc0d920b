import type { ProxyError } from '../../base/errors.ts'

const TYPES: Readonly<Record<number, string>> = {
  400: 'BadRequestError',
  404: 'NotFoundError',
  413: 'RequestEntityTooLargeError',
}

/**
 * Returns the body of an error response as vLLM formats it (`vllm/entrypoints/openai/engine/protocol.py`,
 * `ErrorResponse`).
 */
export function buildVllmError(error: ProxyError): unknown {
  if (error.engineBody !== undefined) return error.engineBody
  const type = TYPES[error.status] ?? 'InternalServerError'
  return { error: { message: error.message, type, param: error.param ?? null, code: error.status } }
}
