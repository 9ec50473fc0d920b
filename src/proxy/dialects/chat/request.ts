/**
 * Validation of OpenAI Chat Completions requests, and conversion to canonical form:
 * https://platform.openai.com/docs/api-reference/chat/create
 */
import Type, { type Static } from 'typebox'
import { createInvalidError } from '../../../base/errors.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { createChecker, createListChecker, LargeInteger, toNullable } from '../common/check.ts'
import { parseChoiceCount } from '../common/choices.ts'
import type { DialectRequest } from '../common/dialect-request.ts'

/**
 * The fields of a part other than `type` are interpreted by the engine, so that new kinds of parts need no change here.
 */
const ContentPart = Type.Object({ type: Type.String() })

const MessageToolCall = Type.Object({
  id: Type.Optional(Type.String()),
  type: Type.Optional(Type.String()),
  function: Type.Optional(Type.Object({ name: Type.String(), arguments: Type.Optional(Type.Unknown()) })),
})

const Message = Type.Object({
  role: Type.String({ minLength: 1 }),
  content: toNullable(Type.Union([Type.String(), Type.Array(ContentPart)])),
  name: toNullable(Type.String()),
  tool_calls: toNullable(Type.Array(MessageToolCall)),
  tool_call_id: toNullable(Type.String()),
  reasoning_content: toNullable(Type.String()),
})

/**
 * The fields that the proxy reads or relies on. Every other field is allowed and forwarded to the engine unchanged, as
 * are further members of these fields.
 */
export const ChatCompletionRequest = Type.Object(
  {
    model: toNullable(Type.String()),
    messages: Type.Array(Message, { minItems: 1 }),
    stream: toNullable(Type.Boolean()),
    stream_options: toNullable(Type.Object({ include_usage: toNullable(Type.Boolean()) })),
    n: toNullable(Type.Integer({ minimum: 1 })),
    max_tokens: toNullable(Type.Integer({ minimum: 0 })),
    max_completion_tokens: toNullable(Type.Integer({ minimum: 0 })),
    temperature: toNullable(Type.Number({ minimum: 0 })),
    top_p: toNullable(Type.Number({ minimum: 0, maximum: 1 })),
    seed: toNullable(LargeInteger),
    stop: toNullable(Type.Union([Type.String(), Type.Array(Type.String())])),
    logprobs: toNullable(Type.Boolean()),
    top_logprobs: toNullable(Type.Integer({ minimum: 0 })),
    return_token_ids: toNullable(Type.Boolean()),
    include_reasoning: toNullable(Type.Boolean()),
    tools: toNullable(Type.Array(Type.Object({ type: Type.String() }))),
    tool_choice: toNullable(Type.Union([Type.String(), Type.Object({ type: Type.String() })])),
    parallel_tool_calls: toNullable(Type.Boolean()),
    response_format: toNullable(Type.Object({ type: Type.String() })),
  },
  { $id: 'ChatCompletionRequest', description: 'OpenAI Chat Completions; unknown fields are forwarded.' },
)

const checkFunction = createChecker(
  Type.Object({ function: Type.Object({ name: Type.String({ minLength: 1 }) }) }),
)

const check = createListChecker(ChatCompletionRequest, 'messages', Message)

/**
 * Validates a Chat Completions body and lowers it. The body is neither copied nor changed.
 * @throws ProxyError `invalid_request` naming the field
 */
export function lowerChatRequest(raw: unknown, memo: PartMemo = NO_MEMO): DialectRequest {
  const request = check(raw, memo)
  if (request.logprobs !== true && (request.top_logprobs ?? 0) > 0)
    throw createInvalidError("'logprobs' must be true for 'top_logprobs'", 'top_logprobs')
  checkFunctions(request)
  return {
    kind: 'chat',
    body: request as ChatBody,
    stream: request.stream === true,
    ...parseChoiceCount(request.n),
    responseOptions: {
      logprobs: request.logprobs === true,
      tokenIds: request.return_token_ids === true,
      reasoning: request.include_reasoning !== false,
      streamUsage: request.stream_options?.include_usage === true,
    },
  }
}

/** Rejects tools in the form of the Responses API, `{"type": "function", "name": …}`. */
function checkFunctions({ tools, tool_choice: choice }: Static<typeof ChatCompletionRequest>): void {
  for (const [index, tool] of (tools ?? []).entries()) {
    if (tool.type === 'function') checkFunction(tool, `tools.${index}`)
  }
  if (typeof choice === 'object' && choice?.type === 'function') checkFunction(choice, 'tool_choice')
}
