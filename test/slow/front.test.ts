/** Several nodes behind one front: a trainer sees one proxy, and hears which nodes are away. */
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { uiRoutes } from '../../src/inspector/routes/routes.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { SESSION_ROUTES, startFront } from '../../src/proxy/http/front/server.ts'
import { nodeOfSession } from '../../src/proxy/session/state/nodes.ts'
import { watched } from '../helpers/no-stalls.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

const NODES = 3

async function setUp(t: Test, overrides: Partial<ServeConfig> = {}) {
  const nodes: TestProxy[] = []
  for (let number = 1; number <= NODES; number += 1)
    nodes.push(await startProxy(t, { db: 'memory', node: `${number}/${NODES}`, ...overrides }))
  const nodeUrls = nodes.map(({ url }) => url)
  const front = await watched(() =>
    startFront({
      host: '127.0.0.1',
      port: 0,
      nodeUrls,
      timeoutMs: 60_000,
      logger: silentLogger,
      inspector: uiRoutes,
    }),
  )
  t.teardown(() => front.close(0))
  const ask = async (path: string, body?: object, headers: Record<string, string> = {}) => {
    const posted = { method: 'POST', body: JSON.stringify(body) }
    const type = body && { 'content-type': 'application/json' }
    return fetch(front.url + path, { ...(body && posted), headers: { ...headers, ...type } })
  }
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of any shape
  const json = async (path: string, body?: object): Promise<any> => (await ask(path, body)).json()
  return { nodes, front, ask, json }
}

function chat(baseUrl: string, sessionId: string) {
  const client = new OpenAI({ baseURL: `${baseUrl}/${sessionId}/v1`, apiKey: 'none', maxRetries: 0 })
  return client.chat.completions.create({
    model: 'embedded',
    messages: [{ role: 'user', content: 'Hi.' }],
    max_tokens: 3,
  })
}

const idsOf = (list: { sessions: { session_id: string }[] }) => list.sessions.map(({ session_id: id }) => id)

/** Every page, by its cursor. */
async function pages(json: (path: string) => Promise<ReturnType<JSON['parse']>>, query: string) {
  const found = []
  let cursor: string | null = ''
  while (cursor !== null) {
    const page = await json(`/sessions?${query}${cursor && `&cursor=${encodeURIComponent(cursor)}`}`)
    found.push(page)
    cursor = page.next_cursor
  }
  return found
}

t.test('a session is made, called, read and ended on its own node', async (t) => {
  const { nodes, front, json } = await setUp(t)
  for (const id of ['a', 'b', 'c', 'd', 'harbor/x:0']) {
    t.match(await json('/sessions', { session_id: id, metadata: { task: 't' } }), { status: 'created' })
    t.ok((await chat(front.url, id)).choices[0])
    const own = nodes[nodeOfSession(id, NODES) - 1]!
    t.match(await own.get(`/sessions/${encodeURIComponent(id)}`), { turn_count: 1, metadata: { task: 't' } })
    t.equal((await json(`/sessions/${id}/trajectories`)).trajectories.length, 1)
    t.match(await json(`/sessions/${id}/reward`, { reward: 1 }), { reward: 1 })
    t.match(await json(`/sessions/${id}/complete`, {}), { status: 'completed' })
  }
  for (const path of ['/sessions', '/admin/sessions']) {
    const { session_id: made } = await json(path, {})
    t.match(await json(`/sessions/${made}`), { turn_count: 0 })
    t.match(await json(`/admin/sessions/${made}`), { session_id: made })
  }
})

t.test('every route of a node that names a session is one of the front', async (t) => {
  const { nodes } = await setUp(t)
  const { paths } = await nodes[0]!.get('/openapi.json')
  const named = Object.keys(paths).filter((path) => path.includes('{sessionId}'))
  t.ok(named.length > 20)
  for (const path of named) {
    const route = path.replace('models/{model}', 'models/*').replaceAll(/\{(\w+)\}/g, ':$1')
    t.ok(SESSION_ROUTES.includes(route), path)
  }
})

