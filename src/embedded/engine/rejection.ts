import { ProxyError } from '../../base/errors.ts'

/**
 * Returns a rejection as vLLM reports it: status and error body are vLLM's
 * (`vllm/entrypoints/openai/engine/protocol.py`, `ErrorInfo`), where `code` is the status as a number.
 */
export function createRejectionError(message: string, param: string): ProxyError {
  const engineBody = { error: { message, type: 'BadRequestError', param, code: 400 } }
  return new ProxyError('engine_rejected', message, { status: 400, engineBody, param })
}
