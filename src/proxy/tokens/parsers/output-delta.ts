/** What an output parser gathers until its caller takes it. */
import { randomBytes } from 'node:crypto'
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'

export interface OutputDelta {
  content?: string
  reasoning?: string
  /** Calls come whole: whether a call is well-formed is known at its end only. */
  toolCalls?: ToolCallDelta[]
}

/** A tool call as a family's markup says it. */
export interface OutputToolCall {
  /** Where the model itself names the call. */
  id?: string
  name: string
  /** JSON text. */
  arguments: string
}

export class DeltaBuilder {
  readonly #makeToolCallId: () => string
  #delta: OutputDelta = {}
  #callCount = 0

  /** @param makeToolCallId names a call whose model gives it no id */
  constructor(makeToolCallId = randomToolCallId) {
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

  /** What was read elsewhere, with its calls as they are. */
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

function randomToolCallId(): string {
  return `call_${randomBytes(12).toString('hex')}`
}
