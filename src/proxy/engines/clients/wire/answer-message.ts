/** The message of an engine's answer, or a piece of it in a stream, as a generation event. */
import { ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../../../../base/json.ts'
import type { GenerationDelta } from '../../../../protocol/canonical/events.ts'
import { isNestedTooDeeply } from '../../../../protocol/json/nesting.ts'
import type { ToolCallAssembler, ToolCallPiece } from './tool-call-assembler.ts'

/** Fields that have a place in the events. */
const NAMED_FIELDS = new Set(['role', 'content', 'reasoning', 'reasoning_content', 'refusal', 'tool_calls'])

/**
 * Adds what a message says to an event.
 * @param toolCalls of the same answer
 * @throws ProxyError `engine_failed` for arguments of a tool call that cannot be written as text
 */
export function addMessage(
  delta: GenerationDelta,
  message: Record<string, unknown>,
  streamed: boolean,
  toolCalls: ToolCallAssembler,
): void {
  const { content, thinking } = partsOf(message.content)
  // A streamed message opens with empty text that says nothing; a whole one that is empty was answered empty.
  if (content !== undefined && !(streamed && content === '')) delta.content = content
  // vLLM renamed it in 2025-11 and had both for a while, one the copy of the other.
  const reasoning = message.reasoning ?? message.reasoning_content ?? thinking
  if (typeof reasoning === 'string' && reasoning !== '') delta.reasoning = reasoning
  if (typeof message.refusal === 'string' && message.refusal !== '') delta.refusal = message.refusal
  if (Array.isArray(message.tool_calls) && message.tool_calls.length > 0) {
    const pieces = message.tool_calls.filter(isRecord)
    // In a whole message each is a call, though a model that writes ids itself may give two of them the same.
    delta.toolCalls = pieces.map((piece, place) => {
      const read = toolCallPiece(piece)
      return streamed ? toolCalls.assign(read) : { ...read, index: place }
    })
  }
  for (const field in message) {
    if (NAMED_FIELDS.has(field) || message[field] === null) continue
    delta.extra ??= {}
    delta.extra[field] = message[field]
  }
}

interface SaidParts {
  content?: string
  thinking?: string
}

/** Text, or parts of text and of thinking, whose text is in parts again (Mistral's API). */
function partsOf(content: unknown): SaidParts {
  if (typeof content === 'string') return { content }
  if (!Array.isArray(content)) return {}
  const parts = content.filter(isRecord)
  const said = parts.flatMap(({ text }) => (typeof text === 'string' ? [text] : []))
  const thought = parts.flatMap(({ thinking }) => partsOf(thinking).content ?? [])
  return {
    ...(said.length > 0 && { content: said.join('') }),
    ...(thought.length > 0 && { thinking: thought.join('') }),
  }
}

/** Some engines leave the index out, and write null, or nothing, for what a piece does not carry. */
function toolCallPiece(piece: Record<string, unknown>): ToolCallPiece {
  const { index, function: called } = piece
  const { name, arguments: args } = isRecord(called) ? called : {}
  const id = textOf(piece.id)
  const text = argumentsText(args)
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

function textOf(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined
}

/** Text by the book; llama.cpp's server wrote the object itself for a while, and some gateways do. */
function argumentsText(args: unknown): string | undefined {
  if (typeof args === 'string') return args
  if (!isRecord(args)) return undefined
  if (isNestedTooDeeply(args))
    throw new ProxyError('engine_failed', 'The engine nested its answer too deeply')
  return JSON.stringify(args)
}
