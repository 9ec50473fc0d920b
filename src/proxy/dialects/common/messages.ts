/** Canonical messages and their parts, built by dialects that have their own content types. */
import type { ChatMessage, ToolCall } from '../../../protocol/canonical/messages.ts'

export type ContentPart = { type: 'text'; text: string } | { type: 'image_url'; image_url: { url: string } }

/**
 * Returns content: a single text as a string; the engine or the chat template joins several, as for Chat Completions.
 */
export function toMessageContent(parts: readonly ContentPart[]): string | ContentPart[] {
  const [first, second] = parts
  if (first === undefined) return ''
  return first.type === 'text' && second === undefined ? first.text : [...parts]
}

/**
 * Returns a text in place of a file that no engine can show to its model. An agent that read the file continues, and
 * its model knows why it sees nothing.
 */
export function describeFile(mediaType?: string): ContentPart {
  const ofType = mediaType === undefined ? '' : ` of type ${mediaType}`
  return {
    type: 'text',
    text: `[A file${ofType} was given here. It cannot be shown to this model.]`,
  }
}

/**
 * Marks a failed tool call: canonical tool messages have no flag for it, and the model must be able to tell a failure
 * from a result.
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
