/** OpenAI Chat Completions, the request: https://platform.openai.com/docs/api-reference/chat/create */
import Type, { type Static } from 'typebox'
import type { ChatBody } from '../../../protocol/canonical/request.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { createChecker, createListChecker, LargeInteger, nullable } from '../common/check.ts'
import { parseChoiceCount } from '../common/choices.ts'
import type { DialectRequest } from '../common/dialect-request.ts'
import { invalid } from '../common/request-errors.ts'

/** The engine interprets fields other than `type`: text, images, audio, files, and later kinds of parts. */
const ContentPart = Type.Object({ type: Type.String() })

const MessageToolCall = Type.Object({
  id: Type.Optional(Type.String()),
  type: Type.Optional(Type.String()),
  function: Type.Optional(Type.Object({ name: Type.String(), arguments: Type.Optional(Type.Unknown()) })),
})

const Message = Type.Object({
  role: Type.String({ minLength: 1 }),
  content: nullable(Type.Union([Type.String(), Type.Array(ContentPart)])),
  name: nullable(Type.String()),
  tool_calls: nullable(Type.Array(MessageToolCall)),
  tool_call_id: nullable(Type.String()),
  reasoning_content: nullable(Type.String()),
})

/**
 * The fields that the proxy reads or relies on. Every other field is allowed and forwarded to the engine unchanged, as
 * are further members of these fields.
 */
export const ChatCompletionRequest = Type.Object(
  {
    model: nullable(Type.String()),
    messages: Type.Array(Message, { minItems: 1 }),
    stream: nullable(Type.Boolean()),
    stream_options: nullable(Type.Object({ include_usage: nullable(Type.Boolean()) })),
    n: nullable(Type.Integer({ minimum: 1 })),
    max_tokens: nullable(Type.Integer({ minimum: 0 })),
    max_completion_tokens: nullable(Type.Integer({ minimum: 0 })),
    temperature: nullable(Type.Number({ minimum: 0 })),
    top_p: nullable(Type.Number({ minimum: 0, maximum: 1 })),
    seed: nullable(LargeInteger),
    stop: nullable(Type.Union([Type.String(), Type.Array(Type.String())])),
    logprobs: nullable(Type.Boolean()),
    top_logprobs: nullable(Type.Integer({ minimum: 0 })),
    return_token_ids: nullable(Type.Boolean()),
    include_reasoning: nullable(Type.Boolean()),
    tools: nullable(Type.Array(Type.Object({ type: Type.String() }))),
    tool_choice: nullable(Type.Union([Type.String(), Type.Object({ type: Type.String() })])),
    parallel_tool_calls: nullable(Type.Boolean()),
    response_format: nullable(Type.Object({ type: Type.String() })),
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
    throw invalid("'logprobs' must be true for 'top_logprobs'", 'top_logprobs')
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
