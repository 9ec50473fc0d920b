/**
 * The schemas of the agent routes in the OpenAPI document. They are not applied to requests: the dialects validate the
 * bodies, and write responses and errors.
 */
import Type, { type TSchema } from 'typebox'
import { nullable } from '../../../protocol/schema/field.ts'

const anything = () => Type.Record(Type.String(), Type.Unknown())
const usage = () => Type.Optional(anything())

const OpenAiErrorReply = Type.Object({
  error: Type.Object({
    message: Type.String(),
    type: Type.String(),
    param: nullable(Type.String()),
    code: nullable(Type.Union([Type.String(), Type.Number()])),
  }),
})

export const AnthropicErrorReply = Type.Object({
  type: Type.Literal('error'),
  error: Type.Object({ type: Type.String(), message: Type.String() }),
})

const createResponseSchema = <K extends string>(object: K) =>
  Type.Object({
    id: Type.String(),
    object: Type.Literal(object),
    created: Type.Integer(),
    model: Type.Optional(Type.String()),
    choices: Type.Array(anything()),
    usage: usage(),
  })

export const ChatResponse = createResponseSchema('chat.completion')
export const CompletionResponse = createResponseSchema('text_completion')

export const ResponsesResponse = Type.Object({
  id: Type.String(),
  object: Type.Literal('response'),
  created_at: Type.Integer(),
  status: Type.Enum(['in_progress', 'completed', 'incomplete', 'failed']),
  output: Type.Array(anything()),
})

export const MessagesResponse = Type.Object({
  id: Type.String(),
  type: Type.Literal('message'),
  role: Type.Literal('assistant'),
  content: Type.Array(anything()),
  stop_reason: nullable(Type.String()),
  usage: anything(),
})

export const GeminiResponse = Type.Object({
  candidates: Type.Optional(Type.Array(anything())),
  usageMetadata: Type.Optional(anything()),
  modelVersion: Type.Optional(Type.String()),
  responseId: Type.Optional(Type.String()),
  totalTokens: Type.Optional(Type.Integer()),
})

export const GoogleErrorReply = Type.Object({
  error: Type.Object({ code: Type.Integer(), message: Type.String(), status: Type.String() }),
})

export const GeminiModel = Type.Object({
  name: Type.String(),
  inputTokenLimit: Type.Optional(Type.Integer()),
  supportedGenerationMethods: Type.Array(Type.String()),
})

export const GeminiModels = Type.Object({ models: Type.Array(GeminiModel) })

export const CountResponse = Type.Object({ input_tokens: Type.Integer() })

export const Model = Type.Object({
  id: Type.String(),
  object: Type.Literal('model'),
  created: Type.Integer(),
  owned_by: Type.String(),
  max_model_len: Type.Optional(Type.Integer()),
})

export const ModelList = Type.Object({ object: Type.Literal('list'), data: Type.Array(Model) })

/**
 * The route options that disable validation and serialization by the schemas, which are for the OpenAPI document only.
 */
const UNVALIDATED = { validatorCompiler: () => () => true, serializerCompiler: () => JSON.stringify }

/** Returns the options of a read-only route. */
export function createReadDocs(summary: string, schema: TSchema, error: TSchema = OpenAiErrorReply) {
  const response = { 200: schema, '4xx': error, '5xx': error }
  return { schema: { tags: ['agent'], summary, response }, ...UNVALIDATED }
}

/**
 * Returns the options of a route with this request body. If the body requests a stream, the response consists of
 * server-sent events of the dialect.
 */
export function createRouteDocs(
  summary: string,
  body: object,
  schema: TSchema,
  error: TSchema = OpenAiErrorReply,
) {
  const content = {
    'application/json': { schema },
    // The events of the dialects are not described, and validators would apply any other schema to each event.
    'text/event-stream': { schema: Type.Unknown({ description: 'Server-sent events of the dialect' }) },
  }
  const response = { 200: { description: 'The response', content }, '4xx': error, '5xx': error }
  return { schema: { tags: ['agent'], summary, body, response }, ...UNVALIDATED }
}
