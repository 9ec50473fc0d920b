/**
 * Access control of the HTTP server. Every route has a scope, or the server does not start; every request is checked
 * against it when its headers have arrived, before a byte of its body is read.
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
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import { type DiscardLimits, discardBody } from '../transport/discard-body.ts'
import type { UnauthenticatedConnections } from '../transport/unauthenticated-connections.ts'
import { type Accounts, type AccountUsage, getAccountName } from './accounts.ts'
import type { Keyring } from './keyring.ts'
import { type Caller, checkScope, createUnauthorizedError, type Scope } from './scopes.ts'

declare module 'fastify' {
  interface FastifyInstance {
    /** The scope of the routes that are registered here. */
    scope: Scope | undefined
  }
  interface FastifyContextConfig {
    scope?: Scope
    /** Whether the route accepts a run's key and restricts itself to the sessions of this run. */
    knowsRuns?: boolean
  }
  interface FastifyRequest {
    caller: Caller
    /** The id of the session that the request created, for the audit log; the URL does not contain it. */
    createdSessionId?: string
    /** The share of the request in its caller's account. */
    charge: AccountUsage
  }
}

/** One method of one path, and the access that it requires. */
export interface RouteScope {
  method: string
  path: string
  scope: Scope
  knowsRuns: boolean
}

/** Returns the plugin with this scope for all its routes. */
export function withScope<Options extends FastifyPluginOptions>(
  scope: Scope,
  plugin: FastifyPluginCallback<Options> | FastifyPluginAsync<Options>,
): FastifyPluginAsync<Options> {
  return async (app, options) => {
    app.decorate('scope', scope)
    await app.register(plugin as FastifyPluginAsync<Options>, options)
  }
}

/** Callers that have authenticated. Workers authenticate with their `hello`. */
const AUTHENTICATED_CALLERS: ReadonlySet<Caller['is']> = new Set([
  'admin',
  'run',
  'agent',
  'view',
  'metrics',
  'node',
])

interface GuardOptions {
  keyring: Keyring
  unauthenticated: UnauthenticatedConnections
  accounts: Accounts
  logger: Logger
  /** Whether the server listens on the loopback interface only, where web pages in a local browser can reach it. */
  loopbackOnly: boolean
  /** Returns the lease of the node that has signed the request, if one has. Default: there are no other nodes. */
  verifyNode?: ((request: FastifyRequest) => number | undefined) | undefined
}

/**
 * An unauthenticated client may send a prompt of this size by mistake, and must be able to read why it was rejected.
 */
export const REJECTED_BODY: DiscardLimits = { bytes: 256 * 1024, ms: 2_000 }

/**
 * Registers the access check for everything that is registered after it.
 * @returns the routes, complete when the server is ready
 */
export function guardRoutes(app: FastifyInstance, options: GuardOptions): readonly RouteScope[] {
  const { keyring, unauthenticated, accounts, logger } = options
  const routes = collectScopes(app)
  const rejections = new RejectionLog(logger)
  app.decorateRequest('caller')
  app.decorateRequest('createdSessionId')
  app.decorateRequest('charge')
  app.addHook('onRequest', (request, reply, done) => {
    const { scope } = request.routeOptions.config
    const lease = scope === 'node' ? options.verifyNode?.(request) : undefined
    const caller: Caller = lease === undefined ? keyring.identify(request.headers) : { is: 'node', lease }
    request.caller = caller
    request.charge = accounts.charge(getAccountName(request), caller.is === 'agent', request.raw, reply.raw)
    const refusal = checkRequest(request, options)
    if (refusal) {
      if (request.caller.is === 'stranger') rejections.add(refusal, request.ip)
      discardBody(request.raw, REJECTED_BODY)
    } else if (AUTHENTICATED_CALLERS.has(request.caller.is)) {
      unauthenticated.markAuthenticated(request.raw.socket)
    }
    done(refusal)
  })
  // Without keys, a complete request suffices as authentication; a worker authenticates with its `hello`.
  app.addHook('preHandler', ({ caller, raw }, _reply, done) => {
    if (caller.is === 'anyone' && !requestsUpgrade(raw)) unauthenticated.markAuthenticated(raw.socket)
    done()
  })
  app.addHook('onResponse', endAnsweredUpgrade)
  return routes
}

