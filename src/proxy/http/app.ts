/** Builds the Fastify application from one plugin per concern. */
import { randomUUID } from 'node:crypto'
import Fastify, {
  type FastifyInstance,
  type FastifyPluginCallback,
  type FastifyReply,
  type FastifyRequest,
  type FastifyServerFactory,
  type onRequestAsyncHookHandler,
  type onResponseHookHandler,
  type onSendHookHandler,
} from 'fastify'
import { ERROR_CATALOGUE, ProxyError } from '../../base/errors.ts'
import { logEvent } from '../../base/log-events.ts'
import type { Logger } from '../../base/logger.ts'
import { buildOpenAiError } from '../dialects/common/openai-error.ts'
import { buildGoogleError } from '../dialects/gemini/error.ts'
import { buildAnthropicError } from '../dialects/messages/error.ts'
import type { MemberRegistry } from '../engines/port/registry.ts'
import type { MetricsSource } from '../metrics/proxy-metrics.ts'
import { Consumers } from '../session/consumers/consumers.ts'
import { Activity } from '../session/state/activity.ts'
import { MAX_SESSION_ID_BYTES } from '../session/state/session-id.ts'
import type { Trajectory } from '../session/trajectories/trajectories.ts'
import type { WeightAnnouncement } from '../session/turn/weight-announcement.ts'
import type { TurnStore } from '../store/port/turn-store.ts'
import { type AccountLimits, Accounts } from './access/accounts.ts'
import { guardRoutes, REJECTED_BODY, type RouteScope, withScope } from './access/guard.ts'
import { Keyring, type KeySettings, NO_KEYS } from './access/keyring.ts'
import { type AgentRoutesOptions, agentRoutes } from './agent/routes.ts'
import { forwardToOwner } from './nodes/forward-to-owner.ts'
import type { Nodes } from './nodes/nodes.ts'
import { nodeRoutes } from './nodes/routes.ts'
import { adminRoutes } from './operator/admin.ts'
import { Controls } from './operator/controls.ts'
import { healthRoute } from './operator/health/health-route.ts'
import { metricsRoute } from './operator/metrics.ts'
import { workersRoutes } from './operator/workers/routes.ts'
import { openApi, openApiRoute } from './schemas/openapi.ts'
import { consumerRoutes } from './trainer/consumers/routes.ts'
import { formatRoutes } from './trainer/formats/routes.ts'
import { gatewayRoutes } from './trainer/gateway/routes.ts'
import { detailRoutes } from './trainer/sessions/detail-routes.ts'
import { eventsRoutes } from './trainer/sessions/events.ts'
import { readRoutes, type TokenTextReader } from './trainer/sessions/read-routes.ts'
import { sessionsRoutes } from './trainer/sessions/routes.ts'
import { tracesRoutes } from './trainer/traces/routes.ts'
import { rejectConnection } from './transport/connection-errors.ts'
import { discardBody, OVERSIZED_BODY } from './transport/discard-body.ts'
import { buildErrorHeaders, logFailure, toRequestError } from './transport/errors.ts'
import { createSessionPaths, toOriginForm } from './transport/session-paths.ts'
import type { UnauthenticatedConnections } from './transport/unauthenticated-connections.ts'
import { createUnauthenticatedConnections, createWebServer } from './transport/web-server.ts'
import { type WorkerSocketOptions, workerSocket } from './worker/worker-socket.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /**
     * Whether a closing server waits for responses of the route as long as for those of agents. Default: true. False:
     * they end only when the client disconnects, or may take hours and are retried by their client.
     */
    awaitedOnClose?: boolean
  }
}

