/**
 * The door of the HTTP server. Every route has a scope, or the server does not start; every request is judged by it
 * when its headers are there, before a byte of its body is read.
 */
import type { IncomingMessage } from 'node:http'
import { isIP } from 'node:net'
import type {
  FastifyInstance,
  FastifyPluginAsync,
  FastifyPluginCallback,
  FastifyPluginOptions,
  FastifyRequest,
  onResponseHookHandler,
} from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import { type DiscardLimits, discardBody } from '../transport/discard-body.ts'
import type { UnauthenticatedConnections } from '../transport/unauthenticated-connections.ts'
import { type Accounts, type AccountUsage, getAccountName } from './accounts.ts'
import type { Keyring } from './keyring.ts'
import { type Caller, checkScope, type Scope, unauthorized } from './scopes.ts'

declare module 'fastify' {
  interface FastifyInstance {
    /** The scope of the routes that are added here. */
    scope: Scope | undefined
  }
  interface FastifyContextConfig {
    scope?: Scope
    /** Asked with a run's key, the route answers for the sessions of this run alone. */
    knowsRuns?: boolean
  }
  interface FastifyRequest {
    caller: Caller
    /** What it has of its caller's account. */
    charge: AccountUsage
  }
}

/** One method of one path, and what it asks of its callers. */
export interface RouteScope {
  method: string
  path: string
  scope: Scope
  knowsRuns: boolean
}

/** The plugin, with this scope for all its routes. */
export function inScope<Options extends FastifyPluginOptions>(
  scope: Scope,
  plugin: FastifyPluginCallback<Options> | FastifyPluginAsync<Options>,
): FastifyPluginAsync<Options> {
  return async (app, options) => {
    app.decorate('scope', scope)
    await app.register(plugin as FastifyPluginAsync<Options>, options)
  }
}

/** Workers are known once they have said hello. */
const HAVE_SHOWN_A_KEY: ReadonlySet<Caller['is']> = new Set([
  'admin',
  'run',
  'agent',
  'view',
  'metrics',
  'node',
])

interface GuardOptions {
  keyring: Keyring
  strangers: UnauthenticatedConnections
  accounts: Accounts
  logger: Logger
  /** The server can be reached from its own machine only, and so from pages that are looked at there. */
  loopbackOnly: boolean
  /** Returns the lease of the node that has signed the request, if one has. Default: there are no other nodes. */
  verifyNode?: ((request: FastifyRequest) => number | undefined) | undefined
}

/** A stranger that does not know better may send a prompt of this size, and then reads why it was refused. */
export const REJECTED_BODY: DiscardLimits = { bytes: 256 * 1024, ms: 2_000 }

/**
 * Puts the guard before everything that is registered after it.
 * @returns the routes, complete when the server is ready
 */
export function guardRoutes(app: FastifyInstance, options: GuardOptions): readonly RouteScope[] {
  const { keyring, strangers, accounts, logger } = options
  const routes = collectScopes(app)
  const refusals = new RejectionLog(logger)
  app.decorateRequest('caller')
  app.decorateRequest('charge')
  app.addHook('onRequest', (request, reply, done) => {
    const { scope } = request.routeOptions.config
    const lease = scope === 'node' ? options.verifyNode?.(request) : undefined
    const caller: Caller = lease === undefined ? keyring.identify(request.headers) : { is: 'node', lease }
    request.caller = caller
    request.charge = accounts.charge(getAccountName(request), caller.is === 'agent', request.raw, reply.raw)
    const refusal = checkRequest(request, options)
    if (refusal) {
      if (request.caller.is === 'stranger') refusals.add(refusal, request.ip)
      discardBody(request.raw, REJECTED_BODY)
    } else if (HAVE_SHOWN_A_KEY.has(request.caller.is)) {
      strangers.know(request.raw.socket)
    }
    done(refusal)
  })
  // Without keys, whoever has sent a whole request has shown enough; a worker has when it has said hello.
  app.addHook('preHandler', ({ caller, raw }, _reply, done) => {
    if (caller.is === 'anyone' && !asksForUpgrade(raw)) strangers.know(raw.socket)
    done()
  })
  app.addHook('onResponse', endAnsweredUpgrade)
  return routes
}

