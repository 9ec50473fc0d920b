/** Conversion of the message of an engine's response, or of a chunk of a stream, to a generation event. */
import { ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../../../../base/json.ts'
import type { GenerationDelta } from '../../../../protocol/canonical/events.ts'
import type { ToolCallDelta } from '../../../../protocol/canonical/messages.ts'
import { isNestedTooDeeply } from '../../../../protocol/json/json-weight.ts'

/** Fields with a counterpart in the events. */
const NAMED_FIELDS = new Set(['role', 'content', 'reasoning', 'reasoning_content', 'refusal', 'tool_calls'])

/**
 * Adds the fields of a message to an event.
 * @param toolCalls assembles the tool calls of the response
 * @throws ProxyError `engine_failed` for arguments of a tool call that cannot be serialized
 */
export function addMessage(
  delta: GenerationDelta,
  message: Record<string, unknown>,
  streamed: boolean,
  toolCalls: ToolCallAssembler,
): void {
  const { content, thinking } = toParts(message.content)
  // A streamed message begins with an empty text that has no meaning; in a complete message an empty text is the
  // content.
  if (content !== undefined && !(streamed && content === '')) delta.content = content
  // vLLM renamed the field in 2025-11 and sent both for a while, one a copy of the other.
  const reasoning = message.reasoning ?? message.reasoning_content ?? thinking
  if (typeof reasoning === 'string' && reasoning !== '') delta.reasoning = reasoning
  if (typeof message.refusal === 'string' && message.refusal !== '') delta.refusal = message.refusal
  if (Array.isArray(message.tool_calls) && message.tool_calls.length > 0) {
    const entries = message.tool_calls.filter(isRecord)
    // In a complete message each entry is a tool call, even if two have the same id: a model that generates the ids may
    // repeat an id.
    delta.toolCalls = entries.map((entry, index) => {
      const read = toToolCallChunk(entry)
      return streamed ? toolCalls.assign(read) : { ...read, index }
    })
  }
  for (const field in message) {
    if (NAMED_FIELDS.has(field) || message[field] === null) continue
    delta.extra ??= Object.create(null) as Record<string, unknown>
    delta.extra[field] = message[field]
  }
}

/** The text and the reasoning in a message's content. */
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
function toToolCallChunk(entry: Record<string, unknown>): ToolCallChunk {
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

/** A chunk of a tool call as an engine streams it. */
export type ToolCallChunk = Omit<ToolCallDelta, 'index'> & { readonly index: number | undefined }

/** A tool call as received so far. */
interface OpenToolCall {
  /** Position among the tool calls of the response, in order of appearance. */
  readonly index: number
  id: string | undefined
  name: string
  hasArguments: boolean
  /** Another id that arrived without a name: that of the next tool call, or one generated for a single chunk. */
  pendingId: string | undefined
}

/**
 * An assembler that assigns the chunks of a stream to tool calls. Engines omit the index (Gemini's and Ollama's routes)
 * or number all parallel tool calls 0, so a name starts a tool call unless it can belong to the current one: if it
 * arrives with a new id, or after arguments. If there is an index, an id alone starts none: vLLM generated an id for
 * each chunk until early 2025 (`DeltaToolCall.id` had a default factory).
 */
export class ToolCallAssembler {
  /** Tool calls by the engine's index and id together: a model that generates the ids may repeat an id. */
  readonly #byId = new Map<string, OpenToolCall>()
  readonly #byIndex = new Map<number, OpenToolCall>()
  #last: OpenToolCall | undefined
  #count = 0

  /** Returns the chunk with the index of its tool call, without an id or a name that the tool call already has. */
  assign({ index, id, type, function: called }: ToolCallChunk): ToolCallDelta {
    const name = called?.name || undefined
    const toolCall = this.#find(index, id, name) ?? this.#start(index, id)
    this.#last = toolCall
    const ownId = id ?? (toolCall.name === '' ? toolCall.id : undefined)
    const isIdentified = this.#identify(toolCall, index, ownId)
    const { name: _, ...rest } = called ?? {}
    const isNewName = name !== undefined && name !== toolCall.name && !toolCall.hasArguments
    if (isNewName) toolCall.name += name
    toolCall.hasArguments ||= Boolean(called?.arguments)
    return {
      index: toolCall.index,
      ...(isIdentified && { id: toolCall.id!, type: type ?? 'function' }),
      ...(called && { function: isNewName ? called : rest }),
    }
  }

  /** Returns the tool call of a chunk; undefined if the chunk starts one. */
  #find(index: number | undefined, id: string | undefined, name: string | undefined) {
    const existing = id === undefined ? undefined : this.#byId.get(getKey(index, id))
    if (existing !== undefined) return existing
    if (index === undefined) return id === undefined && name === undefined ? this.#last : undefined
    const current = this.#byIndex.get(index)
    if (!current?.name || name === undefined) return current
    const isOther = current.pendingId !== undefined || (id !== undefined && current.id !== undefined)
    return isOther || current.hasArguments ? undefined : current
  }

  #start(index: number | undefined, id: string | undefined): OpenToolCall {
    const before = index === undefined ? undefined : this.#byIndex.get(index)
    const toolCall: OpenToolCall = {
      index: this.#count++,
      id: id ?? before?.pendingId,
      name: '',
      hasArguments: false,
      pendingId: undefined,
    }
    if (index !== undefined) this.#byIndex.set(index, toolCall)
    return toolCall
  }

  /** Stores the id of a chunk. @returns whether it is the id of its tool call */
  #identify(toolCall: OpenToolCall, index: number | undefined, id: string | undefined): boolean {
    if (id === undefined) return false
    toolCall.id ??= id
    if (toolCall.id !== id) toolCall.pendingId = id
    else this.#byId.set(getKey(index, id), toolCall)
    return toolCall.id === id
  }
}

function getKey(index: number | undefined, id: string): string {
  return `${index ?? ''}:${id}`
}
