import type { Socket } from 'node:net'
import type { WebSocket } from '@fastify/websocket'

/** What may come over a WebSocket before the hello has been accepted. A hello names the calls that its worker holds. */
export const NEWCOMER_LIMITS = { bytes: 1024 * 1024, frames: 16 } as const

/** Ends a socket that sends more. @param raw the connection under it @returns to be called when the hello is accepted */
export function limitNewcomer(socket: WebSocket, raw: Socket): () => void {
  let [bytes, frames] = [0, 0]
  const countBytes = (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > NEWCOMER_LIMITS.bytes) raw.destroy()
  }
  const countFrame = () => {
    frames += 1
    if (frames > NEWCOMER_LIMITS.frames) raw.destroy()
  }
  // Before the library makes a frame of them: one that never ends is as bad as one that is too long.
  raw.on('data', countBytes)
  const kinds = ['message', 'ping', 'pong'] as const
  for (const kind of kinds) socket.on(kind, countFrame)
  return () => {
    raw.off('data', countBytes)
    for (const kind of kinds) socket.off(kind, countFrame)
  }
}
