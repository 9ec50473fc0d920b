/** The Fastify application: one plugin per concern, put together. */
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
import type { Logger } from '../../base/logger.ts'
import { openAiError } from '../dialects/common/openai-error.ts'
import { googleError } from '../dialects/gemini/error.ts'
import { anthropicError } from '../dialects/messages/error.ts'
import type { Registry } from '../engines/port/registry.ts'
import type { MetricsSource } from '../metrics/metrics.ts'
import { Consumers } from '../session/consumers/consumers.ts'
import { Activity } from '../session/state/activity.ts'
import { MAX_SESSION_ID_BYTES } from '../session/state/session-id.ts'
import type { Trajectory } from '../session/trajectories/trajectories.ts'
import type { AnnouncedWeights } from '../session/turn/announced-weights.ts'
import type { TurnStore } from '../store/port/turn-store.ts'
import { type AccountLimits, Accounts } from './access/accounts.ts'
import { guardRoutes, inScope, REJECTED_BODY, type RouteScope } from './access/guard.ts'
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
import { gatewayRoutes } from './trainer/gateway/routes.ts'
import { eventsRoutes } from './trainer/read/events.ts'
import { type ReadTokenTexts, readRoutes } from './trainer/read/routes.ts'
import { detailRoutes } from './trainer/sessions/detail-routes.ts'
import { sessionsRoutes } from './trainer/sessions/routes.ts'
import { tracesRoutes } from './trainer/traces/routes.ts'
import { rejectConnection } from './transport/connection-errors.ts'
import { discardBody, OVERSIZED_BODY } from './transport/discard-body.ts'
import { errorHeaders, logFailure, toRequestError } from './transport/errors.ts'
import { toOriginForm } from './transport/origin-form.ts'
import { sessionPaths } from './transport/session-paths.ts'
import type { UnauthenticatedConnections } from './transport/unauthenticated-connections.ts'
import { createUnauthenticatedConnections, createWebServer } from './transport/web-server.ts'
import { type WorkerSocketOptions, workerSocket } from './worker/worker-socket.ts'

/** What every application stands on, whatever its routes are. */
export interface AppBase {
  logger: Logger
  bodyLimitBytes: number
  /** What callers may have under way. */
  limits?: AccountLimits
  /** Default: none, and everybody may do everything. */
  keys?: KeySettings
  /** The server listens where only its own machine reaches it. Default: it does not. */
  loopbackOnly?: boolean
  /** Addresses, or blocks of them, whose `X-Forwarded-*` headers are believed. Default: none. */
  trustedProxies?: readonly string[]
  /** Precedes every path: `/llm`. Default: nothing does. */
  basePath?: string
  /** Forwards requests to the owners of their sessions, where the database has several nodes. Default: this node owns all. */
  toOwner?: onRequestAsyncHookHandler | undefined
  /** Returns the lease of the node that has signed a request, if one has. Default: there are no other nodes. */
  verifyNode?: ((request: FastifyRequest) => number | undefined) | undefined
  /** The routes of a page for people. Default: there is none. */
  inspector?: FastifyPluginCallback
  /** The routes of rollouts, for admins. Default: there are none. */
  rollouts?: FastifyPluginCallback | undefined
  /** Default: there is no `/metrics`. */
  metrics?: MetricsSource
}

export interface AppOptions extends AppBase, AgentRoutesOptions {
  store: TurnStore
  /** What `/health` tells besides the state of the backend. */
  facts: () => Record<string, unknown>
  weights: AnnouncedWeights
  /** What happens to sessions and turns. Default: nobody sees it. */
  activity?: Activity
  /** Default: no tokenizer is known. */
  tokenTexts?: ReadTokenTexts
  /** What a turn shows of its messages where nobody says. Default: all. */
  turnMessages?: 'all' | 'new'
  /** Takes over, or closes, the socket of whoever dials `/ws/worker`. */
  acceptWorker: WorkerSocketOptions['accept']
  maxWorkerFrameBytes: number
  /** The engines or workers that serve. */
  registry: Registry
  /** The other nodes, where several share the database. Default: this is the only node. */
  nodes?: Nodes | undefined
  /** What admins set. Default: of this proxy alone. */
  controls?: Controls
}

export interface App {
  fastify: FastifyInstance
  /** Every route that there is, and what it asks of its callers. */
  routes: readonly RouteScope[]
  /** The answers that are not out yet. */
  answering: ReadonlySet<unknown>
}

/** What the application listens on, and who is a stranger there. */
export interface AppSockets {
  serverFactory: FastifyServerFactory
  strangers: UnauthenticatedConnections
}

/** Whom routes may have to tell apart. */
interface AppGuards {
  keyring: Keyring
  strangers: UnauthenticatedConnections
}

