/**
 * Chat mode with measurement: the engine renders prompts from messages, and it depends on the template and on the
 * agent's echoes whether the prompt of a request that continues a turn still begins with that turn's tokens. The
 * outcome is recorded with each turn; if it is `broken`, the trajectory is split there, which token mode would have
 * prevented.
 */
import assert from 'node:assert/strict'
import { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import { getMessagesBetween } from '../../../protocol/canonical/conversation.ts'
import type { GenerationEvent, GenerationStart } from '../../../protocol/canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { TokenCounter } from '../../engines/port/count-tokens.ts'
import type { TurnStore } from '../../store/port/turn-store.ts'
import { type ConversationKeys, getMessageKey, readConversationInSlices } from '../matching/conversation.ts'
import { PrefixIndex, type PrefixMatch } from '../matching/prefix-index.ts'
import { type SessionTurn, SessionTurns } from '../matching/session-turns.ts'
import { type RequestBudget, UNLIMITED } from '../state/limits.ts'
import type { SessionMemory } from '../state/session-memory.ts'
import { createEchoAnnotation, findUnknownIds } from './echo-annotation.ts'
import { findInexactReason } from './exactness.ts'
import type { ChatGenerationRequest } from './prompt-planner.ts'
import {
  createPlainPrompt,
  type MaybePromise,
  PromptCounts,
  type PromptSession,
  type Prompts,
  type RequestPrompt,
} from './prompts.ts'
import { restoreSampled } from './restore-sampled.ts'

/**
 * How a prompt that the engine rendered is related to earlier ones. `unknown`: the engine does not report its ids, or
 * the request may continue a turn that is not cached (it is not exact, the proxy was restarted, or it was evicted).
 */
type ChatPromptReason = 'first' | 'branched' | 'extended' | 'forked' | 'broken' | 'unknown'

export class ChatPrompts implements Prompts {
  readonly #countTokens: TokenCounter
  readonly #counts = new PromptCounts()

  readonly #store: Pick<TurnStore, 'readOutlines'> | undefined

  /**
   * @param countTokens counts with the engines, which render prompts
   * @param store has the ids of tool calls that this process has not seen
   */
  constructor(countTokens: TokenCounter, store?: Pick<TurnStore, 'readOutlines'>) {
    this.#countTokens = countTokens
    this.#store = store
  }

  async begin(
    request: GenerationRequest,
    memory: SessionMemory,
    { contextTokens }: RequestBudget = UNLIMITED,
  ): Promise<RequestPrompt> {
    if (request.kind !== 'chat') return createPlainPrompt(request)
    if (Number.isFinite(contextTokens)) {
      const message = 'limits.context_tokens requires token mode: start the proxy with --tokenizer'
      throw new ProxyError('unsupported', message, { param: 'limits' })
    }
    const unknown = findUnknownIds(request.lastMessage, memory.callIds)
    const unknownIds = unknown.length === 0 ? unknown : await this.#withoutRecorded(unknown, request, memory)
    return new ChatRequestPrompt(withOriginalIds(request, memory), {
      memory,
      unknownIds,
      counts: this.#counts,
    })
  }

  /** Removes the ids of tool calls that the store has. */
  async #withoutRecorded(
    unknown: readonly string[],
    { sessionId }: ChatGenerationRequest,
    { callIds }: SessionMemory,
  ): Promise<readonly string[]> {
    if (callIds.isComplete || this.#store === undefined) return unknown
    for await (const turn of this.#store.readOutlines(sessionId)) callIds.learnFrom(turn)
    callIds.isComplete = true
    return unknown.filter((id) => callIds.isStray(id))
  }

  countTokens(body: ChatBody, signal: AbortSignal, session?: PromptSession): Promise<number> {
    return this.#countTokens(body, signal, session?.sessionId)
  }

  getCounts(): Readonly<Record<string, number>> {
    return this.#counts.toJSON()
  }
}

interface ChatPromptParts {
  readonly memory: SessionMemory
  readonly unknownIds: readonly string[]
  readonly counts: PromptCounts
}

/**
 * Returns the request with its messages as the agent sent them, except that tool calls have the ids that the model
 * itself gave them: its template shows them.
 */
function withOriginalIds(request: ChatGenerationRequest, { callIds }: SessionMemory): ChatGenerationRequest {
  if (!callIds.hasOwn) return request
  const sent = getMessagesBetween(undefined, request.lastMessage)
  const named = restoreSampled(sent, undefined, callIds)
  if (named === sent) return request
  const { messagesJson: _, ...rest } = request
  const chunks = named.map((message, index) => Buffer.from(`${index === 0 ? '' : ','}${message.json}`))
  return {
    ...rest,
    messagesJson: chunks,
    body: { ...request.body, messages: named.map(({ value }) => value) },
  }
}

class ChatRequestPrompt implements RequestPrompt {
  readonly request: ChatGenerationRequest
  readonly #parts: ChatPromptParts
  readonly #turns: SessionTurns
  #match: PrefixMatch<SessionTurn> | undefined

  constructor(request: ChatGenerationRequest, parts: ChatPromptParts) {
    const { memory } = parts
    this.request = request
    this.#parts = parts
    // Not read from the store: reading a session again costs more than this measurement is worth.
    this.#turns = memory.turns ??= new SessionTurns(new PrefixIndex(memory.editedCalls))
  }

  prepareToRead(): MaybePromise<void> {
    const { body, lastMessage } = this.request
    const keys = readConversationInSlices(lastMessage, body.tools, this.#parts.memory.requests)
    const match = (read: ConversationKeys) => {
      this.#match = this.#turns.match(read)
    }
    return keys instanceof Promise ? keys.then(match) : match(keys)
  }

  read(events: readonly GenerationEvent[]): readonly GenerationEvent[] {
    // Otherwise the turn would be recorded as one whose relation to earlier turns is unknown.
    assert(this.#match !== undefined, 'events are read before prepareToRead has ended')
    const [first] = events
    return first?.type === 'start' ? [this.#annotate(first), ...events.slice(1)] : events
  }

  onCommitted(completion: Completion): void {
    const { content, reasoning, toolCalls, start, tokenIds } = completion
    if (this.#match === undefined || !start?.promptTokenIds || findInexactReason(completion) !== null) {
      this.#parts.memory.isComplete = false
      return
    }
    const { promptTokenIds: prompt } = start
    prompt.completion = Int32Array.from(tokenIds)
    const { requestId: turnId } = this.request
    this.#turns.add(this.#match, { content, reasoning, toolCalls }, { turnId, prompt })
  }

  #annotate(start: GenerationStart): GenerationStart {
    const { counts, unknownIds } = this.#parts
    const reason = this.#getReason(start)
    counts.add(reason)
    const parent = this.#match?.parent
    this.#logMatch(reason, parent?.turn)
    const from = parent && { from: parent.turn.turnId }
    const note = this.#match && createEchoAnnotation(this.#match, this.request.lastMessage, unknownIds)
    return { ...start, annotations: { ...start.annotations, ...note, prompt: { reason, ...from } } }
  }

  #logMatch(reason: ChatPromptReason, parent: SessionTurn | undefined): void {
    const isReused = reason === 'extended' || reason === 'forked'
    this.request.log?.logMatch({
      reason,
      parent: parent?.turnId,
      reusedTokens: isReused ? parent!.prompt.tokenCount : 0,
      knownMessages: this.#match?.knownMessages ?? 0,
    })
  }

  #getReason({ promptTokenIds }: GenerationStart): ChatPromptReason {
    if (!promptTokenIds || this.#match === undefined) return 'unknown'
    const { parent, isFork, conversation } = this.#match
    if (parent && !promptTokenIds.continuesFrom(parent.turn.prompt)) return 'broken'
    if (parent) return isFork ? 'forked' : 'extended'
    // If every turn that it could be a completion of is cached, an assistant message is an example, or was edited.
    if (this.#parts.memory.isComplete) return this.#turns.bytes > 0 ? 'branched' : 'first'
    const messages = getMessagesBetween(undefined, conversation.last)
    const mayContinue = messages.some((message) => getMessageKey(message).assistant !== undefined)
    return mayContinue ? 'unknown' : 'branched'
  }
}
