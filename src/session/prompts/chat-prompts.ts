/**
 * Chat mode, measured: the engine renders prompts anew from messages, and whether the prompt of a call that continues
 * a turn still begins with that turn's tokens is up to the template and to what the agent echoed. Each turn says what
 * became of it; where it is `broken`, the trajectory falls apart there, and token mode would have kept it whole.
 */
import type { Completion } from '../../canonical/completion.ts'
import type { GenerationEvent, GenerationStart } from '../../canonical/events.ts'
import type { GenerationRequest } from '../../canonical/request.ts'
import type { CountTokens } from '../../inference/count-tokens.ts'
import type { TurnStore } from '../../store/turn-store.ts'
import { inexactReason } from '../exactness.ts'
import type { MatchedCall } from '../matching/match-index.ts'
import { recordedConversation } from '../matching/rebuild-index.ts'
import { PromptCounts } from './prompt-counts.ts'
import { type ChatRequest, messagesOf } from './prompt-planner.ts'
import { type CallPrompt, type Prompts, plainPrompt } from './prompts.ts'
import { type BorrowedTurns, SessionsTurns } from './session-turns.ts'
import { TurnIds } from './turn-ids.ts'

/**
 * Of a prompt that the engine rendered. `unknown`: the engine does not tell its ids, or the call goes on from a turn
 * that is not remembered (the proxy was started anew, or remembers too many others).
 */
export type RenderedPrompt = 'first' | 'branched' | 'extended' | 'broken' | 'unknown'

const NO_RECORD: Pick<TurnStore, 'readTurns'> = { async *readTurns() {} }

/** Of token ids: some 300 sessions of 100k tokens. */
const MAX_BYTES = 128 * 1024 * 1024

export class ChatPrompts implements Prompts {
  readonly countTokens: CountTokens
  readonly #sessions: SessionsTurns
  readonly #counts = new PromptCounts()

  /** @param countTokens the engines', which render prompts */
  constructor(countTokens: CountTokens) {
    this.countTokens = countTokens
    // Reading a session again costs more than its measure is worth.
    this.#sessions = new SessionsTurns(NO_RECORD, recordedConversation, MAX_BYTES)
  }

  async begin(request: GenerationRequest): Promise<CallPrompt> {
    if (request.kind !== 'chat') return plainPrompt(request)
    return new RenderedCall(request, await this.#sessions.borrow(request.sessionId), this.#counts)
  }

  counts(): Readonly<Record<string, number>> {
    return this.#counts.toJSON()
  }

  forget(sessionId: string): void {
    this.#sessions.forget(sessionId)
  }
}

class RenderedCall implements CallPrompt {
  readonly request: ChatRequest
  readonly #session: BorrowedTurns
  readonly #counts: PromptCounts
  #call: MatchedCall<TurnIds> | undefined

  constructor(request: ChatRequest, session: BorrowedTurns, counts: PromptCounts) {
    this.request = request
    this.#session = session
    this.#counts = counts
  }

  async whileAsked(): Promise<void> {
    this.#call = this.#session.turns.match(this.#session.read(messagesOf(this.request)))
  }

  read(events: readonly GenerationEvent[]): readonly GenerationEvent[] {
    const [first] = events
    return first?.type === 'start' ? [this.#judge(first), ...events.slice(1)] : events
  }

  answered(completion: Completion): void {
    const { content, reasoning, toolCalls, start, tokenIds } = completion
    if (this.#call === undefined || !start?.promptTokenIds || inexactReason(completion) !== null) return
    const { parent } = this.#call
    const ids = new TurnIds(
      this.request.requestId,
      start.promptTokenIds,
      Int32Array.from(tokenIds),
      parent?.turn,
    )
    this.#session.add(this.#call, { content, reasoning, toolCalls }, ids)
  }

  [Symbol.dispose](): void {
    this.#session[Symbol.dispose]()
  }

  #judge(start: GenerationStart): GenerationStart {
    const reason = this.#reasonOf(start)
    this.#counts.add(reason)
    const parent = this.#call?.parent
    const from = parent && { from: parent.turn.turnId }
    return { ...start, annotations: { ...start.annotations, prompt: { reason, ...from } } }
  }

  #reasonOf({ promptTokenIds }: GenerationStart): RenderedPrompt {
    if (!promptTokenIds || this.#call === undefined) return 'unknown'
    const { parent, conversation } = this.#call
    if (parent) return parent.turn.begins(promptTokenIds) ? 'extended' : 'broken'
    if (this.#session.turns.bytes > 0) return 'branched'
    const goesOn = conversation.keys.some((key) => key.assistant !== undefined)
    return goesOn ? 'unknown' : 'first'
  }
}
