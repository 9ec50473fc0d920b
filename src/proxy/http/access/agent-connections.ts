import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { whenClosed } from '../transport/when-closed.ts'

/** Twice as many as the calls that an agent may have under way: there is always one to close. */
const MAX_CONNECTIONS = 256

/**
 * Bounds the connections that the holder of an agent's key keeps open: each takes one of the process's files. Above the limit
 * the one that was longest without a call is closed, as its client expects of idle ones.
 */
export class AgentConnections {
  /** By session; of each connection the calls under way. That of the latest call is the last. */
  readonly #bySession = new Map<string, Map<Socket, number>>()
  readonly #limit: number

  constructor(limit = MAX_CONNECTIONS) {
    this.#limit = limit
  }

  /** A call has come over the connection. */
  note(sessionId: string, socket: Socket, response: ServerResponse): void {
    const connections = this.#bySession.get(sessionId) ?? new Map<Socket, number>()
    this.#bySession.set(sessionId, connections)
    const calls = connections.get(socket)
    if (calls === undefined) socket.once('close', () => this.#forget(sessionId, socket))
    connections.delete(socket)
    connections.set(socket, (calls ?? 0) + 1)
    whenClosed(response, () => {
      const running = connections.get(socket)
      if (running !== undefined) connections.set(socket, running - 1)
    })
    if (connections.size > this.#limit) closeFirstIdle(connections)
  }

  #forget(sessionId: string, socket: Socket): void {
    const connections = this.#bySession.get(sessionId)
    connections?.delete(socket)
    if (connections?.size === 0) this.#bySession.delete(sessionId)
  }
}

function closeFirstIdle(connections: Map<Socket, number>): void {
  for (const [socket, calls] of connections) {
    if (calls > 0) continue
    connections.delete(socket)
    socket.destroy()
    return
  }
}
