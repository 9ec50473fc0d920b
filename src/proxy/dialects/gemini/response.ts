/**
 * Gemini's responses, complete and streamed: https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse
 */
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type {
  GenerationDelta,
  GenerationEnd,
  GenerationEvent,
  GenerationStart,
} from '../../../protocol/canonical/events.ts'
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'
import type { ResponseIdentity, ResponseOptions } from '../common/dialect-request.ts'
import { parseToolInput } from '../common/tool-input.ts'
import { encodeSignature } from './parts.ts'

/** A part of a response's content in Google's form. */
interface ResponsePart {
  text?: string
  thought?: true
  functionCall?: object
  thoughtSignature?: string
}

/** Returns the body of a complete response. `completion.end` must be set. */
export function buildGeminiResponse(
  identity: ResponseIdentity,
  responseOptions: ResponseOptions,
  completion: Completion,
): object {
  const { start, end, reasoning, content, refusal, toolCalls, tokenIds } = completion
  const text = `${content ?? ''}${refusal ?? ''}`
  const parts = new GeminiPartsBuilder(responseOptions)
  if (reasoning) parts.addReasoning(reasoning)
  if (text) parts.addText(text)
  for (const { id, function: called } of toolCalls) parts.addCall(id, called.name, called.arguments)
  return toResponse(identity, start, parts.take(), { end, outputTokens: tokenIds.length })
}

/** A builder of the parts of a response, or of a chunk of one. */
class GeminiPartsBuilder {
  readonly #responseOptions: ResponseOptions
  #parts: ResponsePart[] = []
  /** The reasoning for the next part's signature. */
  #unsigned = ''

  constructor(responseOptions: ResponseOptions) {
    this.#responseOptions = responseOptions
  }

  addReasoning(reasoning: string): void {
    this.#unsigned += reasoning
    if (!this.#responseOptions.reasoning) return
    const last = this.#parts.at(-1)
    if (last?.thought) last.text += reasoning
    else this.#parts.push({ text: reasoning, thought: true })
  }

  addText(text: string): void {
    const last = this.#parts.at(-1)
    if (last?.text !== undefined && !last.thought && this.#unsigned === '') last.text += text
    else this.#parts.push({ text, ...this.#signature() })
  }

  /** @param id undefined if a worker of protocol version 1 omitted it */
  addCall(id: string | undefined, name: string, written: string): void {
    const functionCall = { id: id || undefined, name, args: parseToolInput(written) }
    this.#parts.push({ functionCall, ...this.#signature() })
  }

  /** Returns the parts that were added since the previous call. */
  take(): ResponsePart[] {
    const parts = this.#parts
    this.#parts = []
    return parts
  }

  #signature(): { thoughtSignature?: string } {
    const reasoning = this.#unsigned
    this.#unsigned = ''
    return reasoning === '' ? {} : { thoughtSignature: encodeSignature(reasoning) }
  }
}

/**
 * A writer of a stream of responses, each with the new parts, as server-sent events or as elements of one JSON array.
 * Function calls are sent complete, with the last response.
 */
export class GeminiStreamWriter {
  readonly #identity: ResponseIdentity
  readonly #parts: GeminiPartsBuilder
  readonly #frame: StreamFrame
  readonly #calls = new Map<number, { id: string | undefined; name: string; arguments: string }>()
  #start: GenerationStart | undefined
  #outputTokens = 0

  constructor(
    identity: ResponseIdentity,
    responseOptions: ResponseOptions,
    frame: StreamFrame = EVENT_FRAME,
  ) {
    this.#identity = identity
    this.#parts = new GeminiPartsBuilder(responseOptions)
    this.#frame = frame
  }

  /** Returns the text to send for these events; empty if none of them is visible. */
  write(events: readonly GenerationEvent[]): string {
    let text = ''
    for (const event of events) {
      if (event.type === 'delta') this.#add(event)
      else if (event.type === 'start') this.#start = event
      else text += this.#end(event)
    }
    const parts = this.#parts.take()
    return parts.length === 0
      ? text
      : this.#frame.formatElement(toResponse(this.#identity, this.#start, parts))
  }

