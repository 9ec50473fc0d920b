/** Starts the HTTP server: opens the sockets on which the application listens. */
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
  /** The interval at which the certificate files are polled. Default: 10 s. */
  certificateIntervalMs?: number
}

export interface ServerOptions extends AppOptions, Omit<ListenOptions, keyof CommonAppOptions> {}

export interface HttpServer {
  /** The URL at which it listens, with the actual port and the base path. */
  readonly url: string
  /** All routes, with the access that each requires. */
  readonly routes: readonly RouteScope[]
  /**
   * Accepts no more requests, completes the responses in progress, then closes.
   * @param graceMs the time that these responses have, if it is longer than the default of 5 s
   * @returns whether all of them completed; responses of routes that are not `awaitedOnClose` are not counted
   */
  close(graceMs?: number): Promise<boolean>
}

/**
 * Starts the server of a proxy.
 * @throws ProxyError `config_invalid` for an invalid certificate; the operating system's error if it cannot listen
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
  const handles: Server[] = []
  let reservation: Server | undefined
  const close = async (graceMs?: number) => {
    const areComplete = await closeServer(app, { handles, unauthenticated, graceMs })
    reservation?.close()
    return areComplete
  }
  try {
    // If another proxy has reserved the port, this one does not share it, so that listening fails with EADDRINUSE.
    reservation = SHARES_PORTS && port !== 0 ? await reservePort(port) : undefined
    const isShared = SHARES_PORTS && (port === 0 || reservation !== undefined)
    await app.fastify.listen({ host, port, ...(isShared && SHARED_PORT) })
    if (isShared) await addHandles(servers, handles)
    const bound = app.fastify.server.address() as AddressInfo
    if (isShared) reservation ??= await reservePort(bound.port)
    const secure = certificate !== undefined
    return {
      url: formatBaseUrl({ host: bound.address, port: bound.port, secure, basePath }),
      routes: app.routes,
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}

/** The certificate in use, and where to read a new one. */
interface RenewalOptions extends Pick<ListenOptions, 'logger' | 'certificateIntervalMs'> {
  certificateFiles: CertificateFiles
  certificate: Certificate
}

function renewCertificate({ fastify }: App, servers: readonly object[], options: RenewalOptions): void {
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

/** The time that responses in progress have to complete when the server closes, unless the caller grants more. */
const CLOSE_MS = 5_000

interface CloseOptions {
  handles: readonly Server[]
  unauthenticated: UnauthenticatedConnections
  graceMs: number | undefined
}

/** Closes the server, as described at {@link HttpServer.close}. Idle connections do not delay this. */
async function closeServer(
  { fastify, openResponses }: App,
  { handles, unauthenticated, graceMs = 0 }: CloseOptions,
): Promise<boolean> {
  const startedAtMs = performance.now()
  let areComplete = true
  const poll = setInterval(() => {
    const tookMs = performance.now() - startedAtMs
    const areAwaited = openResponses.values().some((isAwaited) => isAwaited())
    if (tookMs < CLOSE_MS ? openResponses.size > 0 : tookMs < graceMs && areAwaited) return
    areComplete &&= !areAwaited
    fastify.server.closeAllConnections()
    unauthenticated.closeAll()
  }, 10)
  await Promise.all([fastify.close(), closeHandles(handles)]).finally(() => clearInterval(poll))
  return areComplete
}

/**
 * The number of listening handles on the port. Each accepts one connection per iteration of the event loop (libuv,
 * `uv__server_io`), and iterations are long under load: if 200 agents start together, the last would wait for 200
 * iterations; with 16 handles it waits for 13.
 */
const HANDLES = 16

/** Lets several handles share one port. The kernel distributes the connections, evenly only on Linux. */
const SHARED_PORT = { reusePort: true } as const

/** Whether several handles listen on the port. */
const SHARES_PORTS = process.platform === 'linux'

/**
 * Reserves a port for this process by listening on an abstract socket name, which disappears with the process.
 * Otherwise a second proxy could also share the port, and would receive half of the requests.
 * @returns undefined if the port is reserved already, or cannot be reserved; it must not be shared then
 */
async function reservePort(port: number): Promise<Server | undefined> {
  // Any user of the machine may connect to this name; such a connection must not occupy a file descriptor.
  const name = createServer((socket) => socket.destroy()).unref()
  return await waitUntilListening(name, { path: `\0llm-proxy/port/${port}` }).catch(() => undefined)
}

/**
 * Opens further handles on the addresses of the servers, which pass their connections to the servers.
 * @param handles receives the handles, also those that cannot listen
 * @throws the operating system's error if one of them cannot listen
 */
async function addHandles(servers: readonly Server[], handles: Server[]): Promise<void> {
  const listening = servers.flatMap((server) => {
    const { address: host, port } = server.address() as AddressInfo
    const passToServer = (socket: Socket) => {
      // Node emits the errors of a request on the server of its socket.
      Object.assign(socket, { server })
      server.emit('connection', socket)
    }
    // The socket options that Node's HTTP servers use.
    const options = { allowHalfOpen: true, noDelay: true }
    const added = Array.from({ length: HANDLES - 1 }, () => createServer(options, passToServer))
    handles.push(...added)
    return added.map((handle) => waitUntilListening(handle, { host, port, ...SHARED_PORT }))
  })
  // A handle can be closed only after its attempt to listen has ended.
  await Promise.allSettled(listening)
  await Promise.all(listening)
}

/** Stops the handles. Resolves once all connections that they accepted are closed. */
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
