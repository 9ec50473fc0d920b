import type { ToolCallDelta } from '../../../../protocol/canonical/messages.ts'

/** A chunk of a tool call as an engine streams it. */
export type ToolCallChunk = Omit<ToolCallDelta, 'index'> & { readonly index: number | undefined }

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
 * Assigns the chunks of a stream to tool calls. Engines omit the index (Gemini's and Ollama's routes) or number all
 * parallel tool calls 0, so a name starts a tool call if the current one cannot take it: with a new id, or after
 * arguments. With an index, an id alone starts none: vLLM generated an id for each chunk until early 2025
 * (`DeltaToolCall.id` had a default factory).
 */
export class ToolCallAssembler {
  /** Tool calls by the engine's index and id: a model that generates ids may repeat one. */
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
