/**
 * `llm-proxy front`: several nodes as one proxy. It keeps nothing and decides nothing: a request for a session goes to the
 * session's node as it came, with the caller's key; a question about all sessions goes to all nodes, and their answers come
 * back as one. A node that is away is named in the answer.
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import Fastify, {
  type FastifyInstance,
  type FastifyPluginCallback,
  type FastifyReply,
  type FastifyRequest,
} from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import { nodeOfSession } from '../../session/state/nodes.ts'
import { MAX_SESSION_ID_BYTES } from '../../session/state/session-id.ts'
import { parseTraceId } from '../../session/trajectories/traces.ts'
import { passAtK } from '../trainer/read/pass-at-k.ts'
import { baseUrl } from '../transport/base-url.ts'
import { errorHeaders, errorOf } from '../transport/errors.ts'
import { sessionPaths } from '../transport/session-paths.ts'
import { answerAll, answerList, answerText, type Body } from './ask-all.ts'
import { EventStreams } from './events.ts'
import { sessionOfKey } from './key.ts'
import { listSessions } from './list-sessions.ts'
import { lostSessions } from './lost-sessions.ts'
import { type Group, mergeForests, mergeGroups, mergeMetrics, type TokenForest } from './merge.ts'
import { Nodes } from './nodes.ts'
import { withQuery } from './with-query.ts'

interface FrontOptions {
  host: string
  port: number
  /** Base URLs, node 1 first. */
  nodeUrls: readonly string[]
  /** How long a node may take for a question to all of them. */
  timeoutMs: number
  logger: Logger
  /** The routes of a page for people. */
  inspector: FastifyPluginCallback
}

interface RunningFront {
  readonly url: string
  /** Waits up to `graceMs` for requests that run. @returns whether all of them came to their own end */
  close(graceMs: number): Promise<{ drained: boolean }>
}

/** What an agent asks for below `/v1`. */
const AGENT_ROUTES = [
  'chat/completions',
  'completions',
  'responses',
  'responses/:responseId',
  'messages',
  'messages/count_tokens',
  'models',
  'models/*',
]
/** What is asked of one session. */
const OF_SESSION = [
  'complete',
  'abort',
  'reset',
  'reward',
  'details',
  'score',
  'wait',
  'trajectories',
  'forest',
  'traces',
  'tree',
  'live',
  'turns/:index',
  'rows',
  'rows/:row/tokens',
  'rows/:row/token_texts',
  'rows/:row/alternatives',
]

/**
 * Routes whose requests name a session in their path, each in full: only so it is known where an id with slashes ends. Those
 * of agents are among them: whoever has no balancer can do without.
 */
export const SESSION_ROUTES: readonly string[] = [
  '/sessions/:sessionId',
  ...OF_SESSION.map((route) => `/sessions/:sessionId/${route}`),
  ...[...AGENT_ROUTES.map((route) => `v1/${route}`), 'v1beta/models', 'v1beta/models/*'].flatMap((route) => [
    `/sessions/:sessionId/${route}`,
    `/:sessionId/${route}`,
  ]),
  '/v1/chat/completions/:sessionId',
  '/admin/sessions/:sessionId',
]

export async function startFront({
  host,
  port,
  nodeUrls,
  timeoutMs,
  logger,
  inspector,
}: FrontOptions): Promise<RunningFront> {
  const nodes = new Nodes(nodeUrls, timeoutMs)
  let routable = (_method: string, url: string): string => url
  const app = Fastify({
    forceCloseConnections: 'idle',
    routerOptions: { maxParamLength: 4 * MAX_SESSION_ID_BYTES },
    rewriteUrl: ({ method = '', url = '' }) => routable(method, url),
  })
  const routes: { method: string; path: string }[] = []
  app.addHook('onRoute', ({ method, url }) => {
    for (const each of [method].flat()) routes.push({ method: each, path: url })
  })
  app.setErrorHandler((thrown, _request, reply) => {
    const error = errorOf(thrown)
    logger[error.status >= 500 ? 'warn' : 'info']({ code: error.code, err: error.cause }, error.message)
    const { status, message, code, param = null } = error
    void reply.code(status).headers(errorHeaders(error)).send({ detail: message, code, param })
  })
  app.setNotFoundHandler(({ method, url }, reply) => {
    const detail = `The front has no ${method} ${url.split('?')[0]}: ask a node`
    void reply.code(404).send({ detail, code: 'route_not_found', param: null })
  })
  passRoutes(app, nodes)
  bodyRoutes(app, nodes)
  questionRoutes(app, nodes)
  orderRoutes(app, nodes)
  void app.register(inspector)
  await app.ready()
  routable = sessionPaths(routes)
  app.server.listen({ host, port })
  await once(app.server, 'listening')
  const address = app.server.address() as AddressInfo
  return { url: baseUrl({ host, port: address.port }), close: (graceMs) => closeApp(app, graceMs) }
}

