/** Streamed responses of Anthropic Messages: https://platform.claude.com/docs/en/build-with-claude/streaming */
import { ProxyError } from '../../../base/errors.ts'
import type {
  GenerationDelta,
  GenerationEnd,
  GenerationEvent,
  GenerationStart,
} from '../../../protocol/canonical/events.ts'
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'
import type { ResponseIdentity, ResponseOptions } from '../common/dialect-request.ts'
import { SIGNATURE, seal } from '../common/sealed-reasoning.ts'
import { hasArguments, ToolCallOrder } from '../common/tool-call-order.ts'
import {
  buildMessageHead,
  buildStopFields,
  buildTextBlock,
  buildThinkingBlock,
  buildToolUseBlock,
  buildUsage,
  createToolUseId,
  hasText,
} from './response.ts'

export function formatSseEvent(type: string, fields: object = {}): string {
  return `event: ${type}\ndata: ${JSON.stringify({ type, ...fields })}\n\n`
}

/** The event that keeps the connection alive until the response begins. SDKs ignore it at any position. */
export const PING = formatSseEvent('ping')

type BlockKind = 'text' | 'thinking' | 'tool_use'

/**
 * A writer of a stream of Messages events. Blocks follow one another: a delta of another kind closes the open block,
 * and a closed tool call accepts no more deltas.
 */
export class MessagesStreamWriter {
  readonly #identity: ResponseIdentity
  readonly #responseOptions: ResponseOptions
  #start: GenerationStart | undefined
  #open: BlockKind | undefined
  /** The index of the open, or last, block. */
  #index = -1
  /** The constant part of all deltas of the open block, serialized once because there is a delta for every token. */
  #deltaHead = ''
  /** The engine's index of the open, or last, tool call. */
  #call = -1
  readonly #calls = new Set<number>()
  readonly #order = new ToolCallOrder()
  /** White space that is sent if a text follows it, and dropped otherwise. */
  #pendingSpace = ''
  /** The reasoning that the signature of the open thinking block seals. */
  #unsignedReasoning = ''
  #outputTokens = 0

  constructor(identity: ResponseIdentity, responseOptions: ResponseOptions) {
    this.#identity = identity
    this.#responseOptions = responseOptions
  }

  /**
   * Returns the text to send for these events; empty if none of them is visible.
   * @throws ProxyError `engine_failed` for a delta of a tool call after the next one has begun
   */
  write(events: readonly GenerationEvent[]): string {
    let text = ''
    for (const event of events) {
      if (event.type === 'delta') text += this.#delta(event)
      else if (event.type === 'end') text += this.#end(event)
      else text += this.#begin(event)
    }
    return text
  }

  #begin(start: GenerationStart): string {
    this.#start = start
    const message = { ...buildMessageHead(this.#identity, start), usage: buildUsage(start, undefined, 0) }
    return formatSseEvent('message_start', { message })
  }

  #delta({ reasoning, content, refusal, toolCalls, tokenIds }: GenerationDelta): string {
    this.#outputTokens += tokenIds?.length ?? 0
    let text = ''
    if (reasoning) text += this.#thinking(reasoning)
    if (content) text += this.#text(content)
    if (refusal) text += this.#text(refusal)
    if (toolCalls) for (const delta of toolCalls) text += this.#toolCalls(this.#order.add(delta))
    return text
  }

  #thinking(reasoning: string): string {
    const { reasoning: shown, sealedReasoning: sealed } = this.#responseOptions
    if (!shown && !sealed) return ''
    const opened = this.#openBlock('thinking', () => buildThinkingBlock('', ''))
    if (shown) return `${opened}${this.#formatDelta(reasoning)}`
    this.#unsignedReasoning += reasoning
    return opened
  }

  #text(content: string): string {
    if (this.#open === 'text') return this.#formatDelta(content)
    this.#pendingSpace += content
    // Only the new text is tested: the pending text is white space, of which a model may sample any amount.
    if (!hasText(content)) return ''
    const space = this.#pendingSpace
    const opened = this.#openBlock('text', () => buildTextBlock(''))
    return `${opened}${this.#formatDelta(space)}`
  }

  #toolCalls(deltas: readonly ToolCallDelta[]): string {
    return deltas.map((delta) => this.#toolCall(delta)).join('')
  }

  #toolCall(chunk: ToolCallDelta): string {
    const { index, id, function: delta } = chunk
    const isOpen = index === this.#call && this.#open === 'tool_use'
    if (!isOpen && this.#calls.has(index) && !hasArguments(chunk)) return ''
    const opened = isOpen ? '' : this.#openCall(index, id, delta?.name)
    return delta?.arguments ? `${opened}${this.#formatDelta(delta.arguments)}` : opened
  }

  #openCall(index: number, id: string | undefined, name: string | undefined): string {
    if (this.#calls.has(index)) {
      throw new ProxyError(
        'engine_failed',
        `The engine continued tool call ${index} after it began the next one`,
      )
    }
    const block = buildToolUseBlock(id || createToolUseId(this.#identity, this.#calls.size), name ?? '', {})
    this.#calls.add(index)
    const opened = this.#closeBlock() + this.#startBlock('tool_use', block)
    this.#call = index
    return opened
  }

  /** Opens a block, and closes the one before it. Returns the text to send; empty if a block of this kind is open. */
  #openBlock(kind: BlockKind, block: () => object): string {
    return this.#open === kind ? '' : this.#closeBlock() + this.#startBlock(kind, block())
  }

  #startBlock(kind: BlockKind, block: object): string {
    this.#open = kind
    // White space before a tool call begins the text that may follow the call, as in the complete response.
    if (kind === 'text') this.#pendingSpace = ''
    this.#index += 1
    const [type, field] = DELTA_OF_KIND[kind]
    const head = { type: 'content_block_delta', index: this.#index, delta: { type, [field]: '' } }
    // The part before the empty text's quotes, which each delta replaces by its text.
    this.#deltaHead = `event: content_block_delta\ndata: ${JSON.stringify(head).slice(0, -'""}}'.length)}`
    return formatSseEvent('content_block_start', { index: this.#index, content_block: block })
  }

  #formatDelta(text: string): string {
    return `${this.#deltaHead}${JSON.stringify(text)}}}\n\n`
  }

  #closeBlock(): string {
    if (this.#open === undefined) return ''
    const index = this.#index
    const signed = this.#open === 'thinking' ? this.#sign() : ''
    this.#open = undefined
    return signed + formatSseEvent('content_block_stop', { index })
  }

  #sign(): string {
    const signature = this.#unsignedReasoning === '' ? SIGNATURE : seal(this.#unsignedReasoning)
    this.#unsignedReasoning = ''
    return formatSseEvent('content_block_delta', {
      index: this.#index,
      delta: { type: 'signature_delta', signature },
    })
  }

  #end(end: GenerationEnd): string {
    const closed = this.#toolCalls(this.#order.end()) + this.#closeBlock()
    const delta = buildStopFields(end, this.#calls.size > 0)
    const counts = buildUsage(this.#start, end, this.#outputTokens)
    return closed + formatSseEvent('message_delta', { delta, usage: counts }) + formatSseEvent('message_stop')
  }
}

/** The type and the field of a delta, by the kind of block. */
const DELTA_OF_KIND = {
  text: ['text_delta', 'text'],
  thinking: ['thinking_delta', 'thinking'],
  tool_use: ['input_json_delta', 'partial_json'],
} as const
