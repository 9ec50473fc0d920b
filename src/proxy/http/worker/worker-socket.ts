/** `WS /ws/worker`: where inference workers dial in. What happens on the socket is the relay's business. */
import type { Socket } from 'node:net'
import websocket, { type WebSocket } from '@fastify/websocket'
import type { FastifyPluginAsync } from 'fastify'

export interface WorkerSocketOptions {
  /** Takes the socket over, or closes it. @param greeted to be called when the worker's hello is accepted */
  accept(socket: WebSocket, greeted: () => void): void
  maxFrameBytes: number
  /** A worker's hello was accepted over this connection. */
  greeted?(connection: Socket): void
}

const GOING_AWAY = 1001
/** A worker that does not answer the close is not waited for: its machine may be gone, or its process stopped. */
const CLOSE_TIMEOUT_MS = 2_000

export const workerSocket: FastifyPluginAsync<WorkerSocketOptions> = async (
  app,
  { accept, maxFrameBytes, greeted },
) => {
  // Apart from the call, as the types of `ws` are older than `closeTimeout`.
  const options = {
    maxPayload: maxFrameBytes,
    // A worker sits in the same cluster: compressing each small frame costs more than it saves.
    perMessageDeflate: false,
    closeTimeout: CLOSE_TIMEOUT_MS,
  }
  await app.register(websocket, {
    options,
    // The library's own would close without a code; with this one a worker knows that it should dial again.
    preClose(done) {
      const { clients } = app.websocketServer
      for (const socket of clients) socket.close(GOING_AWAY, 'the proxy shuts down')
      const patience = setTimeout(() => {
        for (const socket of clients) socket.terminate()
      }, CLOSE_TIMEOUT_MS)
      app.websocketServer.close(() => {
        clearTimeout(patience)
        done()
      })
    },
    errorHandler: (_error, socket) => socket.terminate(),
  })
  app.get('/ws/worker', { websocket: true, schema: { hide: true } }, (socket, { raw }) => {
    const endLimits = limitHandshake(socket, raw.socket)
    accept(socket, () => {
      endLimits()
      greeted?.(raw.socket)
    })
  })
}

/** What may come over a WebSocket before the hello has been accepted. A hello names the calls that its worker holds. */
export const HANDSHAKE_LIMITS = { bytes: 1024 * 1024, frames: 16 } as const

/** Ends a socket that sends more. @param raw the connection under it @returns to be called when the hello is accepted */
function limitHandshake(socket: WebSocket, raw: Socket): () => void {
  let [bytes, frames] = [0, 0]
  const countBytes = (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > HANDSHAKE_LIMITS.bytes) raw.destroy()
  }
  const countFrame = () => {
    frames += 1
    if (frames > HANDSHAKE_LIMITS.frames) raw.destroy()
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
