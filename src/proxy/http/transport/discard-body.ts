import type { IncomingMessage } from 'node:http'

/** Limits on reading the rest of a body that is not used. */
export interface DiscardLimits {
  bytes: number
  /** The time after which the connection is closed, whether or not the body has ended. */
  ms: number
}

/** The limits for the rest of a body that is too large: its client reads the response after it has sent this. */
export const OVERSIZED_BODY: DiscardLimits = { bytes: 256 * 1024 * 1024, ms: 30_000 }

/**
 * Reads and discards a body. Many clients read a response only after they have sent their body: closing the connection
 * earlier would show them a broken connection instead of the error. After `bytes` reading pauses, and a body that has
 * not ended after `ms` ends with its connection. A body that has been read is left alone: its connection may already
 * serve the next request.
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