/** The options of every application, whatever its routes. */
export interface CommonAppOptions {
  logger: Logger
  bodyLimitBytes: number
  /** The limits on the resources of each caller. */
  limits?: AccountLimits
  /** The keys of callers. Default: none, so that every caller may use every route. */
  keys?: KeySettings
  /** Whether the server listens on the loopback interface only. Default: false. */
  loopbackOnly?: boolean
  /** Addresses, or blocks of addresses, of proxies whose `X-Forwarded-*` headers are trusted. Default: none. */
  trustedProxies?: readonly string[]
  /** The path that precedes every route: `/llm`. Default: none. */
  basePath?: string
  /**
   * Forwards a request to the owner of its session if the database has several nodes. Default: this node owns every
   * session.
   */
  toOwner?: onRequestAsyncHookHandler | undefined
  /**
   * Returns the lease of the node that signed a request; undefined for other requests. Default: there are no other
   * nodes.
   */
  verifyNode?: ((request: FastifyRequest) => number | undefined) | undefined
  /** The routes of the inspector. Default: none. */
  inspector?: FastifyPluginCallback | undefined
  /** The routes of rollouts, which require an admin key. Default: none. */
  rollouts?: FastifyPluginCallback | undefined
  /** The source of `/metrics`. Default: the route does not exist. */
  metrics?: MetricsSource
}

export interface AppOptions extends CommonAppOptions, AgentRoutesOptions {
  store: TurnStore
  /** Returns the fields of `/health` other than the state of the backend. */
  getHealthFields: () => Record<string, unknown>
  weights: WeightAnnouncement
  /** The event bus of sessions and turns. Default: one that only this application uses. */
  activity?: Activity
  /** Reads the texts of tokens. Default: no tokenizer is available. */
  tokenTexts?: TokenTextReader
  /** The messages of a turn that a response contains by default. Default: all. */
  turnMessages?: 'all' | 'new'
  /** Accepts or closes the socket of a client that connects to `/ws/worker`. */
  acceptWorker: WorkerSocketOptions['accept']
  maxWorkerFrameBytes: number
  /** The engines or workers in use. */
  registry: MemberRegistry
  /** The other nodes, if several share the database. Default: this is the only node. */
  nodes?: Nodes | undefined
  /** The admin controls. Default: controls of this proxy alone. */
  controls?: Controls
}

export interface App {
  fastify: FastifyInstance
  /** All routes, with the access that each requires. */
  routes: readonly RouteScope[]
  /**
   * The responses that are not complete yet. The functions return whether a closing server waits for them: their
   * requests have arrived completely, and their routes are `awaitedOnClose`.
   */
  openResponses: ReadonlyMap<unknown, () => boolean>
}

/** The factory of the server below Fastify, and the server's unauthenticated connections. */
export interface AppSockets {
  serverFactory: FastifyServerFactory
  unauthenticated: UnauthenticatedConnections
}

/** The parts that identify callers and connections. */
interface AppGuards {
  keyring: Keyring
  unauthenticated: UnauthenticatedConnections
}

/** Builds the application with all routes of a proxy. It does not listen yet. */
export function buildApp(options: AppOptions, sockets?: AppSockets): Promise<App> {
  const { sessions, runner, nodes } = options
  const isDraining = () => runner.isDraining
  const toOwner = nodes && forwardToOwner({ sessions, ...nodes, isDraining })
  const verifyNode = nodes && ((request: FastifyRequest) => nodes.identity.verify(request)?.from)
  const base = { ...options, toOwner, verifyNode }
  return buildAppWith(base, (app, guards) => addRoutes(app, options, guards), sockets)
}

/**
 * Builds an application that does not listen yet.
 * @param add registers the routes, below the base path
 * @throws Error for a route without a scope
 */
