import type { AddressInfo } from 'node:net'
import Fastify from 'fastify'
import type { Test } from 'tap'
import type { GenerationEvent } from '../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { MAX_FRAME_BYTES } from '../../src/protocol/worker/protocol.ts'
import { workerSocket } from '../../src/proxy/http/worker/worker-socket.ts'
import { RelayBackend, type RelayBackendOptions } from '../../src/proxy/relay/relay-backend.ts'
import { pull } from './event-stream.ts'
import { silentLogger } from './silent-logger.ts'

export interface RelayServer {
  backend: RelayBackend
  /** The URL of `/ws/worker`. */
  url: string
  port: number
  close(): Promise<void>
}

/** Starts a relay backend behind a real server, without routes for agents. */
export async function startRelayServer(
  options: Partial<RelayBackendOptions> = {},
  port = 0,
  host = '127.0.0.1',
): Promise<RelayServer> {
  const backend = new RelayBackend({ logger: silentLogger, ...options })
  const app = Fastify({ forceCloseConnections: true })
  await app.register(workerSocket, {
    accept: (...accepted) => backend.accept(...accepted),
    maxFrameBytes: MAX_FRAME_BYTES,
  })
  await app.listen({ host, port })
  const address = app.server.address() as AddressInfo
  return {
    backend,
    url: `ws://${host}:${address.port}/ws/worker`,
    port: address.port,
    async close() {
      await backend.close()
      await app.close()
    },
  }
}

/** Starts a relay server that stops when the test ends. */
export async function relayServerFor(
  t: Test,
  options: Partial<RelayBackendOptions> = {},
): Promise<RelayServer> {
  const server = await startRelayServer(options)
  t.teardown(() => server.close())
  return server
}

let requestCount = 0

export function chatRequest(content: string, more: Record<string, unknown> = {}): GenerationRequest {
  requestCount += 1
  return {
    requestId: `request-${requestCount}`,
    sessionId: `session-${requestCount}`,
    stream: true,
    kind: 'chat',
    body: { messages: [{ role: 'user', content }], ...more },
  }
}

/** Collects all events of a request. */
export async function readEvents(
  backend: Pick<RelayBackend, 'generate'>,
  request: GenerationRequest,
  signal = new AbortController().signal,
): Promise<GenerationEvent[]> {
  const events: GenerationEvent[] = []
  for await (const batch of pull(backend, request, signal)) events.push(...batch)
  return events
}

/** Returns the text of a completion. */
export function getText(events: readonly GenerationEvent[]): string {
  return events.map((event) => (event.type === 'delta' ? (event.content ?? '') : '')).join('')
}
