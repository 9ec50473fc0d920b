/**
 * Validates request bodies. The schemas are vLLM's, limited to the fields that this server reads; the engine validates
 * the sampling fields.
 */
import Type, { type Static } from 'typebox'
import { createInvalidError } from '../../base/errors.ts'
import { createChecker, toNullable } from '../../proxy/dialects/common/check.ts'

const TokenIds = Type.Array(Type.Integer())

const Common = {
  model: toNullable(Type.String()),
  request_id: toNullable(Type.String()),
  stream: toNullable(Type.Boolean()),
  stream_options: toNullable(Type.Object({ include_usage: toNullable(Type.Boolean()) })),
  return_token_ids: toNullable(Type.Boolean()),
}

const Message = Type.Object({ role: Type.String() })
const Tool = Type.Object({ type: Type.String(), function: Type.Object({ name: Type.String() }) })

const ChatRequest = Type.Object({
  ...Common,
  messages: Type.Array(Message, { minItems: 1 }),
  tools: toNullable(Type.Array(Tool)),
  tool_choice: Type.Optional(Type.Unknown()),
  logprobs: toNullable(Type.Boolean()),
  top_logprobs: toNullable(Type.Integer()),
})

const CompletionRequest = Type.Object({
  ...Common,
  prompt: Type.Union([
    Type.String(),
    TokenIds,
    Type.Array(Type.String(), { minItems: 1, maxItems: 1 }),
    Type.Array(TokenIds, { minItems: 1, maxItems: 1 }),
  ]),
  logprobs: toNullable(Type.Union([Type.Integer(), Type.Boolean()])),
  prompt_logprobs: toNullable(Type.Integer({ minimum: 0, maximum: 20 })),
})

const TokenizeRequest = Type.Union([
  Type.Object({ prompt: Type.String(), return_token_strs: toNullable(Type.Boolean()) }),
  Type.Object({
    messages: Type.Array(Message, { minItems: 1 }),
    return_token_strs: toNullable(Type.Boolean()),
  }),
])

type ChatRequest = Static<typeof ChatRequest>
export type CompletionRequest = Static<typeof CompletionRequest>

/** The fields that chat and completion requests have in common. */
export type AnyCompletionRequest = Pick<ChatRequest, keyof typeof Common>

const checkChatShape = createChecker(ChatRequest)
const checkCompletionShape = createChecker(CompletionRequest)

/**
 * Validates a chat request.
 * @throws ProxyError `invalid_request`, with vLLM's message for well-formed but contradictory fields
 */
export function checkChatRequest(raw: unknown): ChatRequest {
  const body = checkChatShape(raw)
  rejectStreamOptions(body)
  if (body.top_logprobs && body.logprobs !== true) {
    throw createInvalidError('when using `top_logprobs`, `logprobs` must be set to true.', 'top_logprobs')
  }
  if (body.tools?.length === 0) {
    throw createInvalidError(
      '`tools` must not be an empty array. Either provide tools or omit the field.',
      'tools',
    )
  }
  const choosesTool =
    body.tool_choice !== undefined && body.tool_choice !== null && body.tool_choice !== 'none'
  if (choosesTool && !body.tools)
    throw createInvalidError('When using `tool_choice`, `tools` must be set.', 'tool_choice')
  return body
}

/** Validates a completion request. @throws ProxyError `invalid_request` */
export function checkCompletionRequest(raw: unknown): CompletionRequest {
  const body = checkCompletionShape(raw)
  rejectStreamOptions(body)
  if (body.stream && body.prompt_logprobs) {
    throw createInvalidError('`prompt_logprobs` are not available when `stream=True`.', 'prompt_logprobs')
  }
  return body
}

export const checkTokenizeRequest = createChecker(TokenizeRequest)
export const checkDetokenizeRequest = createChecker(Type.Object({ tokens: TokenIds }))
export const checkWeightVersionRequest = createChecker(Type.Object({ new_version: Type.String() }))

function rejectStreamOptions(body: AnyCompletionRequest): void {
  if (body.stream_options && body.stream !== true) {
    throw createInvalidError('Stream options can only be defined when `stream=True`.', 'stream_options')
  }
}