t.test('lists, groups and totals of all nodes are one, in order, page by page', async (t) => {
  const { json } = await setUp(t)
  const ids = Array.from({ length: 17 }, (_, i) => `s-${i}`)
  for (const [i, id] of ids.entries()) {
    await json('/sessions', { session_id: id, metadata: { task: `t${i % 2}` } })
    await json(`/sessions/${id}/reward`, { reward: i })
  }
  for (const limit of [1, 4, 17, 100]) {
    const all = await pages(json, `limit=${limit}&sort=reward&order=asc`)
    t.strictSame(all.flatMap(idsOf), ids, `pages of ${limit}`)
  }
  const created = (await pages(json, 'limit=5')).flatMap(({ sessions }) => sessions)
  t.equal(new Set(created.map(({ session_id: id }) => id)).size, 17)
  t.ok(
    created.every(({ created_at: at }, i) => i === 0 || at <= created[i - 1].created_at),
    'newest first',
  )
  t.match(await json('/sessions?totals=true&limit=2'), {
    totals: { sessions: 17, rewards: { count: 17, mean: 8 } },
  })
  const { groups, total } = await json('/groups?by=task')
  t.equal(total, 2)
  const even = groups.find(({ value }: { value: string }) => value === 't0')
  t.match(even, { sessions: 9, rewards: { count: 9, mean: 8, min: 0, max: 16 } })
  t.ok(Math.abs(even.rewards.std - Math.sqrt(30)) < 1e-9)
  // Of rewards 0 to 16 five even ones pass, and four odd ones.
  const { groups: passing, pass_at: passAt } = await json('/groups?by=task&pass_reward=8&limit=1')
  t.equal(passing.length, 1)
  t.ok(Math.abs(passAt[1] - (5 / 9 + 4 / 8) / 2) < 1e-9)
  t.strictSame(await json('/sessions/batch_delete', { session_ids: [...ids, 'none'] }), { deleted: 17 })
})

t.test('orders reach every node', async (t) => {
  const { nodes, json } = await setUp(t)
  t.match(await json('/admin/pause', {}), { status: 'paused', drained: true })
  for (const node of nodes) t.match(await node.get('/health'), { paused: true })
  t.match(await json('/admin/resume', {}), { status: 'running' })
  t.match(await json('/admin/weight_version', { weight_version: 7 }), { weight_version: 7 })
  for (const node of nodes) t.match(await node.get('/admin/weight_version'), { weight_version: 7 })
  t.match(await json('/admin/weight_version'), { weight_version: 7 })
})

