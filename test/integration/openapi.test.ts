import { validate } from '@readme/openapi-parser'
import t from 'tap'
import { KEYS } from '../helpers/keys.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'

interface Operation {
  operationId?: string
  parameters?: { name: string; in: string; required?: boolean; schema?: { default?: unknown } }[]
  responses: Record<string, { content?: Record<string, { schema?: object }> }>
  security?: object[]
}

interface Document {
  paths: Record<string, Record<string, Operation>>
  components: { securitySchemes?: Record<string, object> }
}

const bearer = (key: string) => ({ headers: { authorization: `Bearer ${key}` } })

async function documentOf(url: string, init: RequestInit = {}): Promise<Document> {
  return (await fetch(`${url}/openapi.json`, init)).json() as Promise<Document>
}

function operationsOf({ paths }: Document): [string, string, Operation][] {
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]): [string, string, Operation] => [
      path,
      `${method.toUpperCase()} ${path}`,
      operation,
    ]),
  )
}

t.test('the OpenAPI document is a valid one, open and with keys', async (t) => {
  const open = await startSessionsApi(t)
  const keyed = await startSessionsApi(t, undefined, {}, { keys: KEYS })
  for (const document of [
    await documentOf(open.url),
    await documentOf(keyed.url, bearer(KEYS.adminKeys[0]!)),
  ]) {
    const result = await validate(document as unknown as Parameters<typeof validate>[0])
    t.same(result, { ...result, valid: true })
  }
})

t.test('each operation has a name, its parameters, its answer and its errors', async (t) => {
  const { url } = await startSessionsApi(t)
  const operations = operationsOf(await documentOf(url))
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
    t.ok(Object.keys(media?.schema ?? {}).length > 0, `${route} says what it answers`)
    const [error] = Object.values(responses['4XX']?.content ?? {})
    t.ok(error?.schema || path === '/health', `${route} says how it refuses`)
  }
  t.equal(names.size, operations.length)
  t.ok(operations.length > 40)
})

t.test('the names of operations do not change with the base path', async (t) => {
  const namesAt = async (basePath: string) => {
    const { url } = await startSessionsApi(t, undefined, {}, basePath === '' ? {} : { basePath })
    const document = await documentOf(url)
    return operationsOf(document).map(([, , { operationId }]) => operationId)
  }
  t.same(await namesAt('/team/llm'), await namesAt(''))
})

t.test('on a proxy with keys the document says which operations need one, and how it is sent', async (t) => {
  const { url } = await startSessionsApi(t, undefined, {}, { keys: KEYS })
  const document = await documentOf(url, bearer(KEYS.adminKeys[0]!))
  t.match(document.components.securitySchemes, {
    bearer: { type: 'http', scheme: 'bearer' },
    apiKey: { type: 'apiKey', in: 'header', name: 'x-api-key' },
  })
  for (const [, route, { security }] of operationsOf(document)) {
    const path = route.split(' ')[1]!.replaceAll(/\{\w+\}/g, 'x')
    const { status } = await fetch(url + path, { method: route.split(' ')[0]! })
    t.equal(status === 401, security !== undefined, `${route}: ${status}`)
  }
  const open = await startSessionsApi(t)
  const openDocument = await documentOf(open.url)
  t.notOk(openDocument.components.securitySchemes)
  t.ok(operationsOf(openDocument).every(([, , { security }]) => security === undefined))
})
