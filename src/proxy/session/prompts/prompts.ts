/**
 * The port by which turns obtain prompts, and by which the session caches what later requests need. In chat mode
 * (`chat-prompts.ts`) the engine renders prompts and the proxy compares them with earlier ones; in token mode
 * (`token-prompts.ts`) the proxy builds them.
 */
import type { Completion } from '../../../protocol/canonical/completion.ts'
import { type GenerationEvent, type GenerationStart, NO_ENGINE } from '../../../protocol/canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import type { TokenCounter } from '../../engines/port/count-tokens.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'
import type { Tokenizer } from '../../tokens/tokenizer/tokenizer.ts'
import type { RequestBudget } from '../state/limits.ts'
import type { SessionMemory } from '../state/session-memory.ts'
import type { ContinuationPlanner } from './continuation.ts'

/** The source of prompts in one of the two modes. */
export interface Prompts {
  /**
   * Creates the prompt of a request.
   * @param memory the session's cache, which the prompt references until the request has ended
   * @param budget the session's budget; default: no limits
   * @throws ProxyError `invalid_request`, `unsupported`, `context_length_exceeded` for a request without a valid
   *   prompt; `store_failed`
   */
  begin(request: GenerationRequest, memory: SessionMemory, budget?: RequestBudget): Promise<RequestPrompt>
  /**
   * Returns the number of tokens of a body's prompt, as {@link TokenCounter} does.
   * @param session the session of the request, whose recorded tokens the prompt may extend
   */
  countTokens(body: ChatBody, signal: AbortSignal, session?: PromptSession): Promise<number>
  /** The prompts as token ids. Absent in chat mode, where engines render prompts. */
  readonly tokens?: PromptTokens
  /** Returns the number of prompts since the start of the process, by reason. */
  getCounts(): Readonly<Record<string, number>>
}

/** The tokenizer and the context length of the model, and the ids of prompts. */
export interface PromptTokens {
  readonly tokenizer: Tokenizer
  /** The maximum number of tokens of prompt and completion together; undefined: the model's files do not specify it. */
  readonly contextLength: number | undefined
  /** Returns the ids that {@link Prompts.countTokens} counts. */
  getIds(body: ChatBody, session?: PromptSession): Promise<TokenIds>
  /** See {@link TokenModel.encodeText}. */
  readonly encodeText: TokenModel['encodeText']
}

/** A session whose recorded tokens a prompt may extend. */
export interface PromptSession {
  readonly sessionId: string
  readonly memory: SessionMemory
}

/** A value that may be available immediately. */
export type MaybePromise<Value> = Value | Promise<Value>

/** The prompt of one request. */
export interface RequestPrompt {
  /** The request for the engine. */
  readonly request: GenerationRequest
  /** The response, if the request does not need an engine. */
  readonly response?: readonly GenerationEvent[]
  /**
   * Plans the continuation of a response whose engine request was cut. Absent: it cannot be continued, because the
   * engine renders the prompt.
   */
  readonly continuation?: ContinuationPlanner
  /**
   * Prepares {@link read}. This work overlaps with the engine's, so that it adds no latency. Must be called once the
   * request has been sent, and must have ended before `read` is called.
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
  /**
   * Caches the turn for requests that continue it. Must be called when the turn is committed, before the agent can
   * receive the end of the response.
   */
  onCommitted(completion: Completion): void
}

/** Creates the prompt of a request that is forwarded to the engine unchanged, as is its response to the agent. */
export function createPlainPrompt(request: GenerationRequest): RequestPrompt {
  return {
    request,
    prepareToRead() {},
    read: (events) => events,
    onCommitted() {},
  }
}

/**
 * Creates a prompt with an empty response, for a session that has reached a limit.
 * @param limit the name of the limit, which is recorded
 */
export function createLimitPrompt(request: GenerationRequest, limit: string): RequestPrompt {
  return { ...createPlainPrompt(request), response: createEmptyResponse({ annotations: { limit } }, 'stop') }
}

/** Creates the events of an empty completion without an engine. */
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

/** The number of prompts since the start of the process, by reason. */
export class PromptCounts {
  readonly #counts: Record<string, number> = {}

  add(reason: string): void {
    this.#counts[reason] = (this.#counts[reason] ?? 0) + 1
  }

  toJSON(): Record<string, number> {
    return { ...this.#counts }
  }
}
