/** The HTTP server: the application on its sockets. */
import { Server as HttpsServer } from 'node:https'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import type { FastifyServerFactory } from 'fastify'
import type { RouteScope } from './access/guard.ts'
import { type App, type AppOptions, type AppSockets, buildApp, type CommonAppOptions } from './app.ts'
import { formatBaseUrl } from './transport/base-url.ts'
import {
  type Certificate,
  type CertificateFiles,
  readCertificate,
  watchCertificate,
} from './transport/certificate.ts'
import type { UnauthenticatedConnections } from './transport/unauthenticated-connections.ts'
import { createUnauthenticatedConnections, createWebServer } from './transport/web-server.ts'

export interface ListenOptions extends CommonAppOptions {
  host: string
  /** 0: any free port. */
  port: number
  /** Absent: plain HTTP. */
  certificateFiles?: CertificateFiles
  /** The interval at which the files are read. Default: 10 s. */
  certificateIntervalMs?: number
}

export interface ServerOptions extends AppOptions, Omit<ListenOptions, keyof CommonAppOptions> {}

export interface HttpServer {
  /** The URL that it listens at, with the actual port and the base path. */
  readonly url: string
  /** All routes, and the access that each requires. */
  readonly routes: readonly RouteScope[]
  /** Completes the responses in progress, then closes. */
  close(): Promise<void>
}

/**
 * Starts the server of a proxy. @throws ProxyError `config_invalid` for a certificate; the operating system's error if
 * it cannot listen
 */
export function listen(options: ServerOptions): Promise<HttpServer> {
  return listenWith(options, (sockets) => buildApp(options, sockets))
}

/** Starts a server like {@link listen}, with any application. */
export async function listenWith(
  options: ListenOptions,
  build: (sockets: AppSockets) => Promise<App>,
): Promise<HttpServer> {
  const { host, port, certificateFiles, basePath = '' } = options
  const certificate = certificateFiles && readCertificate(certificateFiles)
  const unauthenticated = createUnauthenticatedConnections()
  // `localhost` may resolve to two addresses, for which Fastify creates two servers.
  const servers: ReturnType<typeof createWebServer>[] = []
  const serverFactory: FastifyServerFactory = (handler) => {
    const server = createWebServer(handler, { certificate, unauthenticated })
    servers.push(server)
    return server
  }
  const app = await build({ serverFactory, unauthenticated })
  if (certificateFiles && certificate)
    renewCertificate(app, servers, { ...options, certificateFiles, certificate })
  // A port that another proxy has reserved is in use, and listening without sharing it fails with that error.
  const reserved = SHARES_PORTS && port !== 0 ? await reservePort(port) : undefined
  const shared = SHARES_PORTS && (port === 0 || reserved !== undefined)
  try {
    await app.fastify.listen({ host, port, ...(shared && SHARED_PORT) })
  } catch (error) {
    reserved?.close()
    throw error
  }
  const handles = shared ? (await Promise.all(servers.map(addHandles))).flat() : []
  const bound = app.fastify.server.address() as AddressInfo
  const reservation = reserved ?? (shared ? await reservePort(bound.port) : undefined)
  return {
    url: formatBaseUrl({
      host: bound.address,
      port: bound.port,
      secure: certificate !== undefined,
      basePath,
    }),
    routes: app.routes,
    close: async () => {
      await closeServer(app, handles, unauthenticated)
      reservation?.close()
    },
  }
}

interface Renewal extends Pick<ListenOptions, 'logger' | 'certificateIntervalMs'> {
  certificateFiles: CertificateFiles
  certificate: Certificate
}

function renewCertificate({ fastify }: App, servers: readonly object[], options: Renewal): void {
  const { certificateFiles: files, certificate: current, certificateIntervalMs: intervalMs, logger } = options
  const stop = watchCertificate({
    files,
    current,
    logger,
    onRenewed: (certificate) => {
      for (const server of servers) if (server instanceof HttpsServer) server.setSecureContext(certificate)
    },
    intervalMs,
  })
  fastify.addHook('onClose', async () => stop())
}

/** The time limit of responses in progress when the server closes. */
const CLOSE_MS = 5_000

/** Idle connections do not delay closing, only responses in progress do. */
async function closeServer(
  { fastify, openResponses }: App,
  handles: readonly Server[],
  unauthenticated: UnauthenticatedConnections,
): Promise<void> {
  const giveUpAtMs = performance.now() + CLOSE_MS
  const poll = setInterval(() => {
    if (openResponses.size > 0 && performance.now() < giveUpAtMs) return
    fastify.server.closeAllConnections()
    unauthenticated.closeAll()
  }, 10)
  await Promise.all([fastify.close(), closeHandles(handles)]).finally(() => clearInterval(poll))
}

/** Accepting many connections per iteration of the event loop, because agents are new processes that start together. */

/**
 * A listening handle accepts one connection per iteration of the event loop (libuv, `uv__server_io`), and iterations
 * are long under load: of 200 agents that start at once the last would wait for 200 iterations. This number of handles
 * on the port accepts 16 per iteration.
 */
const HANDLES = 16

/** Lets several handles share one port; the kernel distributes the connections. Only Linux distributes them evenly. */
const SHARED_PORT = { reusePort: true } as const

/** Whether handles share a port on this platform. */
const SHARES_PORTS = process.platform === 'linux'

/**
 * Reserves a port for this process. A port that handles share could be shared with a second proxy as well, and each
 * would get half of the requests. An abstract socket name, which exists as long as the process, prevents this.
 * @returns undefined if it is already reserved, or cannot be: the port must not be shared then
 */
async function reservePort(port: number): Promise<Server | undefined> {
  // Any user of the machine may connect to this name; such a connection must not occupy a file descriptor.
  const name = createServer((socket) => socket.destroy()).unref()
  return await waitUntilListening(name, { path: `\0llm-proxy/port/${port}` }).catch(() => undefined)
}

/** Opens further handles on this server's address, whose connections it serves. @returns the handles */
async function addHandles(server: Server): Promise<Server[]> {
  const address = server.address()
  if (address === null || typeof address === 'string') return []
  const { address: host, port } = address
  const handOver = (socket: Socket) => {
    // Errors of a request are emitted by the server of its socket.
    Object.assign(socket, { server })
    server.emit('connection', socket)
  }
  // The options of Node's HTTP servers.
  const options = { allowHalfOpen: true, noDelay: true }
  const handles = Array.from({ length: HANDLES - 1 }, () => createServer(options, handOver))
  return await Promise.all(
    handles.map((handle) => waitUntilListening(handle, { host, port, ...SHARED_PORT })),
  )
}

/** Resolves once the handles accept nothing more and the connections that they accepted are closed. */
async function closeHandles(handles: readonly Server[]): Promise<void> {
  await Promise.all(handles.map((handle) => new Promise((resolve) => handle.close(resolve))))
}

function waitUntilListening(server: Server, where: object): Promise<Server> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(where, () => {
      server.off('error', reject)
      resolve(server)
    })
  })
}
