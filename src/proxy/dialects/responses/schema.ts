/** Schemas of OpenAI Responses requests: https://platform.openai.com/docs/api-reference/responses/create */
import Type, { type Static } from 'typebox'
import { createChecker, createListChecker, toNullable } from '../common/check.ts'

/**
 * An input item. The other fields of items and tools depend on their type: `items.ts` and `tools.ts` validate the types
 * that they support.
 */
const InputItem = Type.Object({ type: toNullable(Type.String()) })
export type InputItem = Static<typeof InputItem> & Record<string, unknown>

const Tool = Type.Object({ type: Type.String({ minLength: 1 }) })
export type ToolParam = Static<typeof Tool> & Record<string, unknown>

const ChosenTool = Type.Object({
  type: Type.String(),
  name: toNullable(Type.String({ minLength: 1 })),
  namespace: toNullable(Type.String()),
})
export type ChosenTool = Static<typeof ChosenTool>

const ToolChoice = Type.Union([
  Type.Union([Type.Literal('none'), Type.Literal('auto'), Type.Literal('required')]),
  Type.Object({
    ...ChosenTool.properties,
    mode: toNullable(Type.Union([Type.Literal('auto'), Type.Literal('required')])),
    tools: toNullable(Type.Array(ChosenTool)),
  }),
])
export type ToolChoice = Static<typeof ToolChoice>

const TextFormat = Type.Object({
  type: Type.Union([Type.Literal('text'), Type.Literal('json_object'), Type.Literal('json_schema')]),
})
export type TextFormat = Static<typeof TextFormat>

/** Checks a text format of type `json_schema`. @throws ProxyError `invalid_request` naming the field */
export const checkJsonSchemaFormat = createChecker(
  Type.Object({
    name: Type.String(),
    schema: Type.Record(Type.String(), Type.Unknown()),
    description: toNullable(Type.String()),
    strict: toNullable(Type.Boolean()),
  }),
)

/**
 * The fields that the proxy reads or relies on. Every other field is allowed, and forwarded to the engine unchanged.
 */
export const ResponsesRequest = Type.Object(
  {
    model: toNullable(Type.String()),
    input: toNullable(Type.Union([Type.String(), Type.Array(InputItem)])),
    instructions: toNullable(Type.String()),
    previous_response_id: toNullable(Type.String()),
    store: toNullable(Type.Boolean()),
    stream: toNullable(Type.Boolean()),
    include: toNullable(Type.Array(Type.String())),
    tools: toNullable(Type.Array(Tool)),
    tool_choice: toNullable(ToolChoice),
    parallel_tool_calls: toNullable(Type.Boolean()),
    max_tool_calls: toNullable(Type.Integer({ minimum: 0 })),
    reasoning: toNullable(
      Type.Object({ effort: toNullable(Type.String()), summary: toNullable(Type.String()) }),
    ),
    text: toNullable(Type.Object({ format: toNullable(TextFormat), verbosity: toNullable(Type.String()) })),
    truncation: toNullable(Type.Union([Type.Literal('auto'), Type.Literal('disabled')])),
    max_output_tokens: toNullable(Type.Integer({ minimum: 0 })),
    temperature: toNullable(Type.Number({ minimum: 0 })),
    top_p: toNullable(Type.Number({ minimum: 0, maximum: 1 })),
    top_logprobs: toNullable(Type.Integer({ minimum: 0 })),
    metadata: toNullable(Type.Record(Type.String(), Type.Unknown())),
    background: toNullable(Type.Boolean()),
    conversation: toNullable(Type.Union([Type.String(), Type.Object({ id: Type.String() })])),
    prompt: toNullable(Type.Object({ id: Type.String() })),
    return_token_ids: toNullable(Type.Boolean()),
    include_reasoning: toNullable(Type.Boolean()),
  },
  { $id: 'ResponsesRequest', description: 'OpenAI Responses; unknown fields are forwarded.' },
)
export type ResponsesRequest = Static<typeof ResponsesRequest>

/** Checks the body of a request. @throws ProxyError `invalid_request` naming the field */
export const checkResponsesRequest = createListChecker(ResponsesRequest, 'input', InputItem)