async function closeApp(app: FastifyInstance, graceMs: number): Promise<{ drained: boolean }> {
  let drained = true
  const patience = setTimeout(() => {
    drained = false
    app.server.closeAllConnections()
  }, graceMs)
  await app.close()
  clearTimeout(patience)
  return { drained }
}

/** Requests that go on as they are, body and answer unread. */
function passRoutes(app: FastifyInstance, nodes: Nodes): void {
  void app.register(async (unread) => {
    unread.removeAllContentTypeParsers()
    unread.addContentTypeParser('*', (_request, _body, done) => done(null))
    const pass =
      (sessionIdOf: (request: FastifyRequest) => string) => (request: FastifyRequest, reply: FastifyReply) =>
        nodes.pass(sessionIdOf(request), request, reply)
    const named = pass(({ params }) => (params as { sessionId: string }).sessionId)
    for (const url of SESSION_ROUTES) unread.route({ method: ['GET', 'POST', 'DELETE'], url, handler: named })
    unread.get(
      '/traces/:traceId',
      pass(({ params }) => parseTraceId((params as { traceId: string }).traceId).sessionId),
    )
    // Nodes have the same secret.
    unread.get(
      '/admin/runs/:run/key',
      pass(() => randomUUID()),
    )
    // A call that names no session makes one, on whichever node it reaches: the front draws one.
    const unnamed = pass(({ headers }) => sessionOfKey(headers) ?? randomUUID())
    for (const url of ['/v1/*', '/v1beta/*']) unread.route({ method: ['GET', 'POST'], url, handler: unnamed })
  })
}

/** Requests that name sessions in their body. */
function bodyRoutes(app: FastifyInstance, nodes: Nodes): void {
  for (const url of ['/sessions', '/admin/sessions']) {
    app.post(url, (request, reply) => {
      const body = objectOf(request.body)
      const sessionId = typeof body.session_id === 'string' ? body.session_id : randomUUID()
      return nodes.pass(sessionId, request, reply, { ...body, session_id: sessionId })
    })
  }
  const own = (request: FastifyRequest) => (place: number) => {
    const body = objectOf(request.body)
    const ids = Array.isArray(body.session_ids) ? body.session_ids : []
    return { ...body, session_ids: ids.filter((id) => nodeOfSession(String(id), nodes.count) === place + 1) }
  }
  app.post('/sessions/batch_delete', async (request, reply) => {
    const answers = await nodes.askAll(request, undefined, own(request))
    return answerAll(reply, answers, (bodies) => ({ deleted: sumOf(bodies, 'deleted') }))
  })
  app.post('/sessions/lost', (request, reply) => lostSessions(nodes, request, reply))
  app.post('/traces/query', async (request, reply) => {
    const answers = await nodes.askAll(request, undefined, own(request))
    const { session_ids: ids } = objectOf(request.body) as { session_ids: unknown[] }
    return answerList(reply, answers, (lists) => bySession(lists.flat() as { session_id: string }[], ids))
  })
}

/** In the order in which the sessions were named; a session's own stay in theirs. */
function bySession<T extends { session_id: string }>(traces: readonly T[], ids: readonly unknown[]): T[] {
  const places = new Map(ids.map((id, place) => [id, place]))
  return [...traces].sort((a, b) => places.get(a.session_id)! - places.get(b.session_id)!)
}

