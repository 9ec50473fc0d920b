/**
 * Canonical messages: OpenAI chat messages with the extensions that LiteLLM and vLLM share. Requests of all dialects
 * are converted to them; the store records them, and engines receive them.
 */
import type {
  ChatCompletionMessageFunctionToolCall,
  ChatCompletionMessageParam,
  ChatCompletionTokenLogprob,
  ChatCompletionTool,
} from 'openai/resources/chat/completions'
import type { CompletionUsage } from 'openai/resources/completions'

/**
 * A message as an agent sends it, with the reasoning that agents of reasoning models echo. Unknown fields are
 * preserved.
 */
export type ChatMessage = ChatCompletionMessageParam & {
  reasoning_content?: string | null
  provider_specific_fields?: Record<string, unknown> | null
}

export type Tool = ChatCompletionTool

/** A finished tool call. `arguments` is the text that the model wrote, valid JSON or not. */
export type ToolCall = ChatCompletionMessageFunctionToolCall

/** A delta of a tool call in a stream: `id` and `name` arrive once, `arguments` in several deltas. */
export interface ToolCallDelta {
  index: number
  id?: string
  type?: 'function'
  function?: { name?: string; arguments?: string }
}

export type TokenLogprob = ChatCompletionTokenLogprob
export type Usage = CompletionUsage