export async function buildAppWith(
  options: CommonAppOptions,
  add: (app: FastifyInstance, guards: AppGuards) => Promise<void>,
  { serverFactory, unauthenticated }: AppSockets = createPlainSockets(),
): Promise<App> {
  const { logger, keys = NO_KEYS, loopbackOnly = false, trustedProxies = [] } = options
  const keyring = new Keyring(keys)
  let routable = (_method: string, url: string): string => url
  const fastify = Fastify({
    serverFactory,
    bodyLimit: options.bodyLimitBytes,
    trustProxy: trustedProxies.length > 0 && [...trustedProxies],
    forceCloseConnections: 'idle',
    // Error responses contain this id, by which the request can be found in the log. Fastify's counter would repeat ids
    // after a restart.
    genReqId: () => randomUUID(),
    // An overlong session id must receive an error that explains it, not a 404. Percent-encoding triples each byte.
    routerOptions: { maxParamLength: 4 * MAX_SESSION_ID_BYTES },
    rewriteUrl: ({ method = '', url = '' }) => routable(method, toOriginForm(url)),
    // A tool's JSON schema may have properties of any name, such as `__proto__`. Bodies are never merged into objects.
    onProtoPoisoning: 'ignore',
    onConstructorPoisoning: 'ignore',
    clientErrorHandler: rejectConnection,
    // Errors that precede routing, such as a URL that cannot be decoded or a segment that is too long.
    frameworkErrors: (thrown, request, reply) => {
      discardBody(request.raw, REJECTED_BODY)
      sendRouteless(toRequestError(thrown), request, reply)
    },
  })
  const openResponses = watchResponses(fastify)
  fastify.addHook('onReady', async () => {
    routable = createSessionPaths(routes)
  })
  const accounts = new Accounts(options.bodyLimitBytes, options.limits)
  const { verifyNode } = options
  const routes = guardRoutes(fastify, {
    keyring,
    unauthenticated,
    accounts,
    logger,
    loopbackOnly,
    verifyNode,
  })
  fastify.decorateRequest('ownerForwarder', null)
  fastify.decorateRequest('forwarding', null)
  fastify.decorateRequest('namedSession', null)
  if (options.toOwner) fastify.addHook('onRequest', options.toOwner)
  fastify.addHook('onError', (_request, _reply, thrown, done) => {
    options.metrics?.countFailedRequest(toRequestError(thrown).code)
    done()
  })
  fastify.addHook('onResponse', createAuditHook(logger))
  fastify.addHook('preParsing', ({ charge, ownerForwarder, raw }, _reply, _payload, done) => {
    charge.watch(raw)
    ownerForwarder?.copyBody()
    done()
  })
  fastify.addHook('onSend', letBodyEnd)
  fastify.setErrorHandler((thrown, request, reply) => {
    const error = toRequestError(thrown)
    logFailure(logger, request, error)
    if (request.is404) return sendRouteless(error, request, reply)
    void reply.code(error.status).headers(buildErrorHeaders(error)).send(buildErrorBody(error))
  })
  fastify.setNotFoundHandler((request, reply) => {
    const path = request.url.split('?')[0] ?? ''
    const hint = HINTS.find(({ path: missing }) => missing.test(path))?.hint ?? ''
    const error = new ProxyError('route_not_found', `There is no ${request.method} ${path}${hint}`)
    sendRouteless(error, request, reply)
  })
  await fastify.register(async (app) => add(app, { keyring, unauthenticated }), {
    prefix: options.basePath ?? '',
  })
  return { fastify, routes, openResponses }
}

function createPlainSockets(): AppSockets {
  const unauthenticated = createUnauthenticatedConnections()
  const serverFactory: FastifyServerFactory = (handler) => createWebServer(handler, { unauthenticated })
  return { serverFactory, unauthenticated }
}

async function addRoutes(
  app: FastifyInstance,
  options: AppOptions,
  { keyring, unauthenticated }: AppGuards,
): Promise<void> {
  const { sessions, store, runner, backend, activity = new Activity() } = options
  const onRow = (row: Trajectory) => options.metrics?.countRow(row, options.weights.version)
  await app.register(openApi, { basePath: options.basePath ?? '', requiresKeys: !keyring.isOpen })
  await app.register(withScope('view', openApiRoute))
  const consumers = new Consumers(store, activity)
  const facts = () => ({ ...options.getHealthFields(), late_rewards: consumers.lateRewards.count })
  await app.register(withScope('open', healthRoute), { backend, runner, store, getFields: facts })
  if (options.metrics) await app.register(withScope('metrics', metricsRoute), { source: options.metrics })
  await app.register(withScope('admin', sessionsRoutes), { sessions, store, keyring })
  await app.register(withScope('admin', consumerRoutes), {
    consumers,
    reader: store,
    logger: options.logger,
    onRow,
  })
  await app.register(withScope('admin', detailRoutes), { sessions, store, backend })
  await app.register(withScope('view', readRoutes), {
    reader: store,
    tokenTexts: options.tokenTexts ?? (async () => undefined),
    turnMessages: options.turnMessages ?? 'all',
    onRow,
  })
  await app.register(withScope('view', formatRoutes), { reader: store, onRow })
  if (options.inspector) await app.register(withScope('open', options.inspector))
  const others = options.nodes?.others
  await app.register(withScope('view', eventsRoutes), { activity, sessions, backend, reader: store, others })
  await app.register(withScope('worker', workerSocket), {
    accept: options.acceptWorker,
    maxFrameBytes: options.maxWorkerFrameBytes,
    onGreeted: (socket) => unauthenticated.markAuthenticated(socket),
  })
  await app.register(withScope('admin', adminRoutes), {
    controls: options.controls ?? new Controls({ backend, weights: options.weights, activity }),
    weights: options.weights,
    sessions,
    others,
  })
  await app.register(withScope('admin', workersRoutes), { registry: options.registry })
  await app.register(withScope('node', nodeRoutes), { deliveries: options.nodes?.deliveries })
  await app.register(withScope('view', tracesRoutes), { store })
  await app.register(withScope('admin', gatewayRoutes), { sessions, store, keyring })
  if (options.rollouts) await app.register(withScope('admin', options.rollouts))
  await app.register<AgentRoutesOptions>(withScope('agent', agentRoutes), options)
}