/** All routes of a proxy, not listening yet. */
export function buildApp(options: AppOptions, sockets?: AppSockets): Promise<App> {
  const { sessions, runner, nodes } = options
  const { shared } = options.store
  const isDraining = () => runner.isDraining
  const toOwner = shared && nodes && forwardToOwner({ sessions, shared, ...nodes, isDraining })
  const verifyNode = nodes && ((request: FastifyRequest) => nodes.identity.verify(request)?.from)
  const base = { ...options, toOwner, verifyNode }
  return buildAppWith(base, (app, doors) => addRoutes(app, options, doors), sockets)
}

/** An application with these routes below its base path, not listening yet. A route without a scope does not start. */
export async function buildAppWith(
  options: AppBase,
  add: (app: FastifyInstance, doors: AppGuards) => Promise<void>,
  { serverFactory, strangers }: AppSockets = plainSockets(),
): Promise<App> {
  const { logger, keys = NO_KEYS, loopbackOnly = false, trustedProxies = [] } = options
  const keyring = new Keyring(keys)
  let routable = (_method: string, url: string): string => url
  const fastify = Fastify({
    serverFactory,
    bodyLimit: options.bodyLimitBytes,
    trustProxy: trustedProxies.length > 0 && [...trustedProxies],
    forceCloseConnections: 'idle',
    // It goes out with refusals, to be found again in the log: unlike a count it is not the same after a restart.
    genReqId: () => randomUUID(),
    // Longer session ids than there can be deserve an answer that says so, not a 404; and each byte may be a `%2F`.
    routerOptions: { maxParamLength: 4 * MAX_SESSION_ID_BYTES },
    rewriteUrl: ({ method = '', url = '' }) => routable(method, toOriginForm(url)),
    // A tool's JSON schema may have a property of any name; bodies are never merged into objects of ours.
    onProtoPoisoning: 'ignore',
    onConstructorPoisoning: 'ignore',
    // What fails before there is a route: a URL that cannot be decoded, or a segment that is too long.
    clientErrorHandler: rejectConnection,
    frameworkErrors: (thrown, request, reply) => {
      discardBody(request.raw, REJECTED_BODY)
      sendRouteless(toRequestError(thrown), request, reply)
    },
  })
  const answering = watchAnswers(fastify)
  fastify.addHook('onReady', async () => {
    routable = sessionPaths(routes)
  })
  const accounts = new Accounts(options.bodyLimitBytes, options.limits)
  const { verifyNode } = options
  const routes = guardRoutes(fastify, { keyring, strangers, accounts, logger, loopbackOnly, verifyNode })
  if (options.toOwner) fastify.addHook('onRequest', options.toOwner)
  fastify.addHook('onError', (_request, _reply, thrown, done) => {
    options.metrics?.requestFailed(toRequestError(thrown).code)
    done()
  })
  fastify.addHook('onResponse', createAuditHook(logger))
  fastify.addHook('preParsing', ({ charge, raw }, _reply, _payload, done) => {
    charge.watch(raw)
    done()
  })
  fastify.addHook('onSend', letBodyEnd)
  fastify.setErrorHandler((thrown, request, reply) => {
    const error = toRequestError(thrown)
    logFailure(logger, request, error)
    if (request.is404) return sendRouteless(error, request, reply)
    void reply.code(error.status).headers(errorHeaders(error)).send(detail(error))
  })
  fastify.setNotFoundHandler((request, reply) => {
    const path = request.url.split('?')[0] ?? ''
    const hint = HINTS.find(({ path: missing }) => missing.test(path))?.hint ?? ''
    const error = new ProxyError('route_not_found', `There is no ${request.method} ${path}${hint}`)
    sendRouteless(error, request, reply)
  })
  await fastify.register(async (app) => add(app, { keyring, strangers }), {
    prefix: options.basePath ?? '',
  })
  return { fastify, routes, answering }
}

function plainSockets(): AppSockets {
  const strangers = createUnauthenticatedConnections()
  const serverFactory: FastifyServerFactory = (handler) => createWebServer(handler, { strangers })
  return { serverFactory, strangers }
}

