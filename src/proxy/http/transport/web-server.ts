/** Creates the HTTP or HTTPS server below Fastify, with its limits on size, time and unauthenticated connections. */
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

/** Limits beyond which a connection is closed; `docs/security.md` lists the same figures. */
export const LIMITS = {
  /** The maximum size of all headers of a request. */
  headerBytes: 16 * 1024,
  /** The maximum time from the first byte of a request, or from the connection, to the end of the headers. */
  headersMs: 15_000,
  /** The maximum time from the first byte to the end of the body. Responses, streams and long polls are not limited. */
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
 * The share of the file descriptors that unauthenticated connections may use. Engines, workers and the database need
 * the others.
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
 * Returns whether a request opens the worker socket. All other upgrades are treated as ordinary requests: Java's HTTP
 * client offers each server an upgrade to HTTP/2, and must receive a response in HTTP/1.1.
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
 * Returns the maximum number of open files and sockets of this process, which Node raises to the hard limit when it
 * starts; Infinity if the system does not report it (Linux does).
 */
function getOpenFilesLimit(): number {
  try {
    const [, limit] = /^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return limit === undefined ? Number.POSITIVE_INFINITY : Number(limit)
  } catch {
    return Number.POSITIVE_INFINITY
  }
}
