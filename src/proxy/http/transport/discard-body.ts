import type { IncomingMessage } from 'node:http'

/** Limits on reading the rest of a body that is discarded. */
export interface DiscardLimits {
  bytes: number
  /** The time after which the connection is closed if the body has not ended. */
  ms: number
}

/** The limits for the rest of an oversized body, whose client may read the response only after it has sent the body. */
export const OVERSIZED_BODY: DiscardLimits = { bytes: 256 * 1024 * 1024, ms: 30_000 }

/**
 * Reads and discards a body. Many clients read a response only after they have sent their body: closing the connection
 * earlier would show them a broken connection instead of the error. Reading pauses after `bytes`; after `ms` the
 * connection is closed if the body has not ended. Does nothing if the body has been read, because the connection may
 * already serve the next request.
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

/** Returns whether a request has a body, according to its headers. */
export function hasBody({ headers }: IncomingMessage): boolean {
  return headers['content-length'] !== undefined || headers['transfer-encoding'] !== undefined
}
