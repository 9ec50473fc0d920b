/**
 * Token mode as a backend around a backend: chat calls go in as messages and reach the engine as token ids, tokens
 * come out of the engine and reach the agent as text, reasoning and tool calls. What is sampled stays what it is: the
 * prompt of a call that continues a turn begins with that turn's recorded ids.
 */
import { CompletionFold } from '../../canonical/completion.ts'
import type { GenerationEvent, GenerationStart, GenerationStream } from '../../canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../canonical/request.ts'
import { ProxyError } from '../../errors.ts'
import type { Backend, BackendStatus } from '../../inference/backend.ts'
import { BackendAround } from '../../inference/backend-around.ts'
import type { TurnRecord, TurnStore } from '../../store/turn-store.ts'
import type { TokenModel } from '../../tokens/token-model.ts'
import { inexactReason } from '../exactness.ts'
import { AnswerDecoder } from './answer-decoder.ts'
import { decoderFor } from './decoder-for.ts'
import { PromptCounts } from './prompt-counts.ts'
import {
  type ChatRequest,
  type PlannedPrompt,
  planPrompt,
  promptOptionsOf,
  readRecordedCall,
} from './prompt-planner.ts'
import { type BorrowedLines, SessionsLines } from './session-lines.ts'
import { areEqual, TokenLine } from './token-line.ts'

export class TokenModeBackend extends BackendAround {
  readonly #model: TokenModel
  readonly #sessions: SessionsLines
  readonly #counts = new PromptCounts()

  /** The model stays its owner's to close. */
  constructor(inner: Backend, model: TokenModel, store: Pick<TurnStore, 'readTurns'>) {
    super(inner)
    this.#model = model
    this.#sessions = new SessionsLines(store, (turn) => readRecordedCall(model.renderer, bodyOnRecord(turn)))
  }

  generate(request: GenerationRequest, signal: AbortSignal): GenerationStream {
    return request.kind === 'chat' ? this.#chat(request, signal) : this.inner.generate(request, signal)
  }

  /** Of a session: the prompt that a call would have, which may go on from recorded ids. Remembers nothing of it. */
  override async countTokens(body: ChatBody, _signal: AbortSignal, sessionId?: string): Promise<number> {
    if (sessionId === undefined) {
      const { ids } = await this.#model.renderer.renderFull(body.messages, promptOptionsOf(body))
      return ids.length
    }
    using session = await this.#sessions.borrow(sessionId)
    const { ids } = await planPrompt(this.#model.renderer, session, { body })
    return ids.length
  }

  override releaseSession(sessionId: string): void {
    this.#sessions.forget(sessionId)
    super.releaseSession(sessionId)
  }

  override status(): BackendStatus {
    return { ...super.status(), prompts: this.#counts.toJSON() }
  }

  async *#chat(request: ChatRequest, signal: AbortSignal): GenerationStream {
    using session = await this.#sessions.borrow(request.sessionId)
    const prompt = await planPrompt(this.#model.renderer, session, request)
    signal.throwIfAborted()
    this.#counts.add(prompt.origin.reason)
    const fold = new CompletionFold()
    for await (const batch of this.#answer(request, prompt, signal)) {
      for (const event of batch) fold.add(event)
      // Before the agent can have read the end and go on from it.
      if (fold.end) this.#remember(request, session, prompt, fold)
      yield batch
    }
  }

  async *#answer(request: ChatRequest, prompt: PlannedPrompt, signal: AbortSignal): GenerationStream {
    const room = this.#roomAfter(prompt.ids)
    if (room <= 0) {
      if (request.refuseOverlong) throw this.#overlong(prompt.ids)
      yield noRoom(prompt)
      return
    }
    const asked = { ...request, promptTokenIds: prompt.ids, body: withBudget(request.body, room) }
    const decoder = new AnswerDecoder(decoderFor(this.#model, request.body, prompt.text))
    for await (const batch of this.inner.generate(asked, signal)) {
      yield batch.flatMap((event) => this.#toAgent(event, decoder, prompt))
    }
  }

  #toAgent(event: GenerationEvent, decoder: AnswerDecoder, prompt: PlannedPrompt): GenerationEvent[] {
    if (event.type === 'delta') return [decoder.push(event)]
    if (event.type === 'end') return decoder.finish(event)
    return [this.#startOf(event, prompt)]
  }

  /** The prompt's ids as the engine reports them; where it reports others than it was sent, the record says so. */
  #startOf(start: GenerationStart, { ids, origin }: PlannedPrompt): GenerationStart {
    const { promptTokenIds: reported = ids } = start
    const mismatched = !areEqual(reported, ids)
    if (mismatched) this.#counts.add('mismatched')
    return {
      ...start,
      // Of two that are equal, the one that is in use: the other one's memory is free.
      promptTokenIds: mismatched ? reported : ids,
      vocabularySize: this.#model.vocabularySize,
      annotations: { ...start.annotations, prompt: originToWire(origin, mismatched) },
    }
  }

  #remember(
    { requestId }: ChatRequest,
    session: BorrowedLines,
    prompt: PlannedPrompt,
    fold: CompletionFold,
  ): void {
    // A prompt that is built on ids which may be wrong or missing would be wrong with them.
    if (inexactReason(fold) !== null) return
    const { content, reasoning, toolCalls, start, tokenIds } = fold
    const seen = start?.promptTokenIds ?? prompt.ids
    const line = new TokenLine(requestId, seen, Int32Array.from(tokenIds), prompt.parent)
    session.add(prompt.call, { content, reasoning, toolCalls }, line)
  }

  /** In the words of vLLM: dialects tell it in their own. */
  #overlong({ length }: Int32Array): ProxyError {
    const limit = `This model's maximum context length is ${this.#model.contextLength} tokens.`
    const message = `${limit} However, your prompt contains ${length} input tokens.`
    return new ProxyError('context_length_exceeded', message)
  }

  #roomAfter(ids: Int32Array): number {
    return (this.#model.contextLength ?? Number.POSITIVE_INFINITY) - ids.length
  }
}

function bodyOnRecord({ requestMessages, tools, params }: TurnRecord): ChatBody {
  const messages = requestMessages.map((text) => JSON.parse(text))
  return { ...JSON.parse(params), messages, tools: tools === null ? null : JSON.parse(tools) }
}

/** The prompt fills the context: the answer is empty, and no engine is asked. */
function noRoom({ ids, origin }: PlannedPrompt): GenerationEvent[] {
  const usage = { prompt_tokens: ids.length, completion_tokens: 0, total_tokens: ids.length }
  return [
    {
      type: 'start',
      engine: 'none',
      promptTokenIds: ids,
      annotations: { prompt: originToWire(origin, false) },
    },
    { type: 'delta', content: '' },
    { type: 'end', finishReason: 'length', usage },
  ]
}

/** At most as many tokens as there is room for; where the room is not known, what the agent asks for. */
function withBudget(body: ChatBody, room: number): ChatBody {
  const { max_completion_tokens: newer, max_tokens: older, ...rest } = body
  const asked = newer ?? older
  if (!Number.isFinite(room)) return asked === undefined ? rest : { ...rest, max_tokens: asked }
  return { ...rest, max_tokens: Math.min(asked ?? room, room) }
}

function originToWire({ reason, from, reusedTokens }: PlannedPrompt['origin'], mismatched: boolean): object {
  return { reason, ...(from !== undefined && { from }), reused_tokens: reusedTokens, mismatched }
}
