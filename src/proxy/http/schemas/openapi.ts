/**
 * Serves `GET /openapi.json`: the HTTP API as an OpenAPI document, generated from the schemas that validate requests.
 */
import swagger, { type FastifyDynamicSwaggerOptions } from '@fastify/swagger'
import type { FastifyPluginAsync, FastifySchema, RouteOptions } from 'fastify'
import Type, { type TSchema } from 'typebox'
import packageJson from '../../../../package.json' with { type: 'json' }

interface OpenApiOptions {
  /** The path that precedes every route. */
  basePath: string
  /** Whether callers must send a key. */
  requiresKeys: boolean
}

const BEARER = 'bearer'
const API_KEY = 'apiKey'
const SECURITY_SCHEMES = {
  [BEARER]: { type: 'http', scheme: 'bearer' },
  [API_KEY]: { type: 'apiKey', in: 'header', name: 'x-api-key' },
} as const

const describeApi: FastifyPluginAsync<OpenApiOptions> = async (app, options) => {
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: { title: 'llm-proxy', version: packageJson.version, description: packageJson.description },
      ...(options.requiresKeys && { components: { securitySchemes: SECURITY_SCHEMES } }),
    },
    transform: createTransform(options),
    transformObject: (made) =>
      'openapiObject' in made ? withOptionalBodies(made.openapiObject) : made.swaggerObject,
  })
}

export const openApiRoute: FastifyPluginAsync = async (app) => {
  app.get('/openapi.json', { schema: { hide: true } }, async () => app.swagger())
}

/**
 * The plugin that generates the document. It must be registered before the routes that it describes. The symbol makes
 * Fastify register it without a separate scope, so that it receives the routes of the whole application.
 */
export const openApi = Object.assign(describeApi, { [Symbol.for('skip-override')]: true })

type Transform = NonNullable<FastifyDynamicSwaggerOptions['transform']>

/** Returns the function that completes the schema of a route: operation id, optional fields and security. */
function createTransform({ basePath, requiresKeys }: OpenApiOptions): Transform {
  return ({ schema, url, route }) => {
    const named = nameWildcard(url)
    const { params, querystring, body } = schema as Record<
      'params' | 'querystring' | 'body',
      TSchema | undefined
    >
    const isOpen = !requiresKeys || route.config?.scope === 'open'
    return {
      url: named.url,
      schema: {
        ...(schema as FastifySchema),
        operationId: toOperationId(route, named.url.slice(basePath.length)),
        ...(querystring && { querystring: withoutRequiredDefaults(querystring) }),
        ...(body && { body: withoutRequiredDefaults(body) }),
        ...(named.params && { params: named.params }),
        ...(params && !named.params && { params }),
        ...(!isOpen && { security: [{ [BEARER]: [] }, { [API_KEY]: [] }] }),
      },
    }
  }
}

/** Replaces the wildcard of a path by the parameter `model`, because OpenAPI has no wildcards. */
function nameWildcard(url: string): { url: string; params?: TSchema } {
  if (!url.endsWith('/*')) return { url }
  const names = [...url.matchAll(/:(\w+)/g)].map(([, name]) => [name!, Type.String()])
  const model = Type.String({ description: 'May contain slashes' })
  return { url: `${url.slice(0, -1)}:model`, params: Type.Object({ ...Object.fromEntries(names), model }) }
}

/** Returns the operation id: `GET /sessions/:sessionId/rows` is `getSessionsBySessionIdRows`. */
function toOperationId({ method }: RouteOptions, path: string): string {
  const words = path
    .replaceAll(/:(\w+)/g, 'by-$1')
    .split(/[^A-Za-z0-9]+/)
    .filter((word) => word !== '')
  const name = words.map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join('')
  return String(method).toLowerCase() + name
}

/** Makes fields with a default optional. They are required in the schema so that the handler's type has a value. */
function withoutRequiredDefaults(schema: TSchema): TSchema {
  const { properties = {}, required = [] } = schema as {
    properties?: Record<string, { default?: unknown }>
    required?: string[]
  }
  const { required: _all, ...rest } = schema as TSchema & { required?: string[] }
  const needed = required.filter((name) => properties[name]?.default === undefined)
  return needed.length === 0 ? rest : { ...rest, required: needed }
}

type TransformInput = Parameters<NonNullable<FastifyDynamicSwaggerOptions['transformObject']>>[0]
type ApiDocument = Extract<TransformInput, { openapiObject: unknown }>['openapiObject']

/**
 * Makes a body optional if it has no required field and may be empty, except on agent routes, whose dialects require a
 * body.
 */
function withOptionalBodies(document: ApiDocument): ApiDocument {
  for (const path of Object.values(document.paths ?? {})) {
    for (const method of ['post', 'delete'] as const) {
      const { requestBody, tags }: Operation = (path as Record<string, Operation>)[method] ?? {}
      const { required = [], minProperties = 0 } = requestBody?.content?.['application/json']?.schema ?? {}
      const isNeeded = required.length > 0 || minProperties > 0
      if (requestBody && !isNeeded && !tags?.includes('agent')) requestBody.required = false
    }
  }
  return document
}

/** The parts of an OpenAPI operation that decide whether its body is required. */
interface Operation {
  tags?: string[]
  requestBody?: {
    required?: boolean
    content?: Record<string, { schema: { required?: string[]; minProperties?: number } }>
  }
}
