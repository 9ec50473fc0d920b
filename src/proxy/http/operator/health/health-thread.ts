/** The thread of the health port: serves `GET /health` and `/health/live` from the last report of the proxy. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { parentPort, workerData } from 'node:worker_threads'
import { UnauthenticatedConnections } from '../../transport/unauthenticated-connections.ts'

/** The configuration of the thread. */
export interface HealthThreadConfig {
  host: string
  port: number
  /** The base path and `/health`. */
  path: string
  /** The time without a report after which the proxy counts as stuck. */
  stuckMs: number
}

/** The status and the JSON text of the proxy's own `/health`. */
export interface HealthResponse {
  code: number
  body: string
}

/** The port that the thread listens on, or the reason why it cannot listen. */
export type HealthThreadReply = { port: number } | { failure: string }

const { host, port, path, stuckMs } = workerData as HealthThreadConfig
const proxy = parentPort!

const STUCK: HealthResponse = { code: 503, body: '{"status":"stuck"}' }
const LIVE: HealthResponse = { code: 200, body: '{"status":"ok"}' }
const NOT_FOUND: HealthResponse = {
  code: 404,
  body: '{"detail":"This port serves only GET /health and /health/live"}',
}

let latest: HealthResponse = { code: 503, body: '{"status":"starting"}' }
let latestAtMs = performance.now()

proxy.on('message', (health: HealthResponse) => {
  latest = health
  latestAtMs = performance.now()
})

/**
 * The maximum number of connections, above which the oldest is closed, because each uses a file descriptor of the
 * process. Probes close their connections themselves.
 */
const CONNECTIONS = { limit: 64, limitPerAddress: 64 }
const REQUEST_MS = 10_000

const connections = new UnauthenticatedConnections(CONNECTIONS)
const times = { headersTimeout: REQUEST_MS, requestTimeout: REQUEST_MS }
const server = createServer(times, ({ method = '', url = '' }, response) => {
  const { code, body } = ['GET', 'HEAD'].includes(method) ? getResponse(url.split('?')[0]!) : NOT_FOUND
  response.writeHead(code, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
    connection: 'close',
  })
  response.end(method === 'HEAD' ? undefined : body)
})

function getResponse(requestedPath: string): HealthResponse {
  const isLiveness = requestedPath === `${path}/live`
  if (!isLiveness && requestedPath !== path) return NOT_FOUND
  if (performance.now() - latestAtMs > stuckMs) return STUCK
  return isLiveness ? LIVE : latest
}

server.on('connection', (socket) => connections.admit(socket))
server.on('error', ({ message }) => proxy.postMessage({ failure: message } satisfies HealthThreadReply))
server.listen({ host, port }, () =>
  proxy.postMessage({ port: (server.address() as AddressInfo).port } satisfies HealthThreadReply),
)
