/**
 * Chat mode, measured: the engine renders prompts anew from messages, and whether the prompt of a call that continues
 * a turn still begins with that turn's tokens is up to the template and to what the agent echoed. Each turn says what
 * became of it; where it is `broken`, the trajectory falls apart there, and token mode would have kept it whole.
 */
import type { Completion } from '../../../protocol/canonical/completion.ts'
import { messagesBetween } from '../../../protocol/canonical/conversation.ts'
import type { GenerationEvent, GenerationStart } from '../../../protocol/canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { CountTokens } from '../../engines/port/count-tokens.ts'
import { keyOf, readConversation } from '../matching/conversation.ts'
import type { MatchedCall } from '../matching/match-index.ts'
import { type KnownTurn, SessionTurns } from '../matching/session-turns.ts'
import type { SessionMemory } from '../state/session-memory.ts'
import { inexactReason } from './exactness.ts'
import { PromptCounts } from './prompt-counts.ts'
import type { ChatGeneration } from './prompt-planner.ts'
import { type CallPrompt, type CountedSession, type Prompts, plainPrompt } from './prompts.ts'

/**
 * Of a prompt that the engine rendered. `unknown`: the engine does not tell its ids, or the call may go on from a turn
 * that is not remembered (it is not exact, the proxy was started anew, or remembers too many others).
 */
export type RenderedPrompt = 'first' | 'branched' | 'extended' | 'forked' | 'broken' | 'unknown'

export class ChatPrompts implements Prompts {
  readonly #countTokens: CountTokens
  readonly #counts = new PromptCounts()

  /** @param countTokens the engines', which render prompts */
  constructor(countTokens: CountTokens) {
    this.#countTokens = countTokens
  }

  async begin(request: GenerationRequest, memory: SessionMemory): Promise<CallPrompt> {
    if (request.kind !== 'chat') return plainPrompt(request)
    return new RenderedCall(request, memory, this.#counts)
  }

  countTokens(body: ChatBody, signal: AbortSignal, session?: CountedSession): Promise<number> {
    return this.#countTokens(body, signal, session?.sessionId)
  }

  counts(): Readonly<Record<string, number>> {
    return this.#counts.toJSON()
  }
}

class RenderedCall implements CallPrompt {
  readonly request: ChatGeneration
  readonly #memory: SessionMemory
  readonly #turns: SessionTurns
  readonly #counts: PromptCounts
  #call: MatchedCall<KnownTurn> | undefined

  constructor(request: ChatGeneration, memory: SessionMemory, counts: PromptCounts) {
    this.request = request
    this.#memory = memory
    // Not from the record: to read a session again costs more than its measure is worth.
    this.#turns = memory.turns ??= new SessionTurns()
    this.#counts = counts
  }

  async whileAsked(): Promise<void> {
    const { body, lastMessage } = this.request
    this.#call = this.#turns.match(readConversation(lastMessage, body.tools, this.#memory.requests))
  }

  read(events: readonly GenerationEvent[]): readonly GenerationEvent[] {
    const [first] = events
    return first?.type === 'start' ? [this.#judge(first), ...events.slice(1)] : events
  }

  answered(completion: Completion): void {
    const { content, reasoning, toolCalls, start, tokenIds } = completion
    if (this.#call === undefined || !start?.promptTokenIds || inexactReason(completion) !== null) {
      this.#memory.isWhole = false
      return
    }
    const { promptTokenIds: prompt } = start
    prompt.completion = Int32Array.from(tokenIds)
    const { requestId: turnId } = this.request
    this.#turns.add(this.#call, { content, reasoning, toolCalls }, { turnId, prompt })
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
    const { parent, isFork, conversation } = this.#call
    if (parent && !promptTokenIds.goesOnFrom(parent.turn.prompt)) return 'broken'
    if (parent) return isFork ? 'forked' : 'extended'
    // An assistant's message is an example, or edited, where each turn is known that it could be the answer of.
    if (this.#memory.isWhole) return this.#turns.bytes > 0 ? 'branched' : 'first'
    const messages = messagesBetween(undefined, conversation.last)
    const mayGoOn = messages.some((message) => keyOf(message).assistant !== undefined)
    return mayGoOn ? 'unknown' : 'branched'
  }
}
