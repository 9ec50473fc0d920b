/**
 * Prompts and completions as attributes of spans, exported only if enabled. Names and shapes are those of the semantic
 * conventions for generative AI, 1.41 (`gen-ai-input-messages.json` and `gen-ai-output-messages.json`, next to the page
 * that `attributes.ts` names); the values are JSON text, because the SDK supports no nested attributes.
 */
import type { Attributes } from '@opentelemetry/api'
import type { ChatMessage, Tool, ToolCall } from '../../protocol/canonical/messages.ts'
import type { TurnStart } from '../../protocol/canonical/spans.ts'
import { writePromptJson } from '../session/prompts/prompt-chunks.ts'
import type { TurnOutcome } from '../store/port/turn-store.ts'

type SpanPart =
  | { type: 'text' | 'reasoning'; content: string }
  | { type: 'tool_call'; id: string; name: string; arguments: unknown }
  | { type: 'tool_call_response'; id: string; response: string }
  | { type: 'uri'; modality: 'image'; uri: string }

interface SpanMessage {
  role: string
  parts: SpanPart[]
}

/** Characters of a part's JSON besides its text. */
const PART_CHARS = 64

/** A budget of characters. Longer text is truncated, with a note of how much is missing. */
class TextBudget {
  #left: number

  constructor(chars: number) {
    this.#left = chars
  }

  get isFull(): boolean {
    return this.#left <= 0
  }

  /** @param length length of the complete text, of which `text` is the beginning */
  take(text: string, length = text.length): string {
    const kept = Math.max(0, Math.min(text.length, this.#left))
    this.#left -= length + PART_CHARS
    return kept === length ? text : `${text.slice(0, kept)}… (${length - kept} more characters)`
  }
}

/**
 * Returns the latest messages that fit, so that a long conversation costs no more than a short one.
 * @param chars longest text of an attribute, in characters
 */
export function buildInputAttributes(
  { lastMessage, tools, promptPieces }: TurnStart,
  chars: number,
): Attributes {
  const room = new TextBudget(chars)
  const messages: SpanMessage[] = []
  let message = lastMessage
  for (; message !== undefined && !room.isFull; message = message.parent)
    messages.unshift(toSpanMessage(message.value, room))
  if (promptPieces.length > 0)
    messages.push({
      role: 'user',
      parts: [{ type: 'text', content: getPromptStart(promptPieces, room, chars) }],
    })
  return {
    'gen_ai.input.messages': JSON.stringify(messages),
    ...(message !== undefined && { 'llm_proxy.input.left_out': message.depth }),
    ...(tools !== null && tools.length <= chars && { 'gen_ai.tool.definitions': toDefinitions(tools) }),
  }
}

export function buildOutputAttributes(outcome: TurnOutcome, chars: number): Attributes {
  const { completionText, reasoning, toolCalls, finishReason } = outcome
  const room = new TextBudget(chars)
  const parts = toResponseParts(completionText, reasoning, JSON.parse(toolCalls) as ToolCall[], room)
  const reason = finishReason === 'tool_calls' ? 'tool_call' : (finishReason ?? 'error')
  return { 'gen_ai.output.messages': JSON.stringify([{ role: 'assistant', parts, finish_reason: reason }]) }
}

/** Returns the beginning of a prompt; only what is shown is joined. */
function getPromptStart(chunks: readonly string[], room: TextBudget, chars: number): string {
  let [text, length] = ['', 1]
  for (const chunk of chunks) {
    if (text.length < chars) text += chunk
    length += chunk.length
  }
  return room.take(text.length + 1 === length ? [...writePromptJson([text])].join('') : text, length)
}

function toSpanMessage(message: ChatMessage, room: TextBudget): SpanMessage {
  const { role } = message
  if (role === 'tool') {
    const response = room.take(getText(message.content))
    return { role, parts: [{ type: 'tool_call_response', id: message.tool_call_id, response }] }
  }
  if (role !== 'assistant') return { role, parts: toContentParts(message.content, room) }
  const calls = (message.tool_calls ?? []).filter((call) => call.type === 'function')
  return { role, parts: toResponseParts(getText(message.content), message.reasoning_content, calls, room) }
}

function toResponseParts(
  text: string | null,
  reasoning: string | null | undefined,
  calls: readonly ToolCall[],
  room: TextBudget,
): SpanPart[] {
  const parts: SpanPart[] = []
  if (reasoning) parts.push({ type: 'reasoning', content: room.take(reasoning) })
  if (text) parts.push({ type: 'text', content: room.take(text) })
  for (const { id, function: called } of calls) {
    if (room.isFull) break
    const { name } = called
    parts.push({ type: 'tool_call', id, name, arguments: parse(room.take(called.arguments)) })
  }
  return parts
}

/** Converts message content; an image is replaced by a note. */
function toContentParts(content: unknown, room: TextBudget): SpanPart[] {
  if (!Array.isArray(content)) return [{ type: 'text', content: room.take(getText(content)) }]
  const parts: SpanPart[] = []
  for (const part of content) {
    if (room.isFull) break
    parts.push(toContentPart(part, room))
  }
  return parts
}

function toContentPart(part: unknown, room: TextBudget): SpanPart {
  const { text, image_url: image } = Object(part) as { text?: unknown; image_url?: { url?: unknown } }
  if (typeof text === 'string') return { type: 'text', content: room.take(text) }
  const url = image?.url
  if (typeof url !== 'string') return { type: 'text', content: room.take(JSON.stringify(part)) }
  return url.startsWith('data:')
    ? { type: 'text', content: room.take('(an image)') }
    : { type: 'uri', modality: 'image', uri: room.take(url) }
}

function getText(content: unknown): string {
  if (typeof content === 'string') return content
  if (content === null || content === undefined) return ''
  if (!Array.isArray(content)) return JSON.stringify(content)
  return content.map((part) => (Object(part) as { text?: unknown }).text ?? '').join('\n')
}

/** Parses JSON text of an object; other text is returned unchanged. */
function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

function toDefinitions(tools: string): string {
  const known = (JSON.parse(tools) as Tool[]).filter((tool) => tool.type === 'function')
  return JSON.stringify(known.map((tool) => ({ type: 'function', ...tool.function })))
}
