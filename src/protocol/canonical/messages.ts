/**
 * Canonical messages: OpenAI chat messages with the extensions that LiteLLM and vLLM share. Every dialect lowers to
 * them; the store keeps them; engines get them.
 */
import type {
  ChatCompletionMessageFunctionToolCall,
  ChatCompletionMessageParam,
  ChatCompletionTokenLogprob,
  ChatCompletionTool,
} from 'openai/resources/chat/completions'
import type { CompletionUsage } from 'openai/resources/completions'

/** A message as an agent sends it, plus the reasoning that reasoning models echo. Unknown fields are kept. */
export type ChatMessage = ChatCompletionMessageParam & {
  reasoning_content?: string | null
  provider_specific_fields?: Record<string, unknown> | null
}

export type Tool = ChatCompletionTool

/** A finished tool call; `arguments` is the text the model wrote, valid JSON or not. */
export type ToolCall = ChatCompletionMessageFunctionToolCall

/** A piece of a tool call in a stream: `id` and `name` come once, `arguments` in pieces. */
export interface ToolCallDelta {
  index: number
  id?: string
  type?: 'function'
  function?: { name?: string; arguments?: string }
}

export type TokenLogprob = ChatCompletionTokenLogprob
export type Usage = CompletionUsage