/** Gives each route its scope. @throws Error for a route that has none */
function collectScopes(app: FastifyInstance): readonly RouteScope[] {
  const routes: RouteScope[] = []
  app.decorate('scope', undefined)
  app.addHook('onRoute', function addScope(this: FastifyInstance, route) {
    const scope = route.config?.scope ?? this.scope
    const methods = [route.method].flat()
    if (scope === undefined) {
      throw new Error(`${methods} ${route.url} has no scope: register its plugin as inScope('admin', ...)`)
    }
    route.config = { ...route.config, scope }
    const knowsRuns = route.config.knowsRuns === true
    for (const method of methods) routes.push({ method, path: route.url, scope, knowsRuns })
  })
  return routes
}

function checkRequest(request: FastifyRequest, options: GuardOptions): ProxyError | undefined {
  const { caller, params, routeOptions } = request
  const { scope, knowsRuns } = routeOptions.config
  const refusal = checkPage(request, scope, options)
  if (refusal) return refusal
  if (scope !== undefined)
    return checkScope(scope, caller, { sessionId: (params as { sessionId?: string }).sessionId, knowsRuns })
  // A path that is none. A stranger is not told so: its body would have to be read first.
  return caller.is === 'stranger' ? unauthorized('a key', caller.hasKey) : undefined
}

function checkPage(
  request: FastifyRequest,
  scope: Scope | undefined,
  { keyring, loopbackOnly }: GuardOptions,
): ProxyError | undefined {
  if (!keyring.isOpen && scope !== 'worker') return undefined
  return checkOrigin(request) ?? (keyring.isOpen && loopbackOnly ? checkHost(request) : undefined)
}

/** Node has let go of a socket that asked for an upgrade: one that got an answer instead would stay, read by nobody. */
const endAnsweredUpgrade: onResponseHookHandler = ({ raw }, _reply, done) => {
  if (asksForUpgrade(raw)) raw.socket.destroySoon()
  done()
}

/** Node sets `upgrade`; the types do not know. */
function asksForUpgrade(raw: IncomingMessage & { upgrade?: boolean }): boolean {
  return raw.upgrade === true
}

/**
 * Pages in a browser that reach for the proxy of whoever looks at them. A browser tells what page a request comes from
 * (`Origin`), and a page that had its own name point here sends that name (`Host`, "DNS rebinding"). No page can send a
 * key that it does not have, so this is for proxies without keys, and for the worker socket, which is for no page at all.
 */

/** @returns why the request is refused. Proxies of other programs in between must leave `Host` as it was, or be trusted */
function checkOrigin({ headers, host }: FastifyRequest): ProxyError | undefined {
  const { origin } = headers
  if (origin === undefined || parseHost(origin) === host.toLowerCase()) return undefined
  return new ProxyError('forbidden', 'This request comes from a web page of another origin')
}

/** @returns why the request is refused: `Host` is a name that somebody else may own */
function checkHost({ hostname }: FastifyRequest): ProxyError | undefined {
  if (isIP(hostname.replace(/^\[|\]$/g, '')) || !isPublicName(hostname.toLowerCase())) return undefined
  const message = `'${hostname}' is not a name of this proxy, which listens on the loopback only: use its address, or give it keys`
  return new ProxyError('forbidden', message)
}

/** Names without a dot, and those under suffixes that nobody can register. */
function isPublicName(name: string): boolean {
  return name.includes('.') && !/\.(localhost|internal|local|test|home\.arpa)\.?$/.test(name)
}

/** `null`, which sandboxed pages send, is no host. */
function parseHost(origin: string): string | undefined {
  return URL.parse(origin)?.host
}

/** Strangers must not fill the disk: they get one line for each stretch of this length. */
const STRETCH_MS = 1_000

/** Tells of strangers that were refused: of the first at once, then how many there were since the line before. */
class RejectionLog {
  readonly #logger: Logger
  #refusedSince = 0
  #nextLineAtMs = 0

  constructor(logger: Logger) {
    this.#logger = logger
  }

  /** @param address of the caller, or of the trusted proxy's client */
  add({ code, status, message }: ProxyError, address: string): void {
    this.#refusedSince += 1
    const nowMs = performance.now()
    if (nowMs < this.#nextLineAtMs) return
    this.#nextLineAtMs = nowMs + STRETCH_MS
    this.#logger.info({ code, status, address, refused: this.#refusedSince }, message)
    this.#refusedSince = 0
  }
}