t.test('metrics have their node, and workers are those of all', async (t) => {
  const { front, ask, json } = await setUp(t)
  t.match(await json('/admin/turns'), { turns: [], total: 0, sampled_tokens: 0 })
  await chat(front.url, 'a')
  const text = await (await ask('/metrics')).text()
  const own = `${nodeOfSession('a', NODES)}/${NODES}`
  t.match(text, `llm_proxy_turns_total{dialect="chat",outcome="completed",node="${own}"} 1\n`)
  t.equal(text.match(/^# TYPE llm_proxy_turns_total /gm)?.length, 1)
  t.equal(text.match(/^llm_proxy_node_up\{.*\} 1$/gm)?.length, NODES)
  t.equal((await json('/health/workers')).total, NODES, 'each node has an engine of its own')
})

t.test(
  'what a proxy can be asked with GET the front answers too, the inspector and its files among it',
  async (t) => {
    const { nodes, ask, json } = await setUp(t)
    for (const id of ['a', 'b', 'c', 'd']) {
      await json('/sessions', { session_id: id, metadata: { task: 't' } })
      await chat(nodes[nodeOfSession(id, NODES) - 1]!.url, id)
    }
    for (const path of ['/ui', '/ui/app.js', '/ui/app.css', '/ui/icon.svg']) {
      const answer = await ask(path)
      t.equal(answer.status, 200, path)
      t.equal(await answer.text(), await (await fetch(nodes[0]!.url + path)).text())
    }
    // What a node says of itself alone.
    const own = ['/openapi.json', '/livez', '/readyz']
    const { paths } = await nodes[0]!.get('/openapi.json')
    const asked = Object.keys(paths).filter((path) => paths[path].get && !own.includes(path))
    const values: Record<string, string> = {
      sessionId: 'a',
      index: '0',
      row: '0',
      traceId: 'a:0',
      nodeId: '1',
    }
    for (const path of asked.filter((each) => !/^\/events|\/live$|\/wait$/.test(each))) {
      const url = path.replace(/\{(\w+)\}/g, (_, name: string) => values[name] ?? '0')
      t.notMatch(await (await ask(url)).text(), 'The front has no', url)
    }
    t.match(await json('/health'), { mode: 'front', queued: 0, paused: false, uptime_s: Number })
    t.strictSame(
      (await json('/admin/workers')).map(({ node }: { node: string }) => node),
      nodes.map((_, place) => `${place + 1}/${NODES}`),
    )
  },
)

t.test('a node that is away is named, and never left out in silence', async (t) => {
  const { nodes, ask, json } = await setUp(t)
  const ids = Array.from({ length: 12 }, (_, i) => `s-${i}`)
  for (const id of ids) await json('/sessions', { session_id: id, metadata: { task: 't' } })
  const { next_cursor: cursor } = await json('/sessions?limit=3')
  await nodes[1]!.server.stop(0)
  const away = [{ node: '2/3' }]
  t.match(await json('/sessions'), { partial: true, away })
  t.match(await json(`/sessions?limit=3&cursor=${cursor}`), { partial: true, away })
  t.match(await json('/groups?by=task'), { partial: true, away })
  t.match(await json('/health'), { status: 'partial', partial: true, away })
  const workers = await ask('/admin/workers')
  t.equal(workers.headers.get('x-llm-proxy-away'), '2/3')
  t.match(await (await ask('/metrics')).text(), 'llm_proxy_node_up{node="2/3"} 0\n')
  const paused = await ask('/admin/pause', {})
  t.equal(paused.status, 503)
  t.match(await paused.json(), { code: 'node_away', detail: /2\/3.*done on 1\/3, 3\/3/ })
  const lost = ids.find((id) => nodeOfSession(id, NODES) === 2)!
  const asked = await ask(`/sessions/${lost}`)
  t.equal(asked.status, 503)
  t.match(await asked.json(), { code: 'node_away' })
  const known = (await pages(json, 'limit=2')).flatMap(idsOf)
  t.strictSame(known.sort(), ids.filter((id) => nodeOfSession(id, NODES) !== 2).sort())
})

/** The events of a front, as they come. */
async function eventsOf(t: Test, url: string) {
  const controller = new AbortController()
  t.teardown(() => controller.abort())
  const { body } = await fetch(`${url}/events`, { signal: controller.signal })
  const events: { type: string; node: string; session_id?: string; member?: string }[] = []
  const read = async () => {
    let rest = ''
    for await (const text of body!.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + text).split('\n')
      rest = lines.pop()!
      for (const line of lines) events.push(JSON.parse(line))
    }
  }
  return { events, ended: read().catch(() => {}) }
}

t.test('events of all nodes are one stream, and a node that goes and comes back is told', async (t) => {
  const { nodes, front } = await setUp(t)
  const { events, ended } = await eventsOf(t, front.url)
  for (const id of ['a', 'b', 'c', 'd', 'e', 'f']) await chat(front.url, id)
  const closed = () => events.filter(({ type }) => type === 'turn_closed')
  await until(() => closed().length === 6)
  for (const { session_id: id, node } of closed()) t.equal(node, `${nodeOfSession(id!, NODES)}/${NODES}`)
  const port = Number(new URL(nodes[1]!.url).port)
  await nodes[1]!.server.stop(0)
  await until(() => events.some(({ type, node }) => type === 'node_away' && node === '2/3'))
  await startProxy(t, { db: 'memory', node: '2/3', port })
  await until(() => events.some(({ type, node }) => type === 'node_back' && node === '2/3'))
  const own = ['a', 'b', 'c', 'd', 'e', 'f'].find((id) => nodeOfSession(id, NODES) === 2)!
  await chat(front.url, own)
  await until(() => closed().length === 7)
  await front.close(0)
  await ended
})

t.test(
  'events of nodes that are all away are an error, and a key that is missing one of theirs',
  async (t) => {
    const { ask } = await setUp(t, { adminKeys: ['admin-key-0123456789'] })
    t.equal((await ask('/events')).status, 401)
    const gone = await setUp(t)
    for (const node of gone.nodes) await node.server.stop(0)
    const asked = await gone.ask('/events')
    t.equal(asked.status, 503)
    t.match(await asked.json(), { code: 'node_away' })
  },
)

t.test('a node that is lost for good: the samples to run again are listed', async (t) => {
  const { nodes, ask, json } = await setUp(t)
  const ids = Array.from({ length: 12 }, (_, i) => `trial/${i}`)
  for (const id of ids) await json('/sessions', { session_id: id })
  t.strictSame(await json('/sessions/lost', { session_ids: ids }), { lost: [], asked: 12 })
  const onSecond = ids.filter((id) => nodeOfSession(id, NODES) === 2)
  t.ok(onSecond.length > 0)
  const port = Number(new URL(nodes[1]!.url).port)
  await nodes[1]!.server.stop(0)
  const away = await json('/sessions/lost', { session_ids: ids })
  const lostOf = (why: string) => onSecond.map((id) => ({ session_id: id, node: '2/3', why }))
  t.strictSame(away.lost, lostOf('node_away'))
  t.match(away, { partial: true, away: [{ node: '2/3' }] })
  await startProxy(t, { db: 'memory', node: '2/3', port })
  t.strictSame(await json('/sessions/lost', { session_ids: ids }), { lost: lostOf('not_found'), asked: 12 })
  t.equal((await ask('/sessions/lost', { session_ids: 'all' })).status, 400)
})

t.test("keys are the nodes' own business: the front hands them on, and has none", async (t) => {
  const admin = 'admin-key-0123456789'
  const { ask } = await setUp(t, { adminKeys: [admin] })
  t.equal((await ask('/sessions')).status, 401)
  t.equal((await ask('/sessions', {})).status, 401)
  t.equal((await ask('/metrics')).status, 401)
  t.equal((await ask('/sessions', undefined, { authorization: `Bearer ${admin}` })).status, 200)
  t.equal((await ask('/sessions/a', {}, { authorization: `Bearer ${admin}` })).status, 200)
})
