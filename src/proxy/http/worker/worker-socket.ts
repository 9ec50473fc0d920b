/** `WS /ws/worker`: the endpoint to which inference workers connect. The relay handles the messages. */
import type { Socket } from 'node:net'
import websocket, { type WebSocket } from '@fastify/websocket'
import type { FastifyPluginAsync } from 'fastify'

export interface WorkerSocketOptions {
  /**
   * Accepts or closes the socket.
   * @param greeted to be called when the worker's `hello` has been accepted
   * @param connection the TCP or TLS connection of the WebSocket
   */
  accept(socket: WebSocket, greeted: () => void, connection: Socket): void
  maxFrameBytes: number
  /** Called when a worker's `hello` has been accepted on this connection. */
  onGreeted?(connection: Socket): void
}

/** The close code of RFC 6455 for an endpoint that shuts down. */
const GOING_AWAY = 1001
/** The time limit for a worker's close frame, because its machine may have failed or its process may be suspended. */
const CLOSE_TIMEOUT_MS = 2_000

export const workerSocket: FastifyPluginAsync<WorkerSocketOptions> = async (
  app,
  { accept, maxFrameBytes, onGreeted: greeted },
) => {
  // Declared separately, because the types of `ws` lack `closeTimeout`.
  const options = {
    maxPayload: maxFrameBytes,
    // Workers are in the same cluster, where compressing each small frame costs more than it saves.
    perMessageDeflate: false,
    closeTimeout: CLOSE_TIMEOUT_MS,
  }
  await app.register(websocket, {
    options,
    // The library's default closes without a code; this code makes the worker reconnect.
    preClose(done) {
      const { clients } = app.websocketServer
      for (const socket of clients) socket.close(GOING_AWAY, 'the proxy shuts down')
      const timer = setTimeout(() => {
        for (const socket of clients) socket.terminate()
      }, CLOSE_TIMEOUT_MS)
      app.websocketServer.close(() => {
        clearTimeout(timer)
        done()
      })
    },
    errorHandler: (_error, socket) => socket.terminate(),
  })
  app.get('/ws/worker', { websocket: true, schema: { hide: true } }, (socket, { raw }) => {
    const endLimits = limitHandshake(socket, raw.socket)
    const onGreeted = () => {
      endLimits()
      greeted?.(raw.socket)
    }
    accept(socket, onGreeted, raw.socket)
  })
}

/**
 * Limits on a WebSocket before its `hello` has been accepted. The size leaves room for a `hello` that lists many
 * requests in flight.
 */
export const HANDSHAKE_LIMITS = { bytes: 1024 * 1024, frames: 16 } as const

/**
 * Closes a WebSocket that exceeds {@link HANDSHAKE_LIMITS}.
 * @param raw the TCP or TLS connection of the WebSocket
 * @returns a function that removes the limits
 */
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
  // Bytes are counted before the library assembles frames, because a frame may be endless.
  raw.on('data', countBytes)
  const kinds = ['message', 'ping', 'pong'] as const
  for (const kind of kinds) socket.on(kind, countFrame)
  return () => {
    raw.off('data', countBytes)
    for (const kind of kinds) socket.off(kind, countFrame)
  }
}
