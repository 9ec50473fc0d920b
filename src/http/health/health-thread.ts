/** The thread of the health port: answers `GET /health` from what the proxy told last. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { parentPort, workerData } from 'node:worker_threads'

export interface HealthThreadData {
  host: string
  port: number
  /** The path that is answered: `/health`, behind the base path. */
  path: string
  /** Milliseconds without a word from the proxy after which it counts as stuck. */
  stuckMs: number
}

/** What the proxy says of itself, as its own `/health` would. */
export interface ToldHealth {
  code: number
  body: string
}

/** The port that the thread listens on, or why it cannot. */
export type HealthThreadReply = { port: number } | { failure: string }

const { host, port, path, stuckMs } = workerData as HealthThreadData
const proxy = parentPort!

const STUCK: ToldHealth = { code: 503, body: '{"status":"stuck"}' }
const NOT_FOUND: ToldHealth = { code: 404, body: '{"detail":"There is nothing here but GET /health"}' }

let told: ToldHealth = { code: 503, body: '{"status":"starting"}' }
let toldAtMs = performance.now()

proxy.on('message', (health: ToldHealth) => {
  told = health
  toldAtMs = performance.now()
})

const server = createServer(({ method = '', url = '' }, response) => {
  const isAsked = ['GET', 'HEAD'].includes(method) && url.split('?')[0] === path
  const now = performance.now() - toldAtMs > stuckMs ? STUCK : told
  const { code, body } = isAsked ? now : NOT_FOUND
  response.writeHead(code, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
    connection: 'close',
  })
  response.end(method === 'HEAD' ? undefined : body)
})
server.on('error', ({ message }) => proxy.postMessage({ failure: message } satisfies HealthThreadReply))
server.listen({ host, port }, () =>
  proxy.postMessage({ port: (server.address() as AddressInfo).port } satisfies HealthThreadReply),
)
