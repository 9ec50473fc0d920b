/** Conversion of the message of an engine's response, or of a chunk of a stream, to a generation event. */
import { ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../../../../base/json.ts'
import type { GenerationDelta } from '../../../../protocol/canonical/events.ts'
import { isNestedTooDeeply } from '../../../../protocol/json/nesting.ts'
import type { ToolCallAssembler, ToolCallChunk } from './tool-call-assembler.ts'

/** Fields with a counterpart in the events. */
const NAMED_FIELDS = new Set(['role', 'content', 'reasoning', 'reasoning_content', 'refusal', 'tool_calls'])

/**
 * Adds the fields of a message to an event.
 * @param toolCalls of the same response
 * @throws ProxyError `engine_failed` for arguments of a tool call that cannot be serialized
 */
export function addMessage(
  delta: GenerationDelta,
  message: Record<string, unknown>,
  streamed: boolean,
  toolCalls: ToolCallAssembler,
): void {
  const { content, thinking } = toParts(message.content)
  // A streamed message opens with empty text without meaning; in a complete one empty text is the content.
  if (content !== undefined && !(streamed && content === '')) delta.content = content
  // vLLM renamed the field in 2025-11 and sent both for a while, one a copy of the other.
  const reasoning = message.reasoning ?? message.reasoning_content ?? thinking
  if (typeof reasoning === 'string' && reasoning !== '') delta.reasoning = reasoning
  if (typeof message.refusal === 'string' && message.refusal !== '') delta.refusal = message.refusal
  if (Array.isArray(message.tool_calls) && message.tool_calls.length > 0) {
    const entries = message.tool_calls.filter(isRecord)
    // In a complete message each entry is a tool call, though a model that generates ids may repeat one.
    delta.toolCalls = entries.map((entry, index) => {
      const read = toToolCallPiece(entry)
      return streamed ? toolCalls.assign(read) : { ...read, index }
    })
  }
  for (const field in message) {
    if (NAMED_FIELDS.has(field) || message[field] === null) continue
    delta.extra ??= {}
    delta.extra[field] = message[field]
  }
}

interface MessageParts {
  content?: string
  thinking?: string
}

/**
 * Splits content: it is text, or parts of text and of thinking, and the latter consist of parts again (Mistral's API).
 */
function toParts(content: unknown): MessageParts {
  if (typeof content === 'string') return { content }
  if (!Array.isArray(content)) return {}
  const parts = content.filter(isRecord)
  const texts = parts.flatMap(({ text }) => (typeof text === 'string' ? [text] : []))
  const thoughts = parts.flatMap(({ thinking }) => toParts(thinking).content ?? [])
  return {
    ...(texts.length > 0 && { content: texts.join('') }),
    ...(thoughts.length > 0 && { thinking: thoughts.join('') }),
  }
}

/** Converts an entry. Some engines omit the index, and omit fields that a chunk lacks or set them to null. */
function toToolCallPiece(entry: Record<string, unknown>): ToolCallChunk {
  const { index, function: called } = entry
  const { name, arguments: args } = isRecord(called) ? called : {}
  const id = readText(entry.id)
  const text = toArgumentsText(args)
  return {
    index: typeof index === 'number' ? index : undefined,
    ...(id !== undefined && { id, type: 'function' }),
    ...(isRecord(called) && {
      function: {
        ...(typeof name === 'string' && { name }),
        ...(text !== undefined && { arguments: text }),
      },
    }),
  }
}

function readText(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined
}

/**
 * Returns the arguments as text. The API requires text; llama.cpp's server sent an object for a while, and some
 * gateways do.
 */
function toArgumentsText(args: unknown): string | undefined {
  if (typeof args === 'string') return args
  if (!isRecord(args)) return undefined
  if (isNestedTooDeeply(args))
    throw new ProxyError('engine_failed', 'The response of the engine is nested too deeply')
  return JSON.stringify(args)
}
