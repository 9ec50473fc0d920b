/**
 * The output of a response: items to which the generation's events are added, and the events that report this to an
 * agent (https://platform.openai.com/docs/api-reference/responses-streaming). A complete response is built in the same
 * way from one event that contains the entire completion, so that complete and streamed responses agree.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationDelta } from '../../../protocol/canonical/events.ts'
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'
import { hasArguments, ToolCallOrder } from '../common/tool-call-order.ts'
import type { OutputItem, ResponseEvent } from './output-item.ts'
import { MessageItem, ReasoningItem } from './text-items.ts'
import { ToolCallInProgress } from './tool-calls.ts'
import type { WireTools } from './tools.ts'

/** The options of a response's output. */
export interface OutputOptions {
  turnId: string
  wireTools: WireTools
  /** Whether text is sent with the logprobs of its tokens. */
  logprobs: boolean
  reasoning: boolean
  /** Whether the request has `include: ["reasoning.encrypted_content"]`. */
  sealedReasoning: boolean
}

/** Returns the output items of a complete completion. */
export function toOutputItems(
  options: OutputOptions,
  completion: Pick<Completion, 'content' | 'reasoning' | 'refusal' | 'toolCalls'> &
    Partial<Pick<Completion, 'textLogprobs' | 'extra'>>,
  isComplete: boolean,
): OutputItem[] {
  const { content, reasoning, refusal, toolCalls, textLogprobs, extra } = completion
  const output = new ResponseOutput(options)
  output.add({
    type: 'delta',
    ...(reasoning !== null && { reasoning }),
    ...(content !== null && { content }),
    ...(refusal !== null && { refusal }),
    toolCalls: toolCalls.map((call, index) => ({ index, ...call })),
    ...(textLogprobs && { logprobsContent: [...textLogprobs] }),
    ...(extra && Object.keys(extra).length > 0 && { extra }),
  })
  output.end(isComplete)
  return output.items
}

/** The output of one response. */
export class ResponseOutput {
  readonly #options: OutputOptions
  /** The items by output index; complete when the output has ended. */
  readonly items: OutputItem[] = []
  #nextIndex = 0
  /** The item to which text or reasoning is added. */
  #text: ReasoningItem | MessageItem | undefined
  /** The tool call to which the last delta was added. */
  #call: ToolCallInProgress | undefined
  readonly #calls = new Map<number, ToolCallInProgress>()
  readonly #order = new ToolCallOrder()
  /** The number of items of each kind, for their ids. */
  readonly #count = { rs: 0, msg: 0 }

  constructor(options: OutputOptions) {
    this.#options = options
  }

  add(delta: GenerationDelta): ResponseEvent[] {
    const { reasoning, content, refusal, toolCalls, extra } = delta
    const events: ResponseEvent[] = []
    if (reasoning && this.#options.reasoning) events.push(...this.#addReasoning(reasoning))
    if (content || refusal || extra) events.push(...this.#addText(delta))
    for (const delta of toolCalls ?? [])
      for (const ordered of this.#order.add(delta)) events.push(...this.#addToCall(ordered))
    return this.#storeItems(events)
  }

  /** Ends the output. @param isComplete false if the completion was truncated; its last item is then incomplete */
  end(isComplete: boolean): ResponseEvent[] {
    const waited = this.#order.end().flatMap((delta) => this.#addToCall(delta))
    // An empty completion has an empty message item, so that the agent can continue from it.
    const begun =
      this.#nextIndex === 0 && this.#calls.size === 0 ? this.#addText({ type: 'delta', content: '' }) : []
    // An open text follows the tool call, which would have closed it otherwise.
    const open = [this.#call, this.#text].filter((item) => item !== undefined)
    const ended = open.flatMap((item) =>
      item.close(isComplete || item !== open.at(-1) ? 'completed' : 'incomplete'),
    )
    return this.#storeItems([...waited, ...begun, ...ended])
  }

  #storeItems(events: ResponseEvent[]): ResponseEvent[] {
    for (const { type, item, output_index } of events) {
      if (type === 'response.output_item.done') this.items[output_index as number] = item as OutputItem
    }
    return events
  }

  #addReasoning(text: string): ResponseEvent[] {
    if (this.#text instanceof ReasoningItem) return this.#text.add(text)
    const closed = this.#closeBeforeText()
    const { sealedReasoning } = this.#options
    const item = new ReasoningItem({ id: this.#id('rs'), outputIndex: this.#nextIndex++ }, sealedReasoning)
    this.#text = item
    return [...closed, ...item.add(text)]
  }

  #addText(delta: GenerationDelta): ResponseEvent[] {
    if (this.#text instanceof MessageItem) return this.#text.add(delta)
    const closed = this.#closeBeforeText()
    const item = new MessageItem(
      { id: this.#id('msg'), outputIndex: this.#nextIndex++ },
      this.#options.logprobs,
    )
    this.#text = item
    return [...closed, ...item.add(delta)]
  }

  /**
   * Adds a delta to its tool call. A tool call is closed when the next item begins, so that an agent can run it
   * immediately, and receives the items in order.
   * @throws ProxyError `engine_failed` for arguments of a closed tool call
   */
  #addToCall(delta: ToolCallDelta): ResponseEvent[] {
    const existing = this.#calls.get(delta.index)
    const isClosed = existing !== undefined && existing !== this.#call
    if (isClosed && !hasArguments(delta)) return []
    const events = this.#closeText()
    if (isClosed)
      throw new ProxyError('engine_failed', 'The engine continued a tool call after it began the next one')
    if (existing !== undefined) return [...events, ...existing.add(delta)]
    if (this.#call) events.push(...this.#call.close('completed'))
    const { turnId, wireTools } = this.#options
    const itemId = `${turnId}_${this.#calls.size}`
    const allocateIndex = () => this.#nextIndex++
    this.#call = new ToolCallInProgress({ itemId, wireTools, allocateIndex })
    this.#calls.set(delta.index, this.#call)
    return [...events, ...this.#call.add(delta)]
  }

  /**
   * Closes the item before a text or reasoning. A tool call stays open while its arguments are incomplete, since an engine
   * may send text before it continues them.
   */
  #closeBeforeText(): ResponseEvent[] {
    const call = this.#order.isComplete ? this.#call : undefined
    if (call !== undefined) this.#call = undefined
    return [...(call?.close('completed') ?? []), ...this.#closeText()]
  }

  #closeText(): ResponseEvent[] {
    const events = this.#text?.close('completed') ?? []
    this.#text = undefined
    return events
  }

  #id(prefix: 'rs' | 'msg'): string {
    return `${prefix}_${this.#options.turnId}_${this.#count[prefix]++}`
  }
}
