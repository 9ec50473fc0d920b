/** Responds to errors that precede the request: Node's parser rejects the headers, or they do not arrive in time. */
import { STATUS_CODES } from 'node:http'
import type { Socket } from 'node:net'

/** The status and the content of an error response. */
interface ConnectionError {
  status: number
  code: string
  message: string
}

const BY_CODE: Readonly<Record<string, ConnectionError>> = {
  ERR_HTTP_REQUEST_TIMEOUT: {
    status: 408,
    code: 'request_timeout',
    message: 'The request did not arrive in time',
  },
  HPE_HEADER_OVERFLOW: {
    status: 431,
    code: 'headers_too_large',
    message: 'The request headers are too large',
  },
}
const MALFORMED: ConnectionError = {
  status: 400,
  code: 'invalid_request',
  message: 'The request is not valid HTTP',
}

/**
 * Writes an error and closes the connection. The path, and therefore the dialect, is unknown, so the body has the
 * members that the clients of all dialects read: OpenAI's and Google's `error`, and Anthropic's `type` beside it.
 */
export function rejectConnection({ code }: NodeJS.ErrnoException, socket: Socket): void {
  // After a reset, Node has destroyed the socket already.
  if (code === 'ECONNRESET' || socket.destroyed) return
  const { status, code: error, message } = BY_CODE[code ?? ''] ?? MALFORMED
  const body = JSON.stringify({
    type: 'error',
    error: { type: 'invalid_request_error', code: error, message, param: null },
    detail: message,
  })
  const head = `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close`
  if (socket.writable) socket.end(`${head}\r\n\r\n${body}`)
  else socket.destroy()
}
