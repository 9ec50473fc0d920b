import t from 'tap'
import { startSessionsApi } from '../helpers/sessions-api.ts'

t.test('an invalid request is rejected with the name of the field', async (t) => {
  const { call } = await startSessionsApi(t)
  await call('POST', '/sessions/s')
  const rejections: [string, string, unknown, string | null, RegExp][] = [
    ['POST', '/sessions', { session_id: 'a/../b' }, 'session_id', /session id/],
    ['POST', '/sessions', { session_id: 'health' }, 'session_id', /reserved/],
    ['POST', '/sessions', { session_id: 7 }, 'session_id', /must be string/],
    ['POST', '/sessions', { metdata: {} }, 'metdata', /'metdata' is not a field/],
    ['POST', '/sessions', { metadata: [] }, 'metadata', /must be object/],
    ['POST', '/sessions', { metadata: null }, 'metadata', /must be object/],
    ['POST', '/sessions', { sampling_params: 'hot' }, 'sampling_params', /must be object/],
    ['POST', '/sessions', { sampling_params: { n: 4 } }, 'sampling_params.n', /only the agent sets/],
    ['POST', '/sessions', { ttl_s: 0 }, 'ttl_s', /ttl_s/],
    ['POST', '/sessions', { ttl_s: '60' }, 'ttl_s', /ttl_s/],
    ['POST', '/sessions', { ttl_s: 1e308 }, 'ttl_s', /must be <= 3153600000/],
    ['POST', '/sessions', { metadata: { rows: 'x'.repeat(65_536) } }, 'metadata', /limit is 64 KiB/],
    ['POST', '/consumers/c', { since: 1e300 }, 'since', /must be <= /],
    ['POST', '/sessions', '[]', null, /must be object/],
    ['POST', '/sessions', 'null and void', null, /not valid JSON/],
    ['POST', '/sessions/a%0Ab', undefined, 'session_id', /control character/],
    ['POST', '/sessions/v1', undefined, 'session_id', /reserved/],
    ['POST', `/sessions/${'a'.repeat(513)}`, undefined, 'session_id', /1 to 512/],
    ['POST', '/sessions/s', { session_id: 'other' }, 'session_id', /not the one in the path/],
    ['POST', '/sessions/s/reward', {}, 'reward', /'reward' is required/],
    ['POST', '/sessions/s/reward', undefined, 'reward', /'reward' is required/],
    ['POST', '/sessions/s/reward', { reward: '1.0' }, 'reward', /must be number/],
    ['POST', '/sessions/s/reward', { reward: null }, 'reward', /must be number/],
    ['POST', '/sessions/s/reward', { reward: true }, 'reward', /must be number/],
    ['POST', '/sessions/s/reward', '{"reward": NaN}', 'reward', /finite number, not NaN/],
    ['POST', '/sessions/s/reward', '{"reward": -Infinity}', 'reward', /finite number, not -Infinity/],
    ['POST', '/sessions/s/reward', '{"reward": 1e999}', 'reward', /must be number/],
    ['POST', '/sessions/s/reward', { rewrad: 1 }, 'rewrad', /'rewrad' is not a field/],
    ['POST', '/sessions/s/reward', { reward: 1, components: { a: 'b' } }, 'components.a', /must be number/],
    ['POST', '/sessions/s/complete', { reward: 1 }, 'reward', /'reward' is not a field/],
    ['POST', '/sessions/s/reset?hard=1', undefined, 'hard', /'hard' is not a field/],
    ['GET', '/sessions?limit=0', undefined, 'limit', /must be >= 1/],
    ['GET', '/sessions?limit=1001', undefined, 'limit', /must be <= 1000/],
    ['GET', '/sessions?limit=1.5', undefined, 'limit', /must be integer/],
    ['GET', '/sessions?limit=ten', undefined, 'limit', /must be integer/],
    ['GET', '/sessions?limit=', undefined, 'limit', /must be integer/],
    ['GET', '/sessions?limit=1&limit=2', undefined, 'limit', /must be integer/],
    ['GET', '/sessions?status=done', undefined, 'status', /active, completed, aborted/],
    ['GET', '/sessions?metadata.=1', undefined, 'metadata.', /is not a field/],
    ['GET', '/sessions?page=2', undefined, 'page', /is not a field/],
    ['GET', '/sessions/s?messages=some', undefined, 'messages', /all, new/],
    ['GET', '/sessions/s?verbose=1', undefined, 'verbose', /is not a field/],
    ['GET', '/sessions/s/wait?timeout_s=601', undefined, 'timeout_s', /must be <= 600/],
    ['GET', '/sessions/s/wait?timeout_s=-1', undefined, 'timeout_s', /must be >= 0/],
    ['GET', '/sessions/s/wait?timeout=1', undefined, 'timeout', /is not a field/],
    [
      'GET',
      '/sessions/s/trajectories?select=best',
      undefined,
      'select',
      /all, main, longest, last, policy:…$/,
    ],
    ['GET', '/sessions/s/trajectories?prompt_length=0', undefined, 'prompt_length', /must be >= 1/],
    ['GET', '/sessions/s/trajectories?response_length=x', undefined, 'response_length', /must be integer/],
    ['GET', '/sessions/s/trajectories?per_turn=yes', undefined, 'per_turn', /must be boolean/],
    ['DELETE', '/sessions/s?force=true', undefined, 'force', /is not a field/],
  ]
  for (const [method, path, request, param, detail] of rejections) {
    const { status, body } = await call(method, path, request)
    t.match(
      { status, body },
      { status: 400, body: { detail, param } },
      `${method} ${path} ${JSON.stringify(request)}`,
    )
  }
  t.match((await call('GET', '/sessions')).body, { sessions: { length: 1 } }, 'nothing was created')
  t.match((await call('GET', '/sessions/s')).body, { status: 'active', reward: null }, 'nothing was changed')
})

