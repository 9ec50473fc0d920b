/**
 * The prompts of chat mode, which the engine renders from messages. Whether the prompt of a request that continues a
 * turn begins with that turn's tokens depends on the template and on the agent's echoes. The outcome is recorded with
 * each turn; if it is `broken`, a new row begins there, which token mode would have prevented.
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
import type { ToolCallIds } from '../matching/tool-call-ids.ts'
import { type RequestBudget, UNLIMITED } from '../state/limits.ts'
import type { SessionMemory } from '../state/session-memory.ts'
import { createEchoAnnotation, findUnknownIds, hasUnknownIds } from './echo-annotation.ts'
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
 * The relation of a prompt that the engine rendered to those of earlier turns. `unknown`: the engine does not report
 * prompt ids, or the request may continue a turn that is not cached, because it is not exact, the proxy was restarted,
 * or the cache was evicted.
 */
type ChatPromptReason = 'first' | 'branched' | 'extended' | 'forked' | 'broken' | 'unknown'

/**
 * The implementation of {@link Prompts} for chat mode. It forwards messages, and compares the prompt ids that the
 * engine reports with those of earlier turns.
 */
export class ChatPrompts implements Prompts {
  readonly #countTokens: TokenCounter
  readonly #counts = new PromptCounts()

  readonly #store: Pick<TurnStore, 'readOutlines'> | undefined

  /**
   * @param countTokens counts tokens with the engines, which render the prompts
   * @param store the source of the tool-call ids of turns that are not cached; absent: such ids count as unknown
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
    const { callIds } = memory
    if (!callIds.isComplete && hasUnknownIds(request.lastMessage, callIds))
      await this.#learnRecordedIds(request.sessionId, memory)
    const unknownIds = findUnknownIds(request.lastMessage, callIds)
    return new ChatRequestPrompt(withOriginalIds(request, memory), {
      memory,
      unknownIds,
      counts: this.#counts,
    })
  }

  /**
   * Adds the tool-call ids of the session's recorded turns to its cache. The turns are read once per cache: requests
   * that arrive during the read wait for it, because their messages need the ids, too.
   * @throws ProxyError `store_failed`
   */
  async #learnRecordedIds(sessionId: string, memory: SessionMemory): Promise<void> {
    const store = this.#store
    if (store === undefined) return
    memory.readingCallIds ??= readCallIds(store, sessionId, memory.callIds).finally(() => {
      memory.readingCallIds = undefined
    })
    await memory.readingCallIds
  }

  countTokens(body: ChatBody, signal: AbortSignal, session?: PromptSession): Promise<number> {
    return this.#countTokens(body, signal, session?.sessionId)
  }

  getCounts(): Readonly<Record<string, number>> {
    return this.#counts.toJSON()
  }
}

/** Adds the tool-call ids of all recorded turns to `callIds`. */
async function readCallIds(
  store: Pick<TurnStore, 'readOutlines'>,
  sessionId: string,
  callIds: ToolCallIds,
): Promise<void> {
  for await (const turn of store.readOutlines(sessionId)) callIds.learnFrom(turn)
  callIds.isComplete = true
}

/** The dependencies of a {@link ChatRequestPrompt}. */
interface ChatPromptParts {
  readonly memory: SessionMemory
  readonly unknownIds: readonly string[]
  readonly counts: PromptCounts
}

/**
 * Returns the request with the ids of tool calls replaced by those that the model sampled, because the template of the
 * model renders them.
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

/** The prompt of one chat request that the engine renders. */
class ChatRequestPrompt implements RequestPrompt {
  readonly request: ChatGenerationRequest
  readonly #parts: ChatPromptParts
  readonly #turns: SessionTurns
  #match: PrefixMatch<SessionTurn> | undefined

  constructor(request: ChatGenerationRequest, parts: ChatPromptParts) {
    const { memory } = parts
    this.request = request
    this.#parts = parts
    // The turns are not read from the store, because reading them costs more than the comparison of prompts is worth.
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
    // Without this check, the turn would be recorded as `unknown`.
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
    if (parent && !promptTokenIds.rebaseOn(parent.turn.prompt)) return 'broken'
    if (parent) return isFork ? 'forked' : 'extended'
    // If all turns are cached, an assistant message that is no echo was edited, or is an example by the agent.
    if (this.#parts.memory.isComplete) return this.#turns.bytes > 0 ? 'branched' : 'first'
    const messages = getMessagesBetween(undefined, conversation.last)
    const mayContinue = messages.some((message) => getMessageKey(message).assistant !== undefined)
    return mayContinue ? 'unknown' : 'branched'
  }
}
