/**
 * Prompts and completions as attributes of spans, exported only if the operator enables them. Names and shapes are
 * those of the semantic conventions for generative AI, 1.41 (`gen-ai-input-messages.json` and
 * `gen-ai-output-messages.json`, in the repository that `attributes.ts` cites); values are JSON text, because the SDK
 * supports no nested attributes.
 */
import type { Attributes } from '@opentelemetry/api'
import type { ChatMessage, Tool, ToolCall } from '../../protocol/canonical/messages.ts'
import type { TurnStart } from '../../protocol/canonical/spans.ts'
import { writePromptJson } from '../session/prompts/prompt-chunks.ts'
import type { TurnOutcome } from '../store/port/turn-store.ts'

/** A part of a message, with the names of the semantic conventions. */
type SpanPart =
  | { type: 'text' | 'reasoning'; content: string }
  | { type: 'tool_call'; id: string; name: string; arguments: unknown }
  | { type: 'tool_call_response'; id: string; response: string }
  | { type: 'uri'; modality: 'image'; uri: string }

/** A message, with the names of the semantic conventions. */
interface SpanMessage {
  role: string
  parts: SpanPart[]
}

/** The approximate length of the JSON of a part without its text, in characters. */
const PART_CHARS = 64

/** A budget of characters for one attribute. Texts beyond it are truncated, with a note of how much is missing. */
class TextBudget {
  #left: number

  constructor(chars: number) {
    this.#left = chars
  }

  get isFull(): boolean {
    return this.#left <= 0
  }

  /**
   * Returns as much of a text as the budget allows, and charges the whole text.
   * @param length length of the complete text, of which `text` is the beginning
   */
  take(text: string, length = text.length): string {
    const kept = Math.max(0, Math.min(text.length, this.#left))
    this.#left -= length + PART_CHARS
    return kept === length ? text : `${text.slice(0, kept)}… (${length - kept} more characters)`
  }
}

/**
 * Returns the tools and the latest messages that fit, so that a long conversation costs no more than a short one.
 * @param chars the maximum length of an attribute, in characters
 */
export function buildInputAttributes(
  { lastMessage, tools, promptPieces }: TurnStart,
  chars: number,
): Attributes {
  const budget = new TextBudget(chars)
  const messages: SpanMessage[] = []
  let message = lastMessage
  for (; message !== undefined && !budget.isFull; message = message.parent)
    messages.unshift(toSpanMessage(message.value, budget))
  if (promptPieces.length > 0)
    messages.push({
      role: 'user',
      parts: [{ type: 'text', content: getPromptStart(promptPieces, budget, chars) }],
    })
  return {
    'gen_ai.input.messages': JSON.stringify(messages),
    ...(message !== undefined && { 'llm_proxy.input.left_out': message.depth }),
    ...(tools !== null && tools.length <= chars && { 'gen_ai.tool.definitions': toDefinitions(tools) }),
  }
}

export function buildOutputAttributes(outcome: TurnOutcome, chars: number): Attributes {
  const { completionText, reasoning, toolCalls, finishReason } = outcome
  const budget = new TextBudget(chars)
  const parts = toResponseParts(completionText, reasoning, JSON.parse(toolCalls) as ToolCall[], budget)
  const reason = finishReason === 'tool_calls' ? 'tool_call' : (finishReason ?? 'error')
  return { 'gen_ai.output.messages': JSON.stringify([{ role: 'assistant', parts, finish_reason: reason }]) }
}

/** Returns the beginning of a prompt. Only chunks within the budget are joined. */
function getPromptStart(chunks: readonly string[], budget: TextBudget, chars: number): string {
  // The chunks lack the last character of the JSON text.
  let [text, length] = ['', 1]
  for (const chunk of chunks) {
    if (text.length < chars) text += chunk
    length += chunk.length
  }
  return budget.take(text.length + 1 === length ? [...writePromptJson([text])].join('') : text, length)
}

function toSpanMessage(message: ChatMessage, budget: TextBudget): SpanMessage {
  const { role } = message
  if (role === 'tool') {
    const response = budget.take(getText(message.content))
    return { role, parts: [{ type: 'tool_call_response', id: message.tool_call_id, response }] }
  }
  if (role !== 'assistant') return { role, parts: toContentParts(message.content, budget) }
  const calls = (message.tool_calls ?? []).filter((call) => call.type === 'function')
  return { role, parts: toResponseParts(getText(message.content), message.reasoning_content, calls, budget) }
}

function toResponseParts(
  text: string | null,
  reasoning: string | null | undefined,
  calls: readonly ToolCall[],
  budget: TextBudget,
): SpanPart[] {
  const parts: SpanPart[] = []
  if (reasoning) parts.push({ type: 'reasoning', content: budget.take(reasoning) })
  if (text) parts.push({ type: 'text', content: budget.take(text) })
  for (const { id, function: called } of calls) {
    if (budget.isFull) break
    const { name } = called
    parts.push({ type: 'tool_call', id, name, arguments: parseIfJson(budget.take(called.arguments)) })
  }
  return parts
}

/** Converts message content; an image in a `data:` URL is replaced by a note. */
function toContentParts(content: unknown, budget: TextBudget): SpanPart[] {
  if (!Array.isArray(content)) return [{ type: 'text', content: budget.take(getText(content)) }]
  const parts: SpanPart[] = []
  for (const part of content) {
    if (budget.isFull) break
    parts.push(toContentPart(part, budget))
  }
  return parts
}

function toContentPart(part: unknown, budget: TextBudget): SpanPart {
  const { text, image_url: image } = Object(part) as { text?: unknown; image_url?: { url?: unknown } }
  if (typeof text === 'string') return { type: 'text', content: budget.take(text) }
  const url = image?.url
  if (typeof url !== 'string') return { type: 'text', content: budget.take(JSON.stringify(part)) }
  return url.startsWith('data:')
    ? { type: 'text', content: budget.take('(an image)') }
    : { type: 'uri', modality: 'image', uri: budget.take(url) }
}

function getText(content: unknown): string {
  if (typeof content === 'string') return content
  if (content === null || content === undefined) return ''
  if (!Array.isArray(content)) return JSON.stringify(content)
  return content.map((part) => (Object(part) as { text?: unknown }).text ?? '').join('\n')
}

/** Parses JSON text; text that is not valid JSON is returned unchanged. */
function parseIfJson(text: string): unknown {
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