t.test('a body may be nested a thousand levels deep, and no deeper', async (t) => {
  const { call } = await startSessionsApi(t)
  const nested = (levels: number) => `{"metadata":{"x":${'['.repeat(levels - 2)}${']'.repeat(levels - 2)}}}`
  t.equal((await call('POST', '/sessions/s', nested(1_000))).status, 200)
  t.equal((await call('GET', '/sessions/s')).status, 200)
  for (const levels of [1_001, 5_000, 49_000]) {
    const { status, body } = await call('POST', `/sessions/deep-${levels}`, nested(levels))
    t.match({ status, body }, { status: 400, body: { code: 'invalid_request', detail: /nested too deeply/ } })
  }
  t.match((await call('GET', '/sessions')).body, { sessions: { length: 1 } }, 'nothing was created')
})

t.test('metadata may have any names and values', async (t) => {
  const { call } = await startSessionsApi(t)
  const metadata = '{"__proto__":{"a":1},"constructor":[null],"":"ü"}'
  t.equal((await call('POST', '/sessions/s', `{"metadata":${metadata}}`)).status, 200)
  t.equal(JSON.stringify((await call('GET', '/sessions/s')).body.metadata), metadata)
})

t.test('a body is parsed as JSON whatever its content type is', async (t) => {
  const { url, call } = await startSessionsApi(t)
  for (const type of ['application/json', 'text/plain', 'application/x-www-form-urlencoded']) {
    const response = await fetch(`${url}/sessions`, {
      method: 'POST',
      headers: { 'content-type': type },
      body: '{"session_id":"s"}',
    })
    t.equal(response.status, 200, type)
  }
  const empty = { method: 'POST', headers: { 'content-type': 'application/json' } }
  t.equal((await fetch(`${url}/sessions/s/complete`, empty)).status, 200)
  t.equal((await call('GET', '/sessions/s')).body.completed, true)
})

t.test('the OpenAPI document describes every route of the sessions API', async (t) => {
  const { call } = await startSessionsApi(t)
  const { body } = await call('GET', '/openapi.json')
  t.match(body, { openapi: '3.1.0', info: { title: 'llm-proxy' } })
  const routes = Object.keys(body.paths).filter((path) => !path.includes('/v1'))
  for (const path of [
    '/sessions',
    '/sessions/{sessionId}',
    '/sessions/{sessionId}/trajectories',
    '/sessions/{sessionId}/complete',
    '/sessions/{sessionId}/abort',
    '/sessions/{sessionId}/reset',
    '/sessions/{sessionId}/reward',
    '/sessions/{sessionId}/wait',
  ]) {
    t.ok(routes.includes(path), path)
  }
  t.same(
    body.paths['/sessions/{sessionId}/reward'].post.requestBody.content['application/json'].schema.required,
    ['reward'],
  )
  const limit = body.paths['/sessions'].get.parameters.find((each: { name: string }) => each.name === 'limit')
  t.match(limit.schema, { minimum: 1, maximum: 1000, default: 100 })
})

t.test('the error of a misspelled route names the route, that of an unknown session does not', async (t) => {
  const { call } = await startSessionsApi(t)
  await call('POST', '/sessions/a')
  await call('POST', '/sessions/b/c')
  const getDetail = async (path: string) => {
    const { status, body } = await call('GET', path)
    t.match({ status, body }, { status: 404, body: { code: 'session_not_found' } })
    return body.detail
  }
  t.match(await getDetail('/sessions/a/trajectorie'), /Session 'a' exists, but has no route 'trajectorie'/)
  t.match(await getDetail('/sessions/b/c/rwos'), /Session 'b\/c' exists, but has no route 'rwos'/)
  for (const path of ['/sessions/x', '/sessions/x/trajectorie', '/sessions/x/trajectories'])
    t.equal(await getDetail(path), 'Session not found')
})