/** Questions about everything. */
function questionRoutes(app: FastifyInstance, nodes: Nodes): void {
  app.get('/sessions', (request, reply) => listSessions(nodes, request, reply))
  const streams = new EventStreams(nodes)
  app.addHook('preClose', async () => streams.close())
  app.get('/events', (request, reply) => streams.answer(request, reply))
  app.get('/groups', async (request, reply) => {
    const { limit: asked, by, pass_reward: passReward } = request.query as Record<string, string | undefined>
    const limit = Number(asked ?? 1000)
    const url = withQuery(request.url, { limit: '100000' })
    return answerAll(reply, await nodes.askAll(request, () => url), (bodies) => {
      const groups = mergeGroups(bodies.map(({ groups }) => groups as Group[]))
      const answer = { by, groups: groups.slice(0, limit), total: groups.length }
      return passReward === undefined ? answer : { ...answer, pass_at: passAtK(groups) }
    })
  })
  app.get('/forest', async (request, reply) =>
    answerAll(reply, await nodes.askAll(request), (bodies) => mergeForests(bodies as TokenForest[])),
  )
  app.get('/health', async (request, reply) => {
    const answers = await nodes.askAll(request)
    return answerAll(reply, answers, (bodies) => ({
      status: bodies.length === nodes.count ? 'ok' : 'partial',
      mode: 'front',
      connected_workers: bodies.reduce((most, { connected_workers: n = 0 }) => Math.max(most, n), 0),
      queued: sumOf(bodies, 'queued'),
      paused: bodies.some(({ paused }) => paused),
      uptime_s: Math.min(...bodies.map(({ uptime_s: seconds }) => seconds)),
      prompts: sumsOf(bodies.map(({ prompts = {} }) => prompts)),
      nodes: bodies,
    }))
  })
  app.get('/health/workers', async (request, reply) =>
    answerAll(reply, await nodes.askAll(request), (bodies) => {
      const workers = bodies.flatMap(({ workers }) => workers)
      return { workers, healthy: workers.filter(({ healthy }) => healthy).length, total: workers.length }
    }),
  )
  app.get('/admin/workers', async (request, reply) =>
    answerList(reply, await nodes.askAll(request), (lists, names) =>
      lists.flatMap((list, place) => list.map((entry) => ({ ...(entry as object), node: names[place] }))),
    ),
  )
  app.get('/admin/turns', async (request, reply) => {
    const limit = Number((request.query as { limit?: string }).limit ?? 100)
    return answerAll(reply, await nodes.askAll(request), (bodies) => ({
      turns: bodies
        .flatMap(({ turns }) => turns)
        .sort((a, b) => a.started_at - b.started_at)
        .slice(0, limit),
      total: sumOf(bodies, 'total'),
      sampled_tokens: sumOf(bodies, 'sampled_tokens'),
    }))
  })
  app.get('/metrics', async (request, reply) => {
    const answers = await nodes.askAll(request)
    return answerText(reply, answers, mergeMetrics)
  })
  app.get('/admin/weight_version', async (request, reply) =>
    answerAll(reply, await nodes.askAll(request), (bodies) => {
      const versions = bodies.map(({ weight_version: version }) => version)
      return { weight_version: versions.every((each) => each === versions[0]) ? versions[0] : null, versions }
    }),
  )
}

/** What all nodes have to do. One that is away makes it an error: half a pause is none. */
function orderRoutes(app: FastifyInstance, nodes: Nodes): void {
  const order = (url: string, merge: (bodies: Body[]) => object) =>
    app.post(url, async (request, reply) => {
      const { body } = request
      const answers = await nodes.askAll(request, undefined, body === undefined ? undefined : () => body)
      return answerAll(reply, answers, merge, { needsAll: true })
    })
  order('/admin/pause', (bodies) => ({
    status: 'paused',
    drained: bodies.every(({ drained }) => drained),
    in_flight: sumOf(bodies, 'in_flight'),
  }))
  order('/admin/resume', () => ({ status: 'running' }))
  order('/admin/flush', () => ({ status: 'flushed' }))
  order('/admin/weight_version', ([first]) => ({ weight_version: first!.weight_version }))
}

function sumOf(bodies: Body[], field: string): number {
  return bodies.reduce((sum, body) => sum + body[field], 0)
}

function sumsOf(all: readonly Record<string, number>[]): Record<string, number> {
  const sums: Record<string, number> = {}
  for (const [name, count] of all.flatMap((each) => Object.entries(each)))
    sums[name] = (sums[name] ?? 0) + count
  return sums
}

function objectOf(body: unknown): Record<string, unknown> {
  if (body === undefined || body === null) return {}
  if (typeof body === 'object' && !Array.isArray(body)) return body as Record<string, unknown>
  throw new ProxyError('invalid_request', 'The body must be a JSON object')
}