/** Returns a live map of the responses that are not complete yet, as in {@link App.openResponses}. */
function watchResponses(fastify: FastifyInstance): App['openResponses'] {
  const open = new Map<unknown, () => boolean>()
  fastify.addHook('onRequest', ({ raw: request, routeOptions }, { raw }, done) => {
    open.set(raw, () => request.complete && routeOptions.config.awaitedOnClose !== false)
    // More parts of the proxy listen for the end of a response than Node's default limit, above which it warns of a
    // leak.
    raw.setMaxListeners(MAX_LISTENERS)
    raw.on('close', () => open.delete(raw))
    done()
  })
  return open
}

const MAX_LISTENERS = 32

/** Lets the client send its oversized body to the end: Fastify would close the connection while it still sends. */
const letBodyEnd: onSendHookHandler = (request, reply, _payload, done) => {
  if (reply.statusCode === ERROR_CATALOGUE.body_too_large.status) {
    reply.removeHeader('connection')
    discardBody(request.raw, OVERSIZED_BODY)
  }
  done()
}

/** The paths that an OpenAI client requests if its base URL lacks the `/v1`. */
const WITHOUT_V1 = /\/(chat\/completions|completions|responses)$/

/** Hints for requests to routes that do not exist. */
const HINTS = [
  { path: WITHOUT_V1, hint: ': the base URL of an OpenAI client ends in /{session_id}/v1' },
  {
    // A route of the proxy of alibaba/verl-recipe.
    path: /^\/training\/timing\b/,
    hint: ': the proxy records no timings of trainers. Those of requests are in GET /sessions/{session_id} and in /metrics',
  },
]

/** Returns a hook that logs each successful request that an admin route accepted, except reads. */
function createAuditHook(logger: Logger): onResponseHookHandler {
  return ({ method, routeOptions, params, caller, ip, createdSessionId }, { statusCode: status }, done) => {
    const { scope } = routeOptions.config
    if (scope === 'admin' && method !== 'GET' && method !== 'HEAD' && status < 400) {
      const { sessionId = createdSessionId } = params as { sessionId?: string }
      const by = caller.is === 'run' ? `run ${caller.run}` : caller.is
      const route = `${method} ${routeOptions.url}`
      logEvent(logger, 'admin_request', { route, by, address: ip, status, session_id: sessionId })
    }
    done()
  }
}

/** Sends the error of a request that has no route, in the dialect that its path indicates. */
function sendRouteless(error: ProxyError, { url, id }: FastifyRequest, reply: FastifyReply): void {
  void reply.code(error.status).headers({ ...buildErrorHeaders(error), 'x-request-id': id })
  if (url.includes('/v1beta/')) void reply.send(buildGoogleError(error))
  else if (url.includes('/v1/messages'))
    void reply.header('request-id', id).send(buildAnthropicError(error, id))
  else if (url.includes('/v1/') || WITHOUT_V1.test(url)) void reply.send(buildOpenAiError(error))
  else void reply.send(buildErrorBody(error))
}

/** Returns the error body of every route that has no agent dialect. */
function buildErrorBody({ message, code, param }: ProxyError): object {
  return { detail: message, code, param: param ?? null }
}
