import type { IncomingMessage } from 'node:http'

/** What is still read of a body that nobody wants. */
export interface DiscardLimits {
  bytes: number
  /** From now; then the connection is closed, whether the body has ended or not. */
  ms: number
}

/** The rest of a body that is too large, or not wanted: its client reads the response once it has sent this. */
export const OVERSIZED_BODY: DiscardLimits = { bytes: 256 * 1024 * 1024, ms: 30_000 }

/**
 * Many clients read an answer when their body is sent, and not before: closing the connection under them would show
 * them a broken connection instead of the refusal. So some of the body is read and forgotten; after that many bytes the
 * client is left to wait, and a body that has not ended in time ends with its connection. Nothing is done about one
 * that has been read: its connection may be in the middle of the next call by then.
 */
export function discardBody(request: IncomingMessage, { bytes, ms }: DiscardLimits): void {
  if (!hasBody(request) || request.readableEnded || request.destroyed) return
  let left = bytes
  request.on('data', (chunk: Buffer) => {
    left -= chunk.length
    if (left < 0) request.pause()
  })
  const timer = setTimeout(() => request.socket.destroy(), ms)
  request.once('end', () => clearTimeout(timer))
  request.once('close', () => clearTimeout(timer))
}

export function hasBody({ headers }: IncomingMessage): boolean {
  return headers['content-length'] !== undefined || headers['transfer-encoding'] !== undefined
}
