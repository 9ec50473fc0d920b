import { validate } from '@readme/openapi-parser'
import t from 'tap'
import type { TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { KEYS } from '../helpers/keys.ts'
import { runUnwatched } from '../helpers/no-stalls.ts'
import { recordTurn, startSessionsApi } from '../helpers/sessions-api.ts'

interface Operation {
  operationId?: string
  tags?: string[]
  requestBody?: { required?: boolean; content: Record<string, { schema: { required?: string[] } }> }
  parameters?: { name: string; in: string; required?: boolean; schema?: { default?: unknown } }[]
  responses: Record<string, { content?: Record<string, { schema?: object }> }>
  security?: object[]
}

interface Document {
  paths: Record<string, Record<string, Operation>>
  components: { securitySchemes?: Record<string, object> }
}

const bearer = (key: string) => ({ headers: { authorization: `Bearer ${key}` } })

async function fetchDocument(url: string, init: RequestInit = {}): Promise<Document> {
  return (await fetch(`${url}/openapi.json`, init)).json() as Promise<Document>
}

function getOperations({ paths }: Document): [string, string, Operation][] {
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]): [string, string, Operation] => [
      path,
      `${method.toUpperCase()} ${path}`,
      operation,
    ]),
  )
}

t.test('the OpenAPI document is valid, with and without keys', async (t) => {
  const open = await startSessionsApi(t)
  const keyed = await startSessionsApi(t, undefined, {}, { keys: KEYS })
  for (const document of [
    await fetchDocument(open.url),
    await fetchDocument(keyed.url, bearer(KEYS.adminKeys[0]!)),
  ]) {
    const result = await runUnwatched(() => validate(document as unknown as Parameters<typeof validate>[0]))
    t.same(result, { ...result, valid: true })
  }
})

t.test('each operation has a name, its parameters, its responses and its errors', async (t) => {
  const { url } = await startSessionsApi(t)
  const operations = getOperations(await fetchDocument(url))
  const names = new Set<string | undefined>()
  for (const [path, route, { operationId, parameters = [], responses }] of operations) {
    t.match(operationId, /^[a-z][A-Za-z0-9]+$/, route)
    names.add(operationId)
    const inPath = parameters.filter((parameter) => parameter.in === 'path').map(({ name }) => name)
    const named = [...path.matchAll(/\{([^}]*)\}/g)].map(([, name]) => name)
    t.same(inPath.sort(), named.sort(), route)
    t.ok(
      named.every((name) => /^\w+$/.test(name!)),
      route,
    )
    const needless = parameters.filter(({ required, schema }) => required && schema?.default !== undefined)
    t.same(needless, [], route)
    const [media] = Object.values(responses['200']?.content ?? {})
    t.ok(Object.keys(media?.schema ?? {}).length > 0 || responses['204'], `${route} declares its responses`)
    const [error] = Object.values(responses['4XX']?.content ?? {})
    t.ok(error?.schema || ['/health', '/health/live'].includes(path), `${route} declares its errors`)
  }
  t.equal(names.size, operations.length)
  t.ok(operations.length > 40)
})

t.test('the names of operations do not change with the base path', async (t) => {
  const namesAt = async (basePath: string) => {
    const { url } = await startSessionsApi(t, undefined, {}, basePath === '' ? {} : { basePath })
    const document = await fetchDocument(url)
    return getOperations(document).map(([, , { operationId }]) => operationId)
  }
  t.same(await namesAt('/team/llm'), await namesAt(''))
})

t.test(
  'on a proxy with keys the document declares which operations need one, and how it is sent',
  async (t) => {
    const { url } = await startSessionsApi(t, undefined, {}, { keys: KEYS })
    const document = await fetchDocument(url, bearer(KEYS.adminKeys[0]!))
    t.match(document.components.securitySchemes, {
      bearer: { type: 'http', scheme: 'bearer' },
      apiKey: { type: 'apiKey', in: 'header', name: 'x-api-key' },
    })
    for (const [, route, { security }] of getOperations(document)) {
      const path = route.split(' ')[1]!.replaceAll(/\{\w+\}/g, 'x')
      const { status } = await fetch(url + path, { method: route.split(' ')[0]! })
      t.equal(status === 401, security !== undefined, `${route}: ${status}`)
    }
    const open = await startSessionsApi(t)
    const openDocument = await fetchDocument(open.url)
    t.notOk(openDocument.components.securitySchemes)
    t.ok(getOperations(openDocument).every(([, , { security }]) => security === undefined))
  },
)

t.test('the document declares which bodies are optional, and the required fields of others', async (t) => {
  const { url, call } = await startSessionsApi(t)
  const operations = getOperations(await fetchDocument(url))
  const optional = operations.filter(([, , { requestBody }]) => requestBody?.required === false)
  t.match(
    optional.map(([, route]) => route),
    ['POST /sessions', 'POST /sessions/{sessionId}', 'POST /sessions/{sessionId}/complete'],
  )
  await call('POST', '/sessions/x')
  for (const [path, route, { tags }] of optional) {
    if (!tags?.includes('sessions')) continue
    const { status } = await call(route.split(' ')[0]!, path.replace('{sessionId}', 'x'))
    t.equal(status, 200, route)
  }
  const sweep = operations.find(([, route]) => route === 'POST /admin/sweep')
  t.equal(sweep?.[2].requestBody?.content['application/json']?.schema.required, undefined, 'has a default')
})

t.test('the schema of a turn accepts turns with ids and without them', async (t) => {
  const { url, store, call } = await startSessionsApi(t)
  await call('POST', '/sessions/s')
  await recordTurn(store, 's', 0)
  const { paths } = await fetchDocument(url)
  const at = '/sessions/{sessionId}/turns/{index}'
  const schema = paths[at]?.get?.responses['200']?.content?.['application/json']?.schema as TSchema
  for (const ids of [true, false]) {
    const { body: turn } = await call('GET', `/sessions/s/turns/0?ids=${ids}`)
    t.equal('completion_token_ids' in turn, ids)
    t.strictSame([...Value.Errors(schema, turn)], [])
  }
})

t.test('a number in a query may be written as JSON writes it', async (t) => {
  const { call } = await startSessionsApi(t)
  for (const since of ['1e3', '1.5E+2', '-8.6e-219', '0.25']) {
    t.equal((await call('GET', `/sessions?since=${encodeURIComponent(since)}`)).status, 200, since)
  }
  for (const since of ['e3', '1e', '0x10', '1e999', 'NaN']) {
    t.match(await call('GET', `/sessions?since=${since}`), { status: 400, body: { param: 'since' } }, since)
  }
})
