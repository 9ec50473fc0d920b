/** The sockets below Fastify: plain or with TLS, and the limits on callers of whom nothing is known yet. */
import { readFileSync } from 'node:fs'
import {
  createServer as createHttpServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
} from 'node:http'
import { createServer as createHttpsServer, type Server as HttpsServer } from 'node:https'
import type { Certificate } from './certificate.ts'
import { UnauthenticatedConnections } from './unauthenticated-connections.ts'

/** What is slower, larger or more than this is cut off; `docs/security.md` has the same figures. */
export const LIMITS = {
  /** All headers of a request together. */
  headerBytes: 16 * 1024,
  /** From the first byte, or the connection, to the end of the headers. */
  headersMs: 15_000,
  /** From the first byte to the end of the body. Answers, streams and long polls are not meant. */
  requestMs: 120_000,
  tlsHandshakeMs: 10_000,
  /** Longer than the idle limits of common load balancers (60 s), so that they and not we close idle connections. */
  keepAliveMs: 75_000,
  strangers: 4_096,
  strangersPerAddress: 2_048,
} as const

/** How often Node looks for what is too slow. */
const CHECK_INTERVAL_MS = 2_000
/** Each stranger holds a file; engines, workers and the database need some too. */
const SHARE_OF_OPEN_FILES = 0.25

export function createUnauthenticatedConnections(): UnauthenticatedConnections {
  const limit = Math.min(LIMITS.strangers, Math.floor(openFilesLimit() * SHARE_OF_OPEN_FILES))
  return new UnauthenticatedConnections({
    limit,
    limitPerAddress: Math.min(LIMITS.strangersPerAddress, limit),
  })
}

/**
 * All other upgrades are requests like any other: Java's client asks each server for HTTP/2 this way, and gets its answer in
 * HTTP/1.1 instead of none.
 */
function isWorkerSocket({ method, url = '', headers }: IncomingMessage): boolean {
  return method === 'GET' && headers.upgrade?.toLowerCase() === 'websocket' && /\/ws\/worker(\?|$)/.test(url)
}

interface WebServerOptions {
  /** Absent: plain HTTP. */
  certificate?: Certificate | undefined
  strangers: UnauthenticatedConnections
}

export function createWebServer(
  handler: RequestListener,
  { certificate, strangers }: WebServerOptions,
): Server | HttpsServer {
  const limits = {
    maxHeaderSize: LIMITS.headerBytes,
    headersTimeout: LIMITS.headersMs,
    requestTimeout: LIMITS.requestMs,
    keepAliveTimeout: LIMITS.keepAliveMs,
    connectionsCheckingInterval: CHECK_INTERVAL_MS,
    shouldUpgradeCallback: isWorkerSocket,
  }
  const server = certificate
    ? createHttpsServer({ ...limits, ...certificate, handshakeTimeout: LIMITS.tlsHandshakeMs }, handler)
    : createHttpServer(limits, handler)
  return server.on('connection', (socket) => strangers.admit(socket))
}

/**
 * How many files and sockets the operating system lets this process have open. Node raises the limit as far as it may
 * when it starts. @returns Infinity where the system does not tell (it does on Linux)
 */
function openFilesLimit(): number {
  try {
    const [, limit] = /^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return limit === undefined ? Number.POSITIVE_INFINITY : Number(limit)
  } catch {
    return Number.POSITIVE_INFINITY
  }
}
