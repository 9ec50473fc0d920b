/**
 * The door of the HTTP server. Every route has a scope, or the server does not start; every request is judged by it
 * when its headers are there, before a byte of its body is read.
 */
import type { IncomingMessage } from 'node:http'
import type {
  FastifyInstance,
  FastifyPluginAsync,
  FastifyPluginCallback,
  FastifyPluginOptions,
  FastifyRequest,
  onResponseHookHandler,
} from 'fastify'
import type { ProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import { type DiscardLimits, discardBody } from '../transport/discard-body.ts'
import type { Strangers } from '../transport/strangers.ts'
import type { Keyring } from './keyring.ts'
import { refusalOfForeignHost, refusalOfForeignOrigin } from './pages.ts'
import { RefusalLog } from './refusal-log.ts'
import { type Caller, type Scope, scopeRefusal, unauthorized } from './scopes.ts'

declare module 'fastify' {
  interface FastifyInstance {
    /** The scope of the routes that are added here. */
    scope: Scope | undefined
  }
  interface FastifyContextConfig {
    scope?: Scope
  }
  interface FastifyRequest {
    caller: Caller
  }
}

/** One method of one path, and what it asks of its callers. */
export interface RouteScope {
  method: string
  path: string
  scope: Scope
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
const HAVE_SHOWN_A_KEY: ReadonlySet<Caller['is']> = new Set(['admin', 'agent', 'view', 'metrics'])

export interface GuardOptions {
  keyring: Keyring
  strangers: Strangers
  logger: Logger
  /** The server can be reached from its own machine only, and so from pages that are looked at there. */
  loopbackOnly: boolean
}

/** A stranger that does not know better may send a prompt of this size, and then reads why it was refused. */
export const REFUSED_BODY: DiscardLimits = { bytes: 256 * 1024, ms: 2_000 }

/**
 * Puts the guard before everything that is registered after it.
 * @returns the routes, complete when the server is ready
 */
export function guardRoutes(app: FastifyInstance, options: GuardOptions): readonly RouteScope[] {
  const { keyring, strangers, logger } = options
  const routes = collectScopes(app)
  const refusals = new RefusalLog(logger)
  app.decorateRequest('caller')
  app.addHook('onRequest', (request, _reply, done) => {
    request.caller = keyring.callerOf(request.headers)
    const refusal = refusalOfRequest(request, options)
    if (refusal) {
      if (request.caller.is === 'stranger') refusals.add(refusal, request.ip)
      discardBody(request.raw, REFUSED_BODY)
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
    for (const method of methods) routes.push({ method, path: route.url, scope })
  })
  return routes
}

function refusalOfRequest(request: FastifyRequest, options: GuardOptions): ProxyError | undefined {
  const { caller, params, routeOptions } = request
  const { scope } = routeOptions.config
  const refusal = refusalOfPage(request, scope, options)
  if (refusal) return refusal
  if (scope !== undefined) return scopeRefusal(scope, caller, (params as { sessionId?: string }).sessionId)
  // A path that is none. A stranger is not told so: its body would have to be read first.
  return caller.is === 'stranger' ? unauthorized('a key', caller.hasKey) : undefined
}

function refusalOfPage(
  request: FastifyRequest,
  scope: Scope | undefined,
  { keyring, loopbackOnly }: GuardOptions,
): ProxyError | undefined {
  if (!keyring.isOpen && scope !== 'worker') return undefined
  return (
    refusalOfForeignOrigin(request) ??
    (keyring.isOpen && loopbackOnly ? refusalOfForeignHost(request) : undefined)
  )
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
