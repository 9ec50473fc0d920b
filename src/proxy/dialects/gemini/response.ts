/** Gemini's answers, whole and streamed: https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse */
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

interface AnswerPart {
  text?: string
  thought?: true
  functionCall?: object
  thoughtSignature?: string
}

/** The body of an answer that was not streamed. `completion.end` must be set. */
export function geminiAnswer(
  identity: ResponseIdentity,
  answerOptions: ResponseOptions,
  completion: Completion,
): object {
  const { start, end, reasoning, content, refusal, toolCalls, tokenIds } = completion
  const text = `${content ?? ''}${refusal ?? ''}`
  const parts = new GeminiParts(answerOptions)
  if (reasoning) parts.addReasoning(reasoning)
  if (text) parts.addText(text)
  for (const { id, function: called } of toolCalls) parts.addCall(id, called.name, called.arguments)
  return toResponse(identity, start, parts.take(), { end, outputTokens: tokenIds.length })
}

/** The parts of an answer, or of a piece of one. */
class GeminiParts {
  readonly #answerOptions: ResponseOptions
  #parts: AnswerPart[] = []
  /** Reasoning that the next part's signature is to hold. */
  #unsigned = ''

  constructor(answerOptions: ResponseOptions) {
    this.#answerOptions = answerOptions
  }

  addReasoning(reasoning: string): void {
    this.#unsigned += reasoning
    if (!this.#answerOptions.reasoning) return
    const last = this.#parts.at(-1)
    if (last?.thought) last.text += reasoning
    else this.#parts.push({ text: reasoning, thought: true })
  }

  addText(text: string): void {
    const last = this.#parts.at(-1)
    if (last?.text !== undefined && !last.thought && this.#unsigned === '') last.text += text
    else this.#parts.push({ text, ...this.#signature() })
  }

  /** @param id absent: workers of version 1 may leave it out */
  addCall(id: string | undefined, name: string, written: string): void {
    const functionCall = { id: id || undefined, name, args: parseToolInput(written) }
    this.#parts.push({ functionCall, ...this.#signature() })
  }

  /** What has been added since the last time. */
  take(): AnswerPart[] {
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
 * Writes a stream of answers, each with what is new; calls of functions come whole, with the last one.
 * As server-sent events, or as elements of one JSON array.
 */
export class GeminiStreamWriter {
  readonly #identity: ResponseIdentity
  readonly #parts: GeminiParts
  readonly #frame: StreamFrame
  readonly #calls = new Map<number, { id: string | undefined; name: string; arguments: string }>()
  #start: GenerationStart | undefined
  #outputTokens = 0

  constructor(identity: ResponseIdentity, answerOptions: ResponseOptions, frame: StreamFrame = EVENT_FRAME) {
    this.#identity = identity
    this.#parts = new GeminiParts(answerOptions)
    this.#frame = frame
  }

  /** The text to send for these events; empty when none of them shows. */
  write(events: readonly GenerationEvent[]): string {
    let text = ''
    for (const event of events) {
      if (event.type === 'delta') this.#add(event)
      else if (event.type === 'start') this.#start = event
      else text += this.#end(event)
    }
    const parts = this.#parts.take()
    return parts.length === 0 ? text : this.#frame.element(toResponse(this.#identity, this.#start, parts))
  }

  #add({ reasoning, content, refusal, toolCalls, tokenIds }: GenerationDelta): void {
    this.#outputTokens += tokenIds?.length ?? 0
    if (reasoning) this.#parts.addReasoning(reasoning)
    if (content) this.#parts.addText(content)
    if (refusal) this.#parts.addText(refusal)
    for (const piece of toolCalls ?? []) this.#addCall(piece)
  }

  #addCall({ index, id, function: said }: ToolCallDelta): void {
    const call = this.#calls.get(index) ?? { id, name: '', arguments: '' }
    call.name += said?.name ?? ''
    call.arguments += said?.arguments ?? ''
    this.#calls.set(index, call)
  }

  #end(end: GenerationEnd): string {
    for (const { id, name, arguments: written } of this.#calls.values())
      this.#parts.addCall(id, name, written)
    const counts = { end, outputTokens: this.#outputTokens }
    return (
      this.#frame.element(toResponse(this.#identity, this.#start, this.#parts.take(), counts)) +
      this.#frame.end()
    )
  }
}

/** How the answers of a stream are put one behind the other. */
export interface StreamFrame {
  element(value: object): string
  end(): string
}

export const EVENT_FRAME: StreamFrame = {
  element: (value) => `data: ${JSON.stringify(value)}\n\n`,
  end: () => '',
}

/** For a call without `alt=sse`. */
export class ArrayFrame implements StreamFrame {
  #hasBegun = false

  element(value: object): string {
    const before = this.#hasBegun ? ',\n' : '['
    this.#hasBegun = true
    return before + JSON.stringify(value)
  }

  end(): string {
    return ']'
  }
}

/** @param last absent: more is to come */
function toResponse(
  { turnId, model }: ResponseIdentity,
  start: GenerationStart | undefined,
  parts: AnswerPart[],
  last?: { end: GenerationEnd | undefined; outputTokens: number },
): object {
  // Clients take an answer without parts for none, and the whole of its stream with it.
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

/** Tokens by the engine's own count, else by the ids that it reported. Google counts thoughts apart from the rest. */
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
