/** The output of a parser: the content, reasoning and tool calls of a part of a completion. */
import { randomBytes } from 'node:crypto'
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'

/** The output for a part of a completion. */
export interface OutputDelta {
  content?: string
  reasoning?: string
  /** Complete tool calls, because only the end of a call shows whether it is well-formed. */
  toolCalls?: ToolCallDelta[]
}

/** A tool call in a completion. */
export interface OutputToolCall {
  /** The id, if the model has written one. */
  id?: string
  name: string
  /** The arguments as JSON. */
  arguments: string
}

/** A buffer for output, which `take` empties. */
export class DeltaBuilder {
  readonly #makeToolCallId: () => string
  #delta: OutputDelta = {}
  #callCount = 0

  /** @param makeToolCallId creates the id of a tool call for which the model has written none */
  constructor(makeToolCallId = createToolCallId) {
    this.#makeToolCallId = makeToolCallId
  }

  addContent(text: string): void {
    if (text !== '') this.#delta.content = (this.#delta.content ?? '') + text
  }

  addReasoning(text: string): void {
    if (text !== '') this.#delta.reasoning = (this.#delta.reasoning ?? '') + text
  }

  addCalls(calls: readonly OutputToolCall[]): void {
    for (const { id = this.#makeToolCallId(), ...called } of calls) {
      this.#delta.toolCalls ??= []
      this.#delta.toolCalls.push({ index: this.#callCount++, id, type: 'function', function: called })
    }
  }

  /** Adds another parser's output, with its tool calls unchanged. */
  add({ content = '', reasoning = '', toolCalls }: OutputDelta): void {
    this.addContent(content)
    this.addReasoning(reasoning)
    if (toolCalls !== undefined) this.#delta.toolCalls = [...(this.#delta.toolCalls ?? []), ...toolCalls]
  }

  /** Returns the output that was added since `take` was last called. */
  take(): OutputDelta {
    const delta = this.#delta
    this.#delta = {}
    return delta
  }
}

function createToolCallId(): string {
  return `call_${randomBytes(12).toString('hex')}`
}
