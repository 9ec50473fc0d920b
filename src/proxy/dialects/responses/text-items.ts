/** Output items that contain text: reasoning and messages. */
import type { GenerationDelta } from '../../../protocol/canonical/events.ts'
import type { TokenLogprob } from '../../../protocol/canonical/messages.ts'
import { seal } from '../common/sealed-reasoning.ts'
import type { ItemInProgress, ItemStatus, ResponseEvent } from './output-item.ts'

/** An item's id, and its index in the output. */
interface ItemPosition {
  id: string
  outputIndex: number
}

/** An item with the model's reasoning as text. */
export class ReasoningItem implements ItemInProgress {
  readonly #location: ItemPosition
  readonly #sealed: boolean
  #text = ''

  constructor(location: ItemPosition, sealed: boolean) {
    this.#location = location
    this.#sealed = sealed
  }

  add(text: string): ResponseEvent[] {
    const events = this.#text === '' ? this.#begin() : []
    this.#text += text
    events.push({ type: 'response.reasoning_text.delta', ...this.#at(), delta: text })
    return events
  }

  close(status: ItemStatus): ResponseEvent[] {
    const part = { type: 'reasoning_text', text: this.#text }
    return [
      { type: 'response.reasoning_text.done', ...this.#at(), text: this.#text },
      { type: 'response.content_part.done', ...this.#at(), part },
      this.#itemEvent('done', status, [part]),
    ]
  }

  #begin(): ResponseEvent[] {
    const part = { type: 'reasoning_text', text: '' }
    return [
      this.#itemEvent('added', 'in_progress', []),
      { type: 'response.content_part.added', ...this.#at(), part },
    ]
  }

  #at() {
    return { item_id: this.#location.id, output_index: this.#location.outputIndex, content_index: 0 }
  }

  #itemEvent(what: 'added' | 'done', status: ItemStatus, content: object[]): ResponseEvent {
    const { id, outputIndex: output_index } = this.#location
    const sealed = this.#sealed && what === 'done' && { encrypted_content: seal(this.#text) }
    const item = { type: 'reasoning', id, summary: [], content, ...sealed, status }
    return { type: `response.output_item.${what}`, output_index, item }
  }
}

/** An item with the assistant's text in one part, and its refusal in another. */
export class MessageItem implements ItemInProgress {
  readonly #location: ItemPosition
  readonly #showLogprobs: boolean
  readonly #parts: MessagePart[] = []
  /** It has no prototype, so that `__proto__` is a field like others. */
  readonly #extra: Record<string, unknown> = Object.create(null)
  #hasBegun = false

  constructor(location: ItemPosition, showLogprobs: boolean) {
    this.#location = location
    this.#showLogprobs = showLogprobs
  }

  add({ content, refusal, logprobsContent, extra }: GenerationDelta): ResponseEvent[] {
    const events = this.#hasBegun ? [] : [this.#itemEvent('added', 'in_progress')]
    this.#hasBegun = true
    Object.assign(this.#extra, extra)
    const logprobs = this.#showLogprobs ? (logprobsContent ?? []) : []
    if (content !== undefined) events.push(...this.#addTo('output_text', content, logprobs))
    if (refusal) events.push(...this.#addTo('refusal', refusal, []))
    return events
  }

  close(status: ItemStatus): ResponseEvent[] {
    const events = this.#parts.flatMap((part, index) => [
      { ...buildTextEvent(part, 'done'), ...this.#at(index) },
      { type: 'response.content_part.done', ...this.#at(index), part: createPart(part) },
    ])
    return [...events, this.#itemEvent('done', status)]
  }

  #addTo(type: MessagePart['type'], text: string, logprobs: TokenLogprob[]): ResponseEvent[] {
    const events: ResponseEvent[] = []
    let index = this.#parts.findIndex((part) => part.type === type)
    if (index < 0) {
      index = this.#parts.push({ type, text: '', logprobs: [] }) - 1
      const part = createPart(this.#parts[index]!)
      events.push({ type: 'response.content_part.added', ...this.#at(index), part })
    }
    const part = this.#parts[index]!
    part.text += text
    for (const entry of logprobs) part.logprobs.push(entry)
    if (text !== '') events.push({ ...buildTextEvent({ type, text, logprobs }, 'delta'), ...this.#at(index) })
    return events
  }

  #at(contentIndex: number) {
    return {
      item_id: this.#location.id,
      output_index: this.#location.outputIndex,
      content_index: contentIndex,
    }
  }

  #itemEvent(what: 'added' | 'done', status: ItemStatus): ResponseEvent {
    const { id, outputIndex: output_index } = this.#location
    const content = this.#parts.map(createPart)
    const item = { type: 'message', id, role: 'assistant', status, content, ...this.#extra }
    return { type: `response.output_item.${what}`, output_index, item }
  }
}

/** A content part of a message as received so far. */
interface MessagePart {
  type: 'output_text' | 'refusal'
  text: string
  logprobs: TokenLogprob[]
}

function createPart({ type, text, logprobs }: MessagePart): object {
  return type === 'refusal' ? { type, refusal: text } : { type, text, annotations: [], logprobs }
}

/** Returns the event for a delta of a part, or for its complete text. */
function buildTextEvent({ type, text, logprobs }: MessagePart, what: 'delta' | 'done'): ResponseEvent {
  const isDelta = what === 'delta'
  const field = isDelta ? 'delta' : type === 'refusal' ? 'refusal' : 'text'
  return { type: `response.${type}.${what}`, [field]: text, ...(type === 'output_text' && { logprobs }) }
}