/** Assigns each route its scope. @throws Error for a route without one */
function collectScopes(app: FastifyInstance): readonly RouteScope[] {
  const routes: RouteScope[] = []
  app.decorate('scope', undefined)
  app.addHook('onRoute', function addScope(this: FastifyInstance, route) {
    const scope = route.config?.scope ?? this.scope
    const methods = [route.method].flat()
    if (scope === undefined) {
      throw new Error(`${methods} ${route.url} has no scope: register its plugin as withScope('admin', ...)`)
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
  // There is no such route. An unauthenticated caller gets 401 instead: for a 404 its body would have to be read.
  return caller.is === 'stranger' ? createUnauthorizedError('a key', caller.hasKey) : undefined
}

function checkPage(
  request: FastifyRequest,
  scope: Scope | undefined,
  { keyring, loopbackOnly }: GuardOptions,
): ProxyError | undefined {
  if (!keyring.isOpen && scope !== 'worker') return undefined
  return checkOrigin(request) ?? (keyring.isOpen && loopbackOnly ? checkHost(request) : undefined)
}

/**
 * Node has detached the parser from a socket that asked for an upgrade: after another response nothing would read it.
 */
const endAnsweredUpgrade: onResponseHookHandler = ({ raw }, _reply, done) => {
  if (requestsUpgrade(raw)) raw.socket.destroySoon()
  done()
}

/** Node sets `upgrade`; its types lack the property. */
function requestsUpgrade(raw: IncomingMessage & { upgrade?: boolean }): boolean {
  return raw.upgrade === true
}

/**
 * Protection from web pages that reach the proxy through the browser of a user. A browser reports the page of a request
 * (`Origin`), and a page that has its own name resolve to this address sends that name (`Host`, "DNS rebinding"). A
 * page cannot send a key that it does not have, so the check is for proxies without keys, and for the worker socket,
 * which is for no page at all.
 */

/** @returns why the request is rejected. Reverse proxies in front must preserve `Host`, or be trusted */
function checkOrigin({ headers, host }: FastifyRequest): ProxyError | undefined {
  const { origin } = headers
  if (origin === undefined || parseHost(origin) === host.toLowerCase()) return undefined
  return new ProxyError('forbidden', 'This request comes from a web page of another origin')
}

/** @returns why the request is rejected: `Host` is a name that another party may own */
function checkHost({ hostname }: FastifyRequest): ProxyError | undefined {
  if (isIP(hostname.replace(/^\[|\]$/g, '')) || !isPublicName(hostname.toLowerCase())) return undefined
  const message = `'${hostname}' is not a name of this proxy, which listens on the loopback interface only: use its address, or give it keys`
  return new ProxyError('forbidden', message)
}

/**
 * Returns whether anyone could register a name: names without a dot and those under reserved suffixes are not public.
 */
function isPublicName(name: string): boolean {
  return name.includes('.') && !/\.(localhost|internal|local|test|home\.arpa)\.?$/.test(name)
}

/** `null`, which sandboxed pages send, has no host. */
function parseHost(origin: string): string | undefined {
  return URL.parse(origin)?.host
}

/** The interval per log line: unauthenticated callers must not fill the disk. */
const LOG_INTERVAL_MS = 1_000

/** Logs rejected unauthenticated requests: the first at once, then their number since the last line. */
class RejectionLog {
  readonly #logger: Logger
  #rejectedSince = 0
  #nextLineAtMs = 0

  constructor(logger: Logger) {
    this.#logger = logger
  }

  /** @param address the address of the caller, or of the client of a trusted proxy */
  add({ code, status, message }: ProxyError, address: string): void {
    this.#rejectedSince += 1
    const nowMs = performance.now()
    if (nowMs < this.#nextLineAtMs) return
    this.#nextLineAtMs = nowMs + LOG_INTERVAL_MS
    const fields = { code, status, address, reason: message, rejected: this.#rejectedSince }
    logEvent(this.#logger, 'request_unauthenticated', fields)
    this.#rejectedSince = 0
  }
}