  #add({ reasoning, content, refusal, toolCalls, tokenIds }: GenerationDelta): void {
    this.#outputTokens += tokenIds?.length ?? 0
    if (reasoning) this.#parts.addReasoning(reasoning)
    if (content) this.#parts.addText(content)
    if (refusal) this.#parts.addText(refusal)
    for (const delta of toolCalls ?? []) this.#addCall(delta)
  }

  #addCall({ index, id, function: delta }: ToolCallDelta): void {
    const call = this.#calls.get(index) ?? { id, name: '', arguments: '' }
    call.name += delta?.name ?? ''
    call.arguments += delta?.arguments ?? ''
    this.#calls.set(index, call)
  }

  #end(end: GenerationEnd): string {
    for (const { id, name, arguments: written } of this.#calls.values())
      this.#parts.addCall(id, name, written)
    const counts = { end, outputTokens: this.#outputTokens }
    return (
      this.#frame.formatElement(toResponse(this.#identity, this.#start, this.#parts.take(), counts)) +
      this.#frame.formatEnd()
    )
  }
}

/** The framing of the responses of a stream. */
export interface StreamFrame {
  formatElement(value: object): string
  formatEnd(): string
}

export const EVENT_FRAME: StreamFrame = {
  formatElement: (value) => `data: ${JSON.stringify(value)}\n\n`,
  formatEnd: () => '',
}

/** The framing for a request without `alt=sse`: one JSON array. */
export class ArrayFrame implements StreamFrame {
  #hasBegun = false

  formatElement(value: object): string {
    const before = this.#hasBegun ? ',\n' : '['
    this.#hasBegun = true
    return before + JSON.stringify(value)
  }

  formatEnd(): string {
    return ']'
  }
}

/**
 * Builds a complete response, or one of a stream.
 * @param last the end of the completion; undefined if more responses follow
 */
function toResponse(
  { turnId, model }: ResponseIdentity,
  start: GenerationStart | undefined,
  parts: ResponsePart[],
  last?: { end: GenerationEnd | undefined; outputTokens: number },
): object {
  // Clients treat a response without parts as missing, and then discard the stream.
  const shown = parts.length > 0 ? parts : [{ text: '' }]
  return {
    candidates: [
      {
        content: { parts: shown, role: 'model' },
        finishReason: last?.end && toFinishReason(last.end.finishReason),
        index: 0,
      },
    ],
    usageMetadata: last && toUsageMetadata(start, last.end, last.outputTokens),
    modelVersion: start?.model ?? model,
    responseId: turnId,
  }
}

const FINISH_REASONS: Readonly<Record<string, string>> = {
  stop: 'STOP',
  tool_calls: 'STOP',
  length: 'MAX_TOKENS',
  content_filter: 'SAFETY',
}

function toFinishReason(reason: string): string {
  return FINISH_REASONS[reason] ?? 'OTHER'
}

/**
 * Returns token counts from the engine's usage or, without it, from the ids that it reported. Google counts thoughts
 * separately.
 */
function toUsageMetadata(
  start: GenerationStart | undefined,
  end: GenerationEnd | undefined,
  outputTokens: number,
): object {
  const counted = end?.usage
  const prompt = counted?.prompt_tokens ?? start?.promptTokenIds?.length ?? 0
  const output = counted?.completion_tokens ?? outputTokens
  const thoughts = counted?.completion_tokens_details?.reasoning_tokens
  const cached = counted?.prompt_tokens_details?.cached_tokens
  return {
    promptTokenCount: prompt,
    candidatesTokenCount: output - (thoughts ?? 0),
    totalTokenCount: prompt + output,
    thoughtsTokenCount: thoughts,
    cachedContentTokenCount: cached,
  }
}
