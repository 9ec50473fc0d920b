/** The output that a parser collects until its caller takes it. */
import { randomBytes } from 'node:crypto'
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'

export interface OutputDelta {
  content?: string
  reasoning?: string
  /** Tool calls are complete: only the end of a call shows whether it is well-formed. */
  toolCalls?: ToolCallDelta[]
}

/** A tool call as written in a family's markup. */
export interface OutputToolCall {
  /** The id, if the model writes one. */
  id?: string
  name: string
  /** JSON text. */
  arguments: string
}

export class DeltaBuilder {
  readonly #makeToolCallId: () => string
  #delta: OutputDelta = {}
  #callCount = 0

  /** @param makeToolCallId creates the id of a tool call to which the model gives none */
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

  take(): OutputDelta {
    const delta = this.#delta
    this.#delta = {}
    return delta
  }
}

function createToolCallId(): string {
  return `call_${randomBytes(12).toString('hex')}`
}
