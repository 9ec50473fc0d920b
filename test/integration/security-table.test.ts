/** The table of docs/security.md equals the code's decisions, and a server's behaviour, cell by cell. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import Fastify, { type FastifyInstance } from 'fastify'
import t from 'tap'
import WebSocket from 'ws'
import { HELLO_TIMEOUT_MS } from '../../src/protocol/worker/protocol.ts'
import { Accounts } from '../../src/proxy/http/access/accounts.ts'
import { guardRoutes, REJECTED_BODY, type RouteScope, withScope } from '../../src/proxy/http/access/guard.ts'
import { Keyring } from '../../src/proxy/http/access/keyring.ts'
import { UnauthenticatedConnections } from '../../src/proxy/http/transport/unauthenticated-connections.ts'
import { LIMITS } from '../../src/proxy/http/transport/web-server.ts'
import { HANDSHAKE_LIMITS } from '../../src/proxy/http/worker/worker-socket.ts'
import {
  type AccessRow,
  type CallerName,
  createAccessTable,
  renderAccessTable,
} from '../helpers/access-table.ts'
import { generatedSection } from '../helpers/generated-text.ts'
import { KEYS } from '../helpers/keys.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'
import { silentLogger } from '../helpers/silent-logger.ts'

const DOCUMENT = join(import.meta.dirname, '../../docs/security.md')
const keyring = new Keyring(KEYS)

const KEYS_BY_CALLER: Record<CallerName, string | undefined> = {
  'no key': undefined,
  'a wrong key': 'an-unknown-key',
  admin: KEYS.adminKeys[1],
  worker: KEYS.workerKeys[1],
  view: KEYS.viewKeys[1],
  metrics: KEYS.metricsKeys[1],
  'run of this session': keyring.getRunKey('r'),
  'another run': keyring.getRunKey('q'),
  'agent of this session': keyring.getAgentKey('runs/r/this'),
  'agent of another session': keyring.getAgentKey('another'),
}

t.test('docs/security.md has every route with what each key may do (UPDATE=1 writes it)', async (t) => {
  const { routes } = await startSessionsApi(t, undefined, {}, { keys: KEYS })
  const table = renderAccessTable(createAccessTable(routes))
  t.equal(generatedSection(DOCUMENT, 'who may do what', table), table)
  const getScope = (path: string) => routes.find((route) => route.path === path)?.scope
  const getReaders = (path: string) =>
    routes.filter((route) => route.path === path && (route.method === 'GET' || route.method === 'HEAD'))
  for (const { path } of routes.filter(({ method }) => method === 'HEAD')) {
    const scopes = new Set(getReaders(path).map(({ scope }) => scope))
    t.equal(scopes.size, 1, `HEAD ${path} requires what GET requires`)
  }
  t.equal(getScope('/sessions/:sessionId/reward'), 'admin')
  t.equal(getScope('/ws/worker'), 'worker')
})

t.test('docs/security.md has the limits that the code has', async (t) => {
  const limits = /## Limits\n(.*?)\n## /s.exec(readFileSync(DOCUMENT, 'utf8'))![1]!
  const [kib, mib] = [1024, 1024 * 1024]
  const { limits: accounts } = new Accounts(1)
  for (const figure of [
    `headers of a request | ${LIMITS.headerBytes / kib} KiB |`,
    `end of the headers | ${LIMITS.headersMs / 1_000} s |`,
    `end of the body | ${LIMITS.requestMs / 1_000} s |`,
    `${REJECTED_BODY.bytes / kib} KiB of it are read and discarded, for ${REJECTED_BODY.ms / 1_000} s |`,
    `together | ${accounts.arrivingBytes / mib} MiB,`,
    `with one agent's key | ${accounts.connections} |`,
    `TLS handshake | ${LIMITS.tlsHandshakeMs / 1_000} s |`,
    `unauthenticated connections | ${LIMITS.unauthenticated}, ${LIMITS.unauthenticatedPerAddress} from one address`,
    `${HELLO_TIMEOUT_MS / 1_000} s, ${HANDSHAKE_LIMITS.bytes / mib} MiB, ${HANDSHAKE_LIMITS.frames} frames |`,
  ]) {
    t.ok(limits.includes(figure), figure)
  }
})

t.test("each cell of the table is a server's behaviour", { timeout: 120_000 }, async (t) => {
  const { url, routes } = await startSessionsApi(t, undefined, {}, { keys: KEYS })
  for (const row of createAccessTable(routes)) {
    for (const caller of Object.keys(KEYS_BY_CALLER) as CallerName[]) {
      const expected = row.cells[caller]
      const status = await getStatus(url, row.route, KEYS_BY_CALLER[caller])
      const seen = status === 401 || status === 403 ? String(status) : 'yes'
      t.equal(seen, expected, `${row.route.method} ${row.route.path} with ${caller}: ${status}`)
    }
  }
})

t.test('without keys every cell permits the request', { timeout: 120_000 }, async (t) => {
  const { url, routes } = await startSessionsApi(t)
  for (const { route } of createAccessTable(routes) satisfies AccessRow[]) {
    // On an open proxy only /v1 without a session in the path rejects requests, because the session is unknown.
    const status = await getStatus(url, route, undefined)
    const isSessionUnknown = route.path.startsWith('/v1/') && !route.path.includes(':sessionId')
    const isAllowed = (status !== 401 && status !== 403) || isSessionUnknown
    // Even without keys, a node must prove its identity.
    t.equal(isAllowed, route.scope !== 'node', `${route.method} ${route.path}: ${status}`)
  }
})

t.test('a route without a scope does not start', async (t) => {
  const app = Fastify()
  const unauthenticated = new UnauthenticatedConnections({ limit: 1, limitPerAddress: 1 })
  const accounts = new Accounts(1)
  guardRoutes(app, { keyring, unauthenticated, accounts, logger: silentLogger, loopbackOnly: false })
  t.throws(() => app.get('/forgotten', () => 'secret'), { message: /GET \/forgotten has no scope/ })
  app.register(
    withScope('admin', async (inner: FastifyInstance) => {
      inner.get('/inherited', () => 'secret')
      inner.register(async (innermost: FastifyInstance) => void innermost.get('/too', () => 'secret'))
    }),
  )
  await app.ready()
  t.equal((await app.inject('/inherited')).statusCode, 401)
  t.equal((await app.inject('/too')).statusCode, 401)
})

/** Returns the status of a request with placeholders in its path and an empty body. */
async function getStatus(url: string, route: RouteScope, key: string | undefined): Promise<number> {
  const path = route.path
    .replace(':sessionId', 'runs%2Fr%2Fthis')
    .replace(/:\w+/g, 'x')
    .replace('*', 'x')
    .replace(/\/wait$/, '/wait?timeout_s=0')
    .replace(/\/pause$/, '/pause?drain_timeout_s=0')
  const headers = key === undefined ? {} : { authorization: `Bearer ${key}` }
  if (path === '/ws/worker') return getUpgradeStatus(url + path, headers)
  const outgoing = request(url + path, { method: route.method, headers, agent: false })
  outgoing.end(route.method === 'POST' ? '{}' : undefined)
  const [response] = await once(outgoing, 'response')
  response.resume()
  return response.statusCode
}

async function getUpgradeStatus(url: string, headers: Record<string, string>): Promise<number> {
  const socket = new WebSocket(url.replace('http', 'ws'), { headers })
  socket.on('error', () => {})
  const status = await new Promise<number>((resolve) => {
    socket.on('unexpected-response', (_request, { statusCode = 0 }) => resolve(statusCode))
    socket.on('open', () => resolve(101))
  })
  socket.terminate()
  return status
}
