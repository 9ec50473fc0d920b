/** Errors in the form of Google's APIs: https://google.aip.dev/193 */
import type { ProxyError } from '../../../base/errors.ts'
import { readContextOverflow } from '../common/context-overflow.ts'

const STATUSES: Readonly<Record<number, string>> = {
  401: 'UNAUTHENTICATED',
  403: 'PERMISSION_DENIED',
  404: 'NOT_FOUND',
  409: 'ABORTED',
  429: 'RESOURCE_EXHAUSTED',
  499: 'CANCELLED',
  503: 'UNAVAILABLE',
  504: 'DEADLINE_EXCEEDED',
}

export function buildGoogleError(error: ProxyError): object {
  const { code, status, message, param } = error
  const overflow = readContextOverflow(error)
  return {
    error: {
      code: status,
      message:
        overflow?.prompt === undefined
          ? message
          : `The input token count (${overflow.prompt}) exceeds the maximum number of tokens allowed (${overflow.limit}).`,
      status: STATUSES[status] ?? (status < 500 ? 'INVALID_ARGUMENT' : 'INTERNAL'),
      details: [
        {
          '@type': 'type.googleapis.com/google.rpc.ErrorInfo',
          reason: code.toUpperCase(),
          domain: 'llm-proxy',
          metadata: param === undefined ? {} : { param },
        },
      ],
    },
  }
}
