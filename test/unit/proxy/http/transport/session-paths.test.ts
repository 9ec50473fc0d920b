import fc from 'fast-check'
import t from 'tap'
import { createSessionPaths, toOriginForm } from '../../../../../src/proxy/http/transport/session-paths.ts'
import { isSessionId } from '../../../../../src/proxy/session/state/session-id.ts'

const ROUTES = [
  'GET /health',
  'GET /sessions',
  'POST /sessions',
  'POST /sessions/batch_delete',
  'GET /sessions/:sessionId',
  'POST /sessions/:sessionId',
  'DELETE /sessions/:sessionId',
  'POST /sessions/:sessionId/complete',
  'GET /sessions/:sessionId/traces',
  'GET /sessions/:sessionId/turns/:turn',
  'GET /traces/:traceId',
  'POST /:sessionId/v1/chat/completions',
  'GET /:sessionId/v1/models/*',
  'GET /:sessionId/v1/responses/:responseId',
  'POST /sessions/:sessionId/v1/chat/completions',
  'POST /:sessionId/v1/messages',
  'POST /:sessionId/v1/messages/count_tokens',
  'GET /:sessionId/v1/models',
  'POST /v1/messages',
  'POST /v1/chat/completions',
  'POST /v1/chat/completions/:sessionId',
].map((route) => {
  const [method = '', path = ''] = route.split(' ')
  return { method, path }
})
const routed = createSessionPaths(ROUTES)

t.test('slashes of an id are encoded on every route, and nothing else is changed', async (t) => {
  for (const [method, url, expected] of [
    ['GET', '/sessions/a/b', '/sessions/a%2Fb'],
    ['GET', '/sessions/a%2Fb/c?x=/y', '/sessions/a%2Fb%2Fc?x=/y'],
    ['DELETE', '/sessions/a/b/c', '/sessions/a%2Fb%2Fc'],
    ['POST', '/sessions/a/b/complete', '/sessions/a%2Fb/complete'],
    ['GET', '/sessions/a/b/turns/7', '/sessions/a%2Fb/turns/7'],
    ['GET', '/traces/a/b:turn', '/traces/a%2Fb:turn'],
    ['POST', '/harbor/x:0/v1/chat/completions', '/harbor%2Fx:0/v1/chat/completions'],
    ['POST', '/sessions/harbor/x:0/v1/chat/completions', '/sessions/harbor%2Fx:0/v1/chat/completions'],
    ['POST', '/v1/chat/completions/a/b', '/v1/chat/completions/a%2Fb'],
    ['GET', '/a/b/v1/models/Qwen/Qwen3', '/a%2Fb/v1/models/Qwen/Qwen3'],
    ['GET', '/a/b/v1/responses/r', '/a%2Fb/v1/responses/r'],
    ['POST', '/a/v1/v1/messages', '/a/v1/messages'],
    ['POST', '/a/b/v1/v1/messages/count_tokens?beta=true', '/a%2Fb/v1/messages/count_tokens?beta=true'],
    ['GET', '/a/v1/v1/models', '/a/v1/models'],
    ['POST', '/v1/v1/messages', '/v1/messages'],
    ['POST', '/a%2Fv1/v1/messages', '/a%2Fv1/v1/messages'],
    ['GET', '/sessions/gr\xc3\xb6\xc3\x9fe/b', '/sessions/gr%C3%B6%C3%9Fe%2Fb'],
    ['GET', '/sessions/gr\xc3\xb6', '/sessions/gr%C3%B6'],
  ] as const) {
    t.equal(routed(method, url), expected)
  }
  for (const [method, url] of [
    ['GET', '/health'],
    ['GET', '/sessions?metadata.a=b/c'],
    ['POST', '/sessions/batch_delete'],
    ['GET', '/sessions/a/traces'],
    ['POST', '/a/v1/chat/completions'],
    ['POST', '/v1/chat/completions'],
    ['GET', '/a/v1/models/Qwen/Qwen3'],
    ['GET', '/a/b/nothing'],
    ['POST', '/sessions/'],
    ['GET', '/sessions'],
    ['GET', '//sessions/a'],
    ['GET', '/mine/v1/..%2f..%2fsessions/other'],
    ['PUT', '/sessions/a/b'],
    ['POST', '/admin/x/v1/chat/completions'],
  ] as const) {
    t.equal(routed(method, url), url)
  }
})

t.test('the same below a base path', async (t) => {
  const below = createSessionPaths(ROUTES.map(({ method, path }) => ({ method, path: `/llm${path}` })))
  t.equal(below('POST', '/llm/a/b/v1/chat/completions'), '/llm/a%2Fb/v1/chat/completions')
  t.equal(below('GET', '/llm/sessions/a/b/traces'), '/llm/sessions/a%2Fb/traces')
  t.equal(below('POST', '/a/b/v1/chat/completions'), '/a/b/v1/chat/completions')
})

t.test('any id is received unchanged, with its slashes raw or encoded', async (t) => {
  const ids = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 40 }).filter(isSessionId)
  fc.assert(
    fc.property(ids, (id) => {
      const encoded = encodeURIComponent(id)
      const raw = encoded.replaceAll('%2F', '/')
      for (const written of [encoded, raw]) {
        t.equal(routed('POST', `/${written}/v1/chat/completions`), `/${encoded}/v1/chat/completions`)
        t.equal(routed('POST', `/sessions/${written}/complete`), `/sessions/${encoded}/complete`)
        t.equal(routed('GET', `/sessions/${written}/traces`), `/sessions/${encoded}/traces`)
      }
    }),
  )
})

t.test('the host of a target in absolute form is ignored', async (t) => {
  const cases = [
    ['http://host:1/a/b?c=d', '/a/b?c=d'],
    ['HTTPS://user:pass@host/a', '/a'],
    ['http://host', '/'],
    ['http://host?a=b', '/?a=b'],
    ['http://host//a', '//a'],
    ['http://host/a#fragment', '/a'],
    ['http:///a', '/a'],
  ] as const
  for (const [target, path] of cases) t.equal(toOriginForm(target), path, target)
})

t.test('every other target is unchanged', async (t) => {
  for (const target of ['/a', '//host/a', '/\\host/a', '*', 'ftp://host/a', 'host:80', '/http://host/a', ''])
    t.equal(toOriginForm(target), target, target)
})

t.test('a target that starts with http:// or https:// becomes a path, for any remainder', async () => {
  fc.assert(
    fc.property(
      fc.constantFrom('http://', 'https://', 'HTTP://'),
      fc.string({ unit: 'binary' }),
      (scheme, rest) => {
        return toOriginForm(scheme + rest).startsWith('/')
      },
    ),
  )
})
