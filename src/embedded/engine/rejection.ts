import { ProxyError } from '../../base/errors.ts'

const TYPE_BY_STATUS: Readonly<Record<number, string>> = { 400: 'BadRequestError', 404: 'NotFoundError' }

/**
 * A refusal as a client of vLLM would report it: status and error body are vLLM's
 * (`vllm/entrypoints/openai/engine/protocol.py`, `ErrorInfo`), whose `code` is the status as a number.
 */
export function rejection(message: string, param: string | null, status = 400): ProxyError {
  return new ProxyError('engine_rejected', message, {
    status,
    engineBody: { error: { message, type: TYPE_BY_STATUS[status], param, code: status } },
    ...(param === null ? {} : { param }),
  })
}
