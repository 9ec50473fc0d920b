/**
 * Schemas of vLLM's request bodies, limited to the fields that this server reads; the engine checks the sampling
 * fields.
 */
import Type, { type Static } from 'typebox'
import { ProxyError } from '../../base/errors.ts'
import { createChecker, nullable } from '../../proxy/dialects/common/check.ts'

const TokenIds = Type.Array(Type.Integer())

const Common = {
  model: nullable(Type.String()),
  request_id: nullable(Type.String()),
  stream: nullable(Type.Boolean()),
  stream_options: nullable(Type.Object({ include_usage: nullable(Type.Boolean()) })),
  return_token_ids: nullable(Type.Boolean()),
}

const Message = Type.Object({ role: Type.String() })
const Tool = Type.Object({ type: Type.String(), function: Type.Object({ name: Type.String() }) })

const ChatRequest = Type.Object({
  ...Common,
  messages: Type.Array(Message, { minItems: 1 }),
  tools: nullable(Type.Array(Tool)),
  tool_choice: Type.Optional(Type.Unknown()),
  logprobs: nullable(Type.Boolean()),
  top_logprobs: nullable(Type.Integer()),
})

const CompletionRequest = Type.Object({
  ...Common,
  prompt: Type.Union([
    Type.String(),
    TokenIds,
    Type.Array(Type.String(), { minItems: 1, maxItems: 1 }),
    Type.Array(TokenIds, { minItems: 1, maxItems: 1 }),
  ]),
  logprobs: nullable(Type.Union([Type.Integer(), Type.Boolean()])),
  prompt_logprobs: nullable(Type.Integer({ minimum: 0, maximum: 20 })),
})

const TokenizeRequest = Type.Union([
  Type.Object({ prompt: Type.String(), return_token_strs: nullable(Type.Boolean()) }),
  Type.Object({
    messages: Type.Array(Message, { minItems: 1 }),
    return_token_strs: nullable(Type.Boolean()),
  }),
])

type ChatRequest = Static<typeof ChatRequest>
export type CompletionRequest = Static<typeof CompletionRequest>

/** The common fields of both kinds of completion request. */
export type AnyCompletionRequest = Pick<ChatRequest, keyof typeof Common>

const checkChatShape = createChecker(ChatRequest)
const checkCompletionShape = createChecker(CompletionRequest)

/**
 * Checks a chat request.
 * @throws ProxyError `invalid_request`, with vLLM's message for well-formed but contradictory fields
 */
export function checkChatRequest(raw: unknown): ChatRequest {
  const body = checkChatShape(raw)
  rejectStreamOptions(body)
  if (body.top_logprobs && body.logprobs !== true) {
    throw invalid('when using `top_logprobs`, `logprobs` must be set to true.', 'top_logprobs')
  }
  if (body.tools?.length === 0) {
    throw invalid('`tools` must not be an empty array. Either provide tools or omit the field.', 'tools')
  }
  const choosesTool =
    body.tool_choice !== undefined && body.tool_choice !== null && body.tool_choice !== 'none'
  if (choosesTool && !body.tools)
    throw invalid('When using `tool_choice`, `tools` must be set.', 'tool_choice')
  return body
}

/** Checks a completion request. @throws ProxyError `invalid_request` */
export function checkCompletionRequest(raw: unknown): CompletionRequest {
  const body = checkCompletionShape(raw)
  rejectStreamOptions(body)
  if (body.stream && body.prompt_logprobs) {
    throw invalid('`prompt_logprobs` are not available when `stream=True`.', 'prompt_logprobs')
  }
  return body
}

export const checkTokenizeRequest = createChecker(TokenizeRequest)
export const checkDetokenizeRequest = createChecker(Type.Object({ tokens: TokenIds }))
export const checkWeightVersionRequest = createChecker(Type.Object({ new_version: Type.String() }))

function rejectStreamOptions(body: AnyCompletionRequest): void {
  if (body.stream_options && body.stream !== true) {
    throw invalid('Stream options can only be defined when `stream=True`.', 'stream_options')
  }
}

function invalid(message: string, param: string): ProxyError {
  return new ProxyError('invalid_request', message, { param })
}
