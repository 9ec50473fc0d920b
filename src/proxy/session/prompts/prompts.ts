/**
 * The interface between a session and its engines: how the prompt of a request is built, and what is cached of it for
 * requests that continue it. In chat mode (`chat-prompts.ts`) the engine renders prompts and the proxy measures them;
 * in token mode (`token-prompts.ts`) the proxy builds them.
 */
import type { Completion } from '../../../protocol/canonical/completion.ts'
import { type GenerationEvent, type GenerationStart, NO_ENGINE } from '../../../protocol/canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { TokenCounter } from '../../engines/port/count-tokens.ts'
import type { Tokenizer } from '../../tokens/tokenizer/tokenizer.ts'
import type { RequestBudget } from '../state/limits.ts'
import type { SessionMemory } from '../state/session-memory.ts'
import type { ContinuationPlanner } from './continuation.ts'

export interface Prompts {
  /**
   * Begins a request.
   * @param memory the session's cache, which the request references until it has ended
   * @param budget of the session; default: no limits
   * @throws ProxyError `invalid_request`, `unsupported`, `context_length_exceeded` for a request without a valid
   *   prompt; `store_failed`
   */
  begin(request: GenerationRequest, memory: SessionMemory, budget?: RequestBudget): Promise<RequestPrompt>
  /**
   * Returns the number of tokens of the prompt of a body, like {@link TokenCounter}.
   * @param session the session of the request, whose prompt may extend recorded tokens
   */
  countTokens(body: ChatBody, signal: AbortSignal, session?: PromptSession): Promise<number>
  /** Only if the proxy builds prompts itself. */
  readonly tokens?: PromptTokens
  /** Returns the number of prompts by reason since the start of the process. */
  getCounts(): Readonly<Record<string, number>>
}

/** The tokens of a model, of which prompts are built. */
export interface PromptTokens {
  readonly tokenizer: Tokenizer
  /** The maximum tokens of prompt and completion together; undefined: the model's files do not specify it. */
  readonly contextLength: number | undefined
  /** Returns the ids that {@link Prompts.countTokens} counts. */
  getIds(body: ChatBody, session?: PromptSession): Promise<number[]>
}

export interface PromptSession {
  readonly sessionId: string
  readonly memory: SessionMemory
}

export type MaybePromise<Value> = Value | Promise<Value>

/** The prompt of one request. */
export interface RequestPrompt {
  /** The request for the engine. */
  readonly request: GenerationRequest
  /** The response, if no engine is needed. */
  readonly response?: readonly GenerationEvent[]
  /** Plans the rest of a response that was cut; absent: it cannot be continued, because the engine renders prompts. */
  readonly continuation?: ContinuationPlanner
  /**
   * Does the work that `read` requires and that can overlap with the engine's, and therefore costs no latency. To be
   * called once the request has been sent, and to be awaited before `read` is called.
   * @throws ProxyError `invalid_request`
   */
  prepareToRead(): MaybePromise<void>
  /**
   * Converts the engine's events into those for the agent.
   * @throws AssertionError before {@link prepareToRead} has ended
   */
  read(events: readonly GenerationEvent[]): MaybePromise<readonly GenerationEvent[]>
  /** Releases resources at the end of the events, whether or not the response is complete. */
  close?(): void
  /** Called when the response is complete and committed, before the agent can have read its end and continue it. */
  onCommitted(completion: Completion): void
}

/**
 * Returns the prompt of a request without messages, which is forwarded to the engine unchanged, as is its response to
 * the agent.
 */
export function createPlainPrompt(request: GenerationRequest): RequestPrompt {
  return {
    request,
    prepareToRead() {},
    read: (events) => events,
    onCommitted() {},
  }
}

/**
 * Returns a prompt with an empty completion, for an agent that has reached a limit of its session.
 * @param limit the limit's name, to be recorded
 */
export function createLimitPrompt(request: GenerationRequest, limit: string): RequestPrompt {
  return { ...createPlainPrompt(request), response: createEmptyResponse({ annotations: { limit } }, 'stop') }
}

/** Returns the events of an empty completion without an engine. */
export function createEmptyResponse(
  start: Pick<GenerationStart, 'promptTokenIds' | 'annotations'>,
  finishReason: string,
): GenerationEvent[] {
  const prompt = start.promptTokenIds?.length ?? 0
  const usage = { prompt_tokens: prompt, completion_tokens: 0, total_tokens: prompt }
  return [
    { type: 'start', engine: NO_ENGINE, ...start },
    { type: 'delta', content: '' },
    { type: 'end', finishReason, usage },
  ]
}

/** Counts prompts by reason since the start of the process. */
export class PromptCounts {
  readonly #counts: Record<string, number> = {}

  add(reason: string): void {
    this.#counts[reason] = (this.#counts[reason] ?? 0) + 1
  }

  toJSON(): Record<string, number> {
    return { ...this.#counts }
  }
}
