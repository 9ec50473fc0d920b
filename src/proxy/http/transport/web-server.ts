/** The sockets below Fastify, plain or with TLS, and the limits on unauthenticated callers. */
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

/** Limits on size and time, beyond which a connection is closed; `docs/security.md` lists the same figures. */
export const LIMITS = {
  /** The size of all headers of a request. */
  headerBytes: 16 * 1024,
  /** The time from the first byte, or the connection, to the end of the headers. */
  headersMs: 15_000,
  /** The time from the first byte to the end of the body. It does not limit responses, streams and long polls. */
  requestMs: 120_000,
  tlsHandshakeMs: 10_000,
  /**
   * Longer than the idle limits of common load balancers (60 s), so that they and not the proxy close idle connections.
   */
  keepAliveMs: 75_000,
  unauthenticated: 4_096,
  unauthenticatedPerAddress: 2_048,
} as const

/** The interval at which Node checks the time limits: short compared with the limits, which are 10 s and longer. */
const CONNECTION_CHECK_INTERVAL_MS = 2_000
/**
 * The share of the file descriptors that unauthenticated connections may use; engines, workers and the database need
 * some, too.
 */
const SHARE_OF_OPEN_FILES = 0.25

export function createUnauthenticatedConnections(): UnauthenticatedConnections {
  const limit = Math.min(LIMITS.unauthenticated, Math.floor(getOpenFilesLimit() * SHARE_OF_OPEN_FILES))
  return new UnauthenticatedConnections({
    limit,
    limitPerAddress: Math.min(LIMITS.unauthenticatedPerAddress, limit),
  })
}

/**
 * Returns whether a request opens the worker socket. All other upgrades are ordinary requests: Java's client asks each
 * server for HTTP/2 this way, and receives its response in HTTP/1.1 instead of none.
 */
function isWorkerSocket({ method, url = '', headers }: IncomingMessage): boolean {
  return method === 'GET' && headers.upgrade?.toLowerCase() === 'websocket' && /\/ws\/worker(\?|$)/.test(url)
}

interface WebServerOptions {
  /** Absent: plain HTTP. */
  certificate?: Certificate | undefined
  unauthenticated: UnauthenticatedConnections
}

export function createWebServer(
  handler: RequestListener,
  { certificate, unauthenticated }: WebServerOptions,
): Server | HttpsServer {
  const limits = {
    maxHeaderSize: LIMITS.headerBytes,
    headersTimeout: LIMITS.headersMs,
    requestTimeout: LIMITS.requestMs,
    keepAliveTimeout: LIMITS.keepAliveMs,
    connectionsCheckingInterval: CONNECTION_CHECK_INTERVAL_MS,
    shouldUpgradeCallback: isWorkerSocket,
  }
  const server = certificate
    ? createHttpsServer({ ...limits, ...certificate, handshakeTimeout: LIMITS.tlsHandshakeMs }, handler)
    : createHttpServer(limits, handler)
  return server.on('connection', (socket) => unauthenticated.admit(socket))
}

/**
 * Returns how many files and sockets the operating system lets this process open. Node raises the limit as far as it
 * may when it starts. @returns Infinity if the system does not report it (Linux does)
 */
function getOpenFilesLimit(): number {
  try {
    const [, limit] = /^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return limit === undefined ? Number.POSITIVE_INFINITY : Number(limit)
  } catch {
    return Number.POSITIVE_INFINITY
  }
}
