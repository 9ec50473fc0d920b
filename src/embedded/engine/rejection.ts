import { ProxyError } from '../../base/errors.ts'

/**
 * A refusal as a client of vLLM would report it: status and error body are vLLM's
 * (`vllm/entrypoints/openai/engine/protocol.py`, `ErrorInfo`), whose `code` is the status as a number.
 */
export function rejection(message: string, param: string): ProxyError {
  const engineBody = { error: { message, type: 'BadRequestError', param, code: 400 } }
  return new ProxyError('engine_rejected', message, { status: 400, engineBody, param })
}
