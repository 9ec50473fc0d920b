import { ProxyError } from '../../base/errors.ts'

/**
 * Returns the error for a request that the engine rejects, with vLLM's status and error body
 * (`vllm/entrypoints/openai/engine/protocol.py`, `ErrorInfo`), where `code` is the HTTP status.
 */
export function createRejectionError(message: string, param: string): ProxyError {
  const engineBody = { error: { message, type: 'BadRequestError', param, code: 400 } }
  return new ProxyError('engine_rejected', message, { status: 400, engineBody, param })
}
