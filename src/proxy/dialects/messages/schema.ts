/** Schemas of Anthropic Messages requests: https://platform.claude.com/docs/en/api/messages */
import Type, { type Static } from 'typebox'
import { toNullable } from '../common/check.ts'

const Json = Type.Record(Type.String(), Type.Unknown())

/** A content block. Its other fields depend on its type; `blocks.ts` handles the types that a prompt can contain. */
const Block = Type.Object({ type: Type.String() })
export type Block = Static<typeof Block> & Record<string, unknown>

export const Content = Type.Union([Type.String(), Type.Array(Block)])

export const Message = Type.Object({
  role: Type.Union([Type.Literal('user'), Type.Literal('assistant'), Type.Literal('system')]),
  content: Content,
})
export type MessageParam = Static<typeof Message>

const Tool = Type.Object({
  /** Absent only from tools of type `mcp_toolset`. */
  name: Type.Optional(Type.String({ minLength: 1 })),
  type: toNullable(Type.String()),
  description: toNullable(Type.String()),
  input_schema: Type.Optional(Json),
  strict: toNullable(Type.Boolean()),
  defer_loading: toNullable(Type.Boolean()),
})
export type ToolParam = Static<typeof Tool>

const ToolChoice = Type.Object({
  type: Type.Union([Type.Literal('auto'), Type.Literal('any'), Type.Literal('tool'), Type.Literal('none')]),
  /** Required for type `tool`, and for that type only. */
  name: toNullable(Type.String()),
  disable_parallel_tool_use: toNullable(Type.Boolean()),
})
export type ToolChoice = Static<typeof ToolChoice>

const OutputFormat = Type.Object({ type: Type.Literal('json_schema'), schema: Json })

/** The fields that determine the prompt, and thereby its token count. The others concern sampling. */
const prompt = {
  model: Type.String({ minLength: 1 }),
  messages: Type.Array(Message, { minItems: 1 }),
  system: toNullable(
    Type.Union([Type.String(), Type.Array(Type.Object({ type: Type.Literal('text'), text: Type.String() }))]),
  ),
  tools: toNullable(Type.Array(Tool)),
  tool_choice: toNullable(ToolChoice),
  thinking: toNullable(
    Type.Object({
      type: Type.String(),
      budget_tokens: toNullable(Type.Integer({ minimum: 0 })),
      display: toNullable(Type.String()),
    }),
  ),
  output_config: toNullable(
    Type.Object({ effort: toNullable(Type.String()), format: toNullable(OutputFormat) }),
  ),
  output_format: toNullable(OutputFormat),
}

export const MessagesRequest = Type.Object(
  {
    ...prompt,
    max_tokens: Type.Integer({ minimum: 0 }),
    stream: toNullable(Type.Boolean()),
    stop_sequences: toNullable(Type.Array(Type.String({ minLength: 1 }))),
    temperature: toNullable(Type.Number({ minimum: 0 })),
    top_p: toNullable(Type.Number({ minimum: 0, maximum: 1 })),
    top_k: toNullable(Type.Integer({ minimum: 0 })),
    metadata: toNullable(Type.Object({ user_id: toNullable(Type.String()) })),
    context_management: toNullable(
      Type.Object({ edits: toNullable(Type.Array(Type.Object({ type: Type.String() }))) }),
    ),
    mcp_servers: toNullable(Type.Array(Json)),
  },
  { $id: 'MessagesRequest', description: 'Anthropic Messages; unknown fields are forwarded.' },
)
export type MessagesRequest = Static<typeof MessagesRequest>

export const CountTokensRequest = Type.Object(prompt, {
  $id: 'CountTokensRequest',
  description: 'Anthropic token counting: a Messages request without sampling parameters.',
})
export type CountTokensRequest = Static<typeof CountTokensRequest>
