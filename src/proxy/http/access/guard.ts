/**
 * Access control of the HTTP server. The server does not start unless every route has a scope. Each request is checked
 * against the scope of its route when its headers have arrived, before its body is read.
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
    /** Whether the route accepts a run key, and itself restricts its effect to the sessions of this run. */
    acceptsRunKeys?: boolean
  }
  interface FastifyRequest {
    caller: Caller
    /** The id of the session that the request created, for the audit log; the URL does not contain it. */
    createdSessionId?: string
    /** The resources that the request has charged to its caller's account. */
    charge: AccountUsage
  }
}

/** One method of a path, with the access that it requires. */
export interface RouteScope {
  method: string
  path: string
  scope: Scope
  acceptsRunKeys: boolean
}

/** Wraps a plugin so that all its routes have this scope. */
export function withScope<Options extends FastifyPluginOptions>(
  scope: Scope,
  plugin: FastifyPluginCallback<Options> | FastifyPluginAsync<Options>,
): FastifyPluginAsync<Options> {
  return async (app, options) => {
    app.decorate('scope', scope)
    await app.register(plugin as FastifyPluginAsync<Options>, options)
  }
}

/** The callers that a key or a signature has authenticated. Workers authenticate with their `hello`. */
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
  /**
   * Returns the lease of the node that signed a request; undefined for other requests. Default: there are no other
   * nodes.
   */
  verifyNode?: ((request: FastifyRequest) => number | undefined) | undefined
}

/**
 * The limits for the body of a rejected request: a client that sends a prompt without a valid key must be able to read
 * the error.
 */
export const REJECTED_BODY: DiscardLimits = { bytes: 256 * 1024, ms: 2_000 }

/**
 * Registers the access check, for all routes that are registered later.
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
    const rejection = checkRequest(request, options)
    if (rejection) {
      if (request.caller.is === 'stranger') rejections.add(rejection, request.ip)
      discardBody(request.raw, REJECTED_BODY)
    } else if (AUTHENTICATED_CALLERS.has(request.caller.is)) {
      unauthenticated.markAuthenticated(request.raw.socket)
    }
    done(rejection)
  })
  // On a proxy without keys, a complete request counts as authentication; a worker authenticates with its `hello`.
  app.addHook('preHandler', ({ caller, raw }, _reply, done) => {
    if (caller.is === 'anyone' && !requestsUpgrade(raw)) unauthenticated.markAuthenticated(raw.socket)
    done()
  })
  app.addHook('onResponse', endAnsweredUpgrade)
  return routes
}

/** Assigns each route the scope of its plugin. @throws Error for a route without a scope */
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
    const acceptsRunKeys = route.config.acceptsRunKeys === true
    for (const method of methods) routes.push({ method, path: route.url, scope, acceptsRunKeys })
  })
  return routes
}

function checkRequest(request: FastifyRequest, options: GuardOptions): ProxyError | undefined {
  const { caller, params, routeOptions } = request
  const { scope, acceptsRunKeys } = routeOptions.config
  const rejection = checkPage(request, scope, options)
  if (rejection) return rejection
  if (scope !== undefined)
    return checkScope(scope, caller, {
      sessionId: (params as { sessionId?: string }).sessionId,
      acceptsRunKeys,
    })
  // The route does not exist. An unauthenticated caller receives 401, because a 404 would be sent only after the body
  // has been read.
  return caller.is === 'stranger' ? createUnauthorizedError('a key', caller.hasKey) : undefined
}

/**
 * Rejects requests that a web page sends through a user's browser: the browser reports the origin of the page in
 * `Origin`, and a page whose own name resolves to this address sends that name in `Host` ("DNS rebinding"). A page has
 * no key, so the check is only needed on a proxy without keys, and for the worker socket, which no page may open.
 */
function checkPage(
  request: FastifyRequest,
  scope: Scope | undefined,
  { keyring, loopbackOnly }: GuardOptions,
): ProxyError | undefined {
  if (!keyring.isOpen && scope !== 'worker') return undefined
  return checkOrigin(request) ?? (keyring.isOpen && loopbackOnly ? checkHost(request) : undefined)
}

/**
 * Closes the connection of an upgrade request after an ordinary response: Node has detached the HTTP parser from the
 * socket, so that no further request could be read.
 */
const endAnsweredUpgrade: onResponseHookHandler = ({ raw }, _reply, done) => {
  if (requestsUpgrade(raw)) raw.socket.destroySoon()
  done()
}

/** Returns whether a request asks for an upgrade. Node sets this property, which its types lack. */
function requestsUpgrade(raw: IncomingMessage & { upgrade?: boolean }): boolean {
  return raw.upgrade === true
}

/**
 * Rejects a request from a web page of another origin. Reverse proxies in front must preserve `Host`, or be trusted.
 * @returns the error; undefined: the request is accepted
 */
function checkOrigin({ headers, host }: FastifyRequest): ProxyError | undefined {
  const { origin } = headers
  if (origin === undefined || parseHost(origin) === host.toLowerCase()) return undefined
  return new ProxyError('forbidden', 'This request comes from a web page of another origin')
}

/**
 * Rejects a request whose `Host` is a name that another party may own (DNS rebinding).
 * @returns the error; undefined: the request is accepted
 */
function checkHost({ hostname }: FastifyRequest): ProxyError | undefined {
  if (isIP(hostname.replace(/^\[|\]$/g, '')) || !isPublicName(hostname.toLowerCase())) return undefined
  const message = `'${hostname}' is not a name of this proxy, which listens on the loopback interface only: use its address, or configure keys`
  return new ProxyError('forbidden', message)
}

/**
 * Returns whether a name can be registered in public DNS. Names without a dot and names with a reserved suffix cannot.
 */
function isPublicName(name: string): boolean {
  return name.includes('.') && !/\.(localhost|internal|local|test|home\.arpa)\.?$/.test(name)
}

/** Returns the host of an `Origin` header; undefined for `null`, which sandboxed pages send. */
function parseHost(origin: string): string | undefined {
  return URL.parse(origin)?.host
}

/** The minimum interval between log lines, so that unauthenticated callers cannot fill the disk. */
const LOG_INTERVAL_MS = 1_000

/**
 * A log of rejected unauthenticated requests: at most one line per interval, with the number of rejections since the
 * previous line.
 */
class RejectionLog {
  readonly #logger: Logger
  #rejectedSince = 0
  #nextLineAtMs = 0

  constructor(logger: Logger) {
    this.#logger = logger
  }

  /** Counts a rejection. @param address the address of the caller, or of the client of a trusted proxy */
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
