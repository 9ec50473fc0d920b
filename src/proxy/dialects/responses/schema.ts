/** OpenAI Responses, the schemas of requests: https://platform.openai.com/docs/api-reference/responses/create */
import Type, { type Static } from 'typebox'
import { createChecker, createListChecker, nullable } from '../common/check.ts'

/**
 * The other fields of an item or a tool depend on its type: `items.ts` and `tools.ts` validate the types that they
 * know.
 */
const InputItem = Type.Object({ type: nullable(Type.String()) })
export type InputItem = Static<typeof InputItem> & Record<string, unknown>

const Tool = Type.Object({ type: Type.String({ minLength: 1 }) })
export type ToolParam = Static<typeof Tool> & Record<string, unknown>

const ChosenTool = Type.Object({
  type: Type.String(),
  name: nullable(Type.String({ minLength: 1 })),
  namespace: nullable(Type.String()),
})
export type ChosenTool = Static<typeof ChosenTool>

const ToolChoice = Type.Union([
  Type.Union([Type.Literal('none'), Type.Literal('auto'), Type.Literal('required')]),
  Type.Object({
    ...ChosenTool.properties,
    mode: nullable(Type.Union([Type.Literal('auto'), Type.Literal('required')])),
    tools: nullable(Type.Array(ChosenTool)),
  }),
])
export type ToolChoice = Static<typeof ToolChoice>

const TextFormat = Type.Object({
  type: Type.Union([Type.Literal('text'), Type.Literal('json_object'), Type.Literal('json_schema')]),
})
export type TextFormat = Static<typeof TextFormat>

/** @throws ProxyError `invalid_request` naming the field */
export const checkJsonSchemaFormat = createChecker(
  Type.Object({
    name: Type.String(),
    schema: Type.Record(Type.String(), Type.Unknown()),
    description: nullable(Type.String()),
    strict: nullable(Type.Boolean()),
  }),
)

/**
 * The fields that the proxy reads or relies on. Every other field is allowed, and forwarded to the engine unchanged.
 */
export const ResponsesRequest = Type.Object(
  {
    model: nullable(Type.String()),
    input: nullable(Type.Union([Type.String(), Type.Array(InputItem)])),
    instructions: nullable(Type.String()),
    previous_response_id: nullable(Type.String()),
    store: nullable(Type.Boolean()),
    stream: nullable(Type.Boolean()),
    include: nullable(Type.Array(Type.String())),
    tools: nullable(Type.Array(Tool)),
    tool_choice: nullable(ToolChoice),
    parallel_tool_calls: nullable(Type.Boolean()),
    max_tool_calls: nullable(Type.Integer({ minimum: 0 })),
    reasoning: nullable(Type.Object({ effort: nullable(Type.String()), summary: nullable(Type.String()) })),
    text: nullable(Type.Object({ format: nullable(TextFormat), verbosity: nullable(Type.String()) })),
    truncation: nullable(Type.Union([Type.Literal('auto'), Type.Literal('disabled')])),
    max_output_tokens: nullable(Type.Integer({ minimum: 0 })),
    temperature: nullable(Type.Number({ minimum: 0 })),
    top_p: nullable(Type.Number({ minimum: 0, maximum: 1 })),
    top_logprobs: nullable(Type.Integer({ minimum: 0 })),
    metadata: nullable(Type.Record(Type.String(), Type.Unknown())),
    background: nullable(Type.Boolean()),
    conversation: nullable(Type.Union([Type.String(), Type.Object({ id: Type.String() })])),
    prompt: nullable(Type.Object({ id: Type.String() })),
    return_token_ids: nullable(Type.Boolean()),
    include_reasoning: nullable(Type.Boolean()),
  },
  { $id: 'ResponsesRequest', description: 'OpenAI Responses; unknown fields are forwarded.' },
)
export type ResponsesRequest = Static<typeof ResponsesRequest>

/** @throws ProxyError `invalid_request` naming the field */
export const checkResponsesRequest = createListChecker(ResponsesRequest, 'input', InputItem)
