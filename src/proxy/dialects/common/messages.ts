/** Builders of canonical messages and their parts, for dialects with their own content types. */
import type { ChatMessage, ToolCall } from '../../../protocol/canonical/messages.ts'

export type ContentPart = { type: 'text'; text: string } | { type: 'image_url'; image_url: { url: string } }

/**
 * Converts parts to the content of a message. A single text becomes a string; several parts stay a list, which the
 * engine or the chat template joins, as for Chat Completions.
 */
export function toMessageContent(parts: readonly ContentPart[]): string | ContentPart[] {
  const [first, second] = parts
  if (first === undefined) return ''
  return first.type === 'text' && second === undefined ? first.text : [...parts]
}

/**
 * Returns a text that replaces a file that no engine can show to its model, so that the agent can continue and the
 * model knows why the file has no content.
 */
export function describeFile(mediaType?: string): ContentPart {
  const ofType = mediaType === undefined ? '' : ` of type ${mediaType}`
  return {
    type: 'text',
    text: `[A file${ofType} was given here. It cannot be shown to this model.]`,
  }
}

/**
 * The prefix of a failed tool call's result: canonical tool messages have no flag for failures, and the model must
 * recognize one.
 */
const ERROR_PREFIX = 'Error: '

export function markAsError([first, ...rest]: readonly ContentPart[]): ContentPart[] {
  if (first?.type === 'text') return [{ type: 'text', text: ERROR_PREFIX + first.text }, ...rest]
  return [{ type: 'text', text: ERROR_PREFIX }, ...(first ? [first] : []), ...rest]
}

export function buildSystemMessage(content: string): ChatMessage {
  return { role: 'system', content }
}

export function buildAssistantMessage(
  content: string,
  reasoning: string,
  toolCalls: ToolCall[],
): ChatMessage {
  return {
    role: 'assistant',
    content: content === '' && toolCalls.length > 0 ? null : content,
    ...(reasoning !== '' && { reasoning_content: reasoning }),
    ...(toolCalls.length > 0 && { tool_calls: toolCalls }),
  }
}
