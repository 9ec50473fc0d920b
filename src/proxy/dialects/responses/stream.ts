/**
 * Streamed responses of the Responses API, as server-sent events:
 * https://platform.openai.com/docs/api-reference/responses-streaming
 */
import type { ProxyError } from '../../../base/errors.ts'
import type { GenerationEnd, GenerationEvent, GenerationStart } from '../../../protocol/canonical/events.ts'
import { ResponseOutput } from './output.ts'
import type { ResponseEvent } from './output-item.ts'
import {
  buildResponseObject,
  buildTokenFields,
  type ResponseFrame,
  type ResponseState,
  readOutputOptions,
  toEndState,
} from './response.ts'

export class ResponsesStreamWriter {
  readonly #frame: ResponseFrame
  readonly #output: ResponseOutput
  readonly #tokenIds: number[] = []
  #start: GenerationStart | undefined
  #isOpen = false
  /** The sequence number of the next event, by which an agent detects a gap. */
  #next = 0

  constructor(frame: ResponseFrame) {
    this.#frame = frame
    this.#output = new ResponseOutput(readOutputOptions(frame))
  }

  /** Returns the text to send for these events; empty if none of them is visible. */
  write(events: readonly GenerationEvent[]): string {
    let text = ''
    for (const event of events) {
      if (event.type === 'start') text += this.#begin(event)
      else if (event.type === 'end') text += this.#end(event)
      else {
        if (this.#frame.responseOptions.tokenIds)
          for (const id of event.tokenIds ?? []) this.#tokenIds.push(id)
        text += this.#texts(this.#output.add(event))
      }
    }
    return text
  }

  /**
   * Returns an event without content that keeps the connection alive, as OpenAI's service does: only events reset
   * Codex's idle timer, not comments. The SDKs require `response.created` as the first event.
   */
  keepAlive(): string {
    return this.#open() + this.#texts([{ type: 'keepalive' }])
  }

  /** Returns the event of an error that occurred after the stream began. */
  fail(error: ProxyError): string {
    return this.#response('response.failed', { status: 'failed', error })
  }

  #begin(start: GenerationStart): string {
    this.#start = start
    return this.#open()
  }

  #open(): string {
    if (this.#isOpen) return ''
    this.#isOpen = true
    const state = { status: 'in_progress' } as const
    return this.#response('response.created', state) + this.#response('response.in_progress', state)
  }

  #end(end: GenerationEnd): string {
    const ended = toEndState(end)
    const last = this.#texts(this.#output.end(ended.status === 'completed'))
    const tokens = buildTokenFields(this.#frame, { start: this.#start, tokenIds: this.#tokenIds })
    const state = {
      ...ended,
      usage: end.usage,
      endedAtS: this.#frame.identity.endedS,
      tokenFields: tokens,
    }
    return last + this.#response(`response.${ended.status}`, state)
  }

  #response(type: string, state: Omit<ResponseState, 'output' | 'model'>): string {
    const output = this.#output.items.filter((item) => item !== undefined)
    const response = buildResponseObject(this.#frame, { ...state, model: this.#start?.model, output })
    return this.#texts([{ type, response }])
  }

  #texts(events: readonly ResponseEvent[]): string {
    let text = ''
    for (const { type, ...fields } of events) {
      const data = JSON.stringify({ type, sequence_number: this.#next++, ...fields })
      text += `event: ${type}\ndata: ${data}\n\n`
    }
    return text
  }
}
