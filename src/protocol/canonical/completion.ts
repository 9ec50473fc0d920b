/** A completion assembled from generation events. */
import type { TokenData } from '../token-data/token-data.ts'
import { TokenDataBuilder } from '../token-data/token-data-builder.ts'
import type { EventSink, GenerationDelta, GenerationEnd, GenerationEvent, GenerationStart } from './events.ts'
import type { TokenLogprob, ToolCall, ToolCallDelta } from './messages.ts'

/** The part of a completion that has arrived so far. It is complete once `end` is set. */
export interface Completion {
  readonly start: GenerationStart | undefined
  readonly end: GenerationEnd | undefined
  /** null: no delta carried text. */
  readonly content: string | null
  readonly reasoning: string | null
  readonly refusal: string | null
  readonly toolCalls: readonly ToolCall[]
  readonly tokenIds: readonly number[]
  readonly logprobs: readonly number[]
  readonly logprobsContent: readonly TokenLogprob[]
  /** The part of `logprobsContent` that arrived with content: without the tokens of reasoning and tool calls. */
  readonly textLogprobs: readonly TokenLogprob[]
  /** Fields of the engine's message that events do not define; a later value replaces an earlier one. */
  readonly extra: Readonly<Record<string, unknown>>
  /** The reported token data beyond ids and logprobs. */
  readonly details?: TokenDataBuilder | undefined
}

/** A builder that folds events into a {@link Completion} in one pass, with constant work per event. */
export class CompletionBuilder implements Completion, EventSink {
  start: GenerationStart | undefined
  end: GenerationEnd | undefined
  content: string | null = null
  reasoning: string | null = null
  refusal: string | null = null
  readonly toolCalls: ToolCall[] = []
  readonly tokenIds: number[] = []
  readonly logprobs: number[] = []
  readonly logprobsContent: TokenLogprob[] = []
  readonly textLogprobs: TokenLogprob[] = []
  /** It has no prototype, so that `__proto__` is a field like others. */
  readonly extra: Record<string, unknown> = Object.create(null)
  /** undefined: nothing was reported beyond ids and logprobs. */
  details: TokenDataBuilder | undefined
  readonly #callByIndex = new Map<number, ToolCall>()

  write(events: readonly GenerationEvent[]): undefined {
    for (const event of events) this.add(event)
  }

  add(event: GenerationEvent): void {
    if (event.type === 'delta') this.#addDelta(event)
    else if (event.type === 'start') this.start = event
    else this.#end(event)
  }

  #end(end: GenerationEnd): void {
    this.end = end
    const { promptTokenIds } = end
    if (promptTokenIds && this.start) this.start = { ...this.start, promptTokenIds }
  }

  /** Returns the events received so far as one batch, for a reader that joins late. */
  getEventsSoFar(): GenerationEvent[] {
    const { start, end } = this
    const delta: GenerationDelta = { type: 'delta' }
    if (this.content !== null) delta.content = this.content
    if (this.reasoning !== null) delta.reasoning = this.reasoning
    if (this.refusal !== null) delta.refusal = this.refusal
    if (this.toolCalls.length > 0) delta.toolCalls = this.#toolCallDeltas()
    if (this.tokenIds.length > 0) delta.tokenIds = [...this.tokenIds]
    if (this.logprobs.length > 0) delta.logprobs = [...this.logprobs]
    if (this.logprobsContent.length > 0) delta.logprobsContent = [...this.logprobsContent]
    if (Object.keys(this.extra).length > 0) delta.extra = { ...this.extra }
    const deltas = Object.keys(delta).length > 1 ? [delta] : []
    return [...(start ? [start] : []), ...deltas, ...(end ? [end] : [])]
  }

  /** Returns the tool calls so far as deltas. They are copies, because later deltas extend the tool calls. */
  #toolCallDeltas(): ToolCallDelta[] {
    return [...this.#callByIndex].map(([index, { id, type, function: called }]) => ({
      index,
      id,
      type,
      function: { ...called },
    }))
  }

  #addDelta(delta: GenerationDelta): void {
    if (delta.content !== undefined) this.content = (this.content ?? '') + delta.content
    if (delta.reasoning !== undefined) this.reasoning = (this.reasoning ?? '') + delta.reasoning
    if (delta.refusal !== undefined) this.refusal = (this.refusal ?? '') + delta.refusal
    if (delta.toolCalls) for (const toolCallDelta of delta.toolCalls) this.#addToolCall(toolCallDelta)
    if (delta.details) this.#addDetails(delta.details, delta.tokenIds?.length ?? 0)
    // Loops instead of `push(...ids)`: an event of a complete response contains tens of thousands of ids, more than a
    // call may have arguments.
    if (delta.tokenIds) for (const id of delta.tokenIds) this.tokenIds.push(id)
    if (delta.logprobs) for (const logprob of delta.logprobs) this.logprobs.push(logprob)
    for (const entry of delta.logprobsContent ?? []) {
      this.logprobsContent.push(entry)
      if (delta.content) this.textLogprobs.push(entry)
    }
    if (delta.extra) Object.assign(this.extra, delta.extra)
  }

  #addDetails(details: TokenData, tokens: number): void {
    this.details ??= new TokenDataBuilder()
    this.details.add(details, this.tokenIds.length, tokens)
  }

  #addToolCall(delta: ToolCallDelta): void {
    let call = this.#callByIndex.get(delta.index)
    if (!call) {
      call = { id: '', type: 'function', function: { name: '', arguments: '' } }
      this.#callByIndex.set(delta.index, call)
      this.toolCalls.push(call)
    }
    if (delta.id) call.id = delta.id
    if (delta.function?.name) call.function.name += delta.function.name
    if (delta.function?.arguments) call.function.arguments += delta.function.arguments
  }
}

/**
 * Finish reasons of engines that stopped the model before it finished or reached its limit: vLLM's repetition detection
 * (`FinishReason` in `vllm/v1/engine/__init__.py`) and DeepSeek's API under load.
 */
const ENGINE_CUTS: ReadonlySet<string> = new Set(['repetition', 'insufficient_system_resource'])

/** Returns whether the engine cut the completion off for a reason other than its length. */
export function isCutByEngine(finishReason: string | null): boolean {
  return finishReason !== null && ENGINE_CUTS.has(finishReason)
}

/** Returns whether the completion was cut off, at its length or by the engine. */
export function isCutOff(finishReason: string | null): boolean {
  return finishReason === 'length' || isCutByEngine(finishReason)
}
