/** The HTTP server: the application on its sockets. */
import { Server as HttpsServer } from 'node:https'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import type { FastifyServerFactory } from 'fastify'
import type { RouteScope } from './access/guard.ts'
import { type App, type AppBase, type AppOptions, type AppSockets, buildApp } from './app.ts'
import { baseUrl } from './transport/base-url.ts'
import {
  type Certificate,
  type CertificateFiles,
  readCertificate,
  watchCertificate,
} from './transport/certificate.ts'
import type { UnauthenticatedConnections } from './transport/unauthenticated-connections.ts'
import { createUnauthenticatedConnections, createWebServer } from './transport/web-server.ts'

export interface ListenOptions extends AppBase {
  host: string
  /** 0: any free one. */
  port: number
  /** Absent: plain HTTP. */
  certificateFiles?: CertificateFiles
  /** How often they are read. Default: 10 s. */
  certificateIntervalMs?: number
}

export interface ServerOptions extends AppOptions, Omit<ListenOptions, keyof AppBase> {}

export interface HttpServer {
  /** Where it listens, with the port that it got and the base path. */
  readonly url: string
  /** Every route that there is, and what it asks of its callers. */
  readonly routes: readonly RouteScope[]
  /** Lets the answers that are on their way go out, then closes. */
  close(): Promise<void>
}

/** @throws ProxyError `config_invalid` for a certificate; the operating system's error when it cannot listen */
export function listen(options: ServerOptions): Promise<HttpServer> {
  return listenWith(options, (sockets) => buildApp(options, sockets))
}

/** As {@link listen}, with whatever application. */
export async function listenWith(
  options: ListenOptions,
  build: (sockets: AppSockets) => Promise<App>,
): Promise<HttpServer> {
  const { host, port, certificateFiles, basePath = '' } = options
  const certificate = certificateFiles && readCertificate(certificateFiles)
  const strangers = createUnauthenticatedConnections()
  // `localhost` may be two addresses, and then Fastify makes two servers.
  const servers: ReturnType<typeof createWebServer>[] = []
  const serverFactory: FastifyServerFactory = (handler) => {
    const server = createWebServer(handler, { certificate, strangers })
    servers.push(server)
    return server
  }
  const app = await build({ serverFactory, strangers })
  if (certificateFiles && certificate)
    renewCertificate(app, servers, { ...options, certificateFiles, certificate })
  // A port that somebody holds is in use, and listening without sharing it says so.
  const held = SHARES_PORTS && port !== 0 ? await holdPort(port) : undefined
  const shared = SHARES_PORTS && (port === 0 || held !== undefined)
  try {
    await app.fastify.listen({ host, port, ...(shared && SHARED_PORT) })
  } catch (error) {
    held?.close()
    throw error
  }
  const handles = shared ? (await Promise.all(servers.map(addHandles))).flat() : []
  const bound = app.fastify.server.address() as AddressInfo
  const hold = held ?? (shared ? await holdPort(bound.port) : undefined)
  return {
    url: baseUrl({ host: bound.address, port: bound.port, secure: certificate !== undefined, basePath }),
    routes: app.routes,
    close: async () => {
      await closeServer(app, handles, strangers)
      hold?.close()
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
    renewed: (certificate) => {
      for (const server of servers) if (server instanceof HttpsServer) server.setSecureContext(certificate)
    },
    intervalMs,
  })
  fastify.addHook('onClose', async () => stop())
}

/** How long an answer may take on its last way out. */
const CLOSE_MS = 5_000

/** Connections that wait for a next request, or for a first one, hold nothing up: only answers on their way do. */
async function closeServer(
  { fastify, answering }: App,
  handles: readonly Server[],
  strangers: UnauthenticatedConnections,
): Promise<void> {
  const giveUpAtMs = performance.now() + CLOSE_MS
  const poll = setInterval(() => {
    if (answering.size > 0 && performance.now() < giveUpAtMs) return
    fastify.server.closeAllConnections()
    strangers.closeAll()
  }, 10)
  await Promise.all([fastify.close(), closeHandles(handles)]).finally(() => clearInterval(poll))
}

/** Accepts many connections in each turn of the event loop, for agents are new processes and begin together. */

/**
 * A listening handle gives one connection in each turn (libuv, `uv__server_io`), and turns are long under load: of 200 agents
 * that begin at once the last would wait for 200 of them. With so many handles on the port it is 16 in each turn.
 */
const HANDLES = 16

/** How several handles can have one port: the kernel deals out what comes. Of Linux alone, as far as it deals evenly. */
const SHARED_PORT = { reusePort: true } as const

/** Whether a port is to be shared among handles here. */
const SHARES_PORTS = process.platform === 'linux'

/**
 * Keeps a port for this process. A port that is shared among handles could be shared with a second proxy just as well, and
 * each would get half of the calls. A name that is held as long as the process lives tells them apart.
 * @returns undefined where it is held already, or cannot be: then the port must not be shared
 */
async function holdPort(port: number): Promise<Server | undefined> {
  // Whoever connects to it, as any user of the machine may, gets none of the process's files.
  const name = createServer((socket) => socket.destroy()).unref()
  return await started(name, { path: `\0llm-proxy/port/${port}` }).catch(() => undefined)
}

/** Listens where this server does with further handles, and gives it what they accept. @returns them */
async function addHandles(server: Server): Promise<Server[]> {
  const address = server.address()
  if (address === null || typeof address === 'string') return []
  const { address: host, port } = address
  const handOver = (socket: Socket) => {
    // Errors of a request are events of the server of its socket.
    Object.assign(socket, { server })
    server.emit('connection', socket)
  }
  // As servers of HTTP have their own.
  const options = { allowHalfOpen: true, noDelay: true }
  const handles = Array.from({ length: HANDLES - 1 }, () => createServer(options, handOver))
  return await Promise.all(handles.map((handle) => started(handle, { host, port, ...SHARED_PORT })))
}

/** Resolves once they take nothing more, and what they had accepted has been closed. */
async function closeHandles(handles: readonly Server[]): Promise<void> {
  await Promise.all(handles.map((handle) => new Promise((resolve) => handle.close(resolve))))
}

function started(server: Server, where: object): Promise<Server> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(where, () => {
      server.off('error', reject)
      resolve(server)
    })
  })
}