async function addRoutes(
  app: FastifyInstance,
  options: AppOptions,
  { keyring, strangers }: AppGuards,
): Promise<void> {
  const { sessions, store, runner, backend, activity = new Activity() } = options
  const onRow = (row: Trajectory) => options.metrics?.rowRead(row, options.weights.version)
  await app.register(openApi, { basePath: options.basePath ?? '', asksForKeys: !keyring.isOpen })
  await app.register(inScope('view', openApiRoute))
  const consumers = new Consumers(store, activity)
  const facts = () => ({ ...options.facts(), late_rewards: consumers.lateRewards.count })
  await app.register(inScope('open', healthRoute), { backend, runner, store, facts })
  if (options.metrics) await app.register(inScope('metrics', metricsRoute), { source: options.metrics })
  await app.register(inScope('admin', sessionsRoutes), { sessions, store, keyring })
  await app.register(inScope('admin', consumerRoutes), {
    consumers,
    reader: store,
    onRow,
  })
  await app.register(inScope('admin', detailRoutes), { sessions, store, backend })
  await app.register(inScope('view', readRoutes), {
    reader: store,
    tokenTexts: options.tokenTexts ?? (async () => undefined),
    turnMessages: options.turnMessages ?? 'all',
    onRow,
  })
  if (options.inspector) await app.register(inScope('open', options.inspector))
  const others = options.nodes?.others
  await app.register(inScope('view', eventsRoutes), { activity, sessions, backend, reader: store, others })
  await app.register(inScope('worker', workerSocket), {
    accept: options.acceptWorker,
    maxFrameBytes: options.maxWorkerFrameBytes,
    greeted: (socket) => strangers.know(socket),
  })
  await app.register(inScope('admin', adminRoutes), {
    controls: options.controls ?? new Controls({ backend, weights: options.weights, activity }),
    weights: options.weights,
    sessions,
    others,
  })
  await app.register(inScope('admin', workersRoutes), { registry: options.registry })
  await app.register(inScope('node', nodeRoutes), { deliveries: options.nodes?.deliveries })
  await app.register(inScope('view', tracesRoutes), { store })
  await app.register(inScope('admin', gatewayRoutes), { sessions, store, keyring })
  if (options.rollouts) await app.register(inScope('admin', options.rollouts))
  await app.register<AgentRoutesOptions>(inScope('agent', agentRoutes), options)
}

/** The answers that are not out yet, kept up to date. */
function watchAnswers(fastify: FastifyInstance): ReadonlySet<unknown> {
  const answering = new Set<unknown>()
  fastify.addHook('onRequest', (_request, { raw }, done) => {
    answering.add(raw)
    // Each concern of a call waits for its end once, on its own; that is no leak, as Node would warn of.
    raw.setMaxListeners(MAX_LISTENERS)
    raw.once('close', () => answering.delete(raw))
    done()
  })
  return answering
}

const MAX_LISTENERS = 32

/** Fastify would close the connection under a client that still sends its body. */
const letBodyEnd: onSendHookHandler = (request, reply, _payload, done) => {
  if (reply.statusCode === ERROR_CATALOGUE.body_too_large.status) {
    reply.removeHeader('connection')
    discardBody(request.raw, OVERSIZED_BODY)
  }
  done()
}

/** What an OpenAI client asks for whose base URL lacks the end. */
const WITHOUT_V1 = /\/(chat\/completions|completions|responses)$/

/** Who asks for what there is not, and what there is. */
const HINTS = [
  { path: WITHOUT_V1, hint: ': the base URL of an OpenAI client ends in /{session_id}/v1' },
  {
    // Of the proxy of alibaba/verl-recipe.
    path: /^\/training\/timing\b/,
    hint: ': no timings of a trainer are kept here. Those of calls are in GET /sessions/{session_id} and in /metrics',
  },
]

/** Who changed what on record, or in the proxy, with an admin's key or a run's: one line each. */
function createAuditHook(logger: Logger): onResponseHookHandler {
  return ({ method, routeOptions, params, caller, ip }, { statusCode: status }, done) => {
    const { scope } = routeOptions.config
    if (scope === 'admin' && method !== 'GET' && method !== 'HEAD' && status < 400) {
      const { sessionId } = params as { sessionId?: string }
      const by = caller.is === 'run' ? `run ${caller.run}` : caller.is
      const about = { audit: `${method} ${routeOptions.url}`, by, address: ip, status }
      logger.info(sessionId === undefined ? about : { ...about, sessionId }, 'changed')
    }
    done()
  }
}

/** An error of no route; the path tells whether an agent asked, and of which API. */
function sendRouteless(error: ProxyError, { url, id }: FastifyRequest, reply: FastifyReply): void {
  void reply.code(error.status).headers({ ...errorHeaders(error), 'x-request-id': id })
  if (url.includes('/v1beta/')) void reply.send(googleError(error))
  else if (url.includes('/v1/messages')) void reply.header('request-id', id).send(anthropicError(error, id))
  else if (url.includes('/v1/') || WITHOUT_V1.test(url)) void reply.send(openAiError(error))
  else void reply.send(detail(error))
}

/** The error shape of everything that is not an agent's dialect. */
function detail({ message, code, param }: ProxyError): object {
  return { detail: message, code, param: param ?? null }
}
