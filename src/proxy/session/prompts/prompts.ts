/**
 * The step between a session and its engines: how the prompt of a call comes about, and what is remembered of it for
 * the calls that go on from there. Chat mode (`chat-prompts.ts`) leaves prompts to the engine and measures them; token
 * mode (`token-prompts.ts`) makes them.
 */
import type { Completion } from '../../../protocol/canonical/completion.ts'
import {
  type GenerationEvent,
  type GenerationStart,
  type GenerationStream,
  NO_ENGINE,
} from '../../../protocol/canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { CountTokens } from '../../engines/port/count-tokens.ts'
import type { Tokenizer } from '../../tokens/tokenizer/tokenizer.ts'
import type { CallBudget } from '../state/limits.ts'
import type { SessionMemory } from '../state/session-memory.ts'

export interface Prompts {
  /**
   * A call begins.
   * @param memory the session's, which the call holds until it has ended
   * @param budget of the session; default: no limits
   * @throws ProxyError `invalid_request`, `unsupported`, `context_length_exceeded` for what cannot become a prompt;
   *   `store_failed`
   */
  begin(request: GenerationRequest, memory: SessionMemory, budget?: CallBudget): Promise<CallPrompt>
  /**
   * The tokens of the prompt that a body would become, as {@link CountTokens}.
   * @param session of which the call would be: its prompt may go on from recorded tokens
   */
  countTokens(body: ChatBody, signal: AbortSignal, session?: PromptSession): Promise<number>
  /** Only where the proxy makes prompts itself. */
  readonly tokens?: PromptTokens
  /** How prompts came about, counted by reason since the start of the process. */
  counts(): Readonly<Record<string, number>>
}

/** A model's tokens, as prompts are made of them. */
export interface PromptTokens {
  readonly tokenizer: Tokenizer
  /** Tokens of prompt and completion together; undefined: the model's files do not say. */
  readonly contextLength: number | undefined
  /** What {@link Prompts.countTokens} counts. */
  idsOf(body: ChatBody, session?: PromptSession): Promise<number[]>
}

export interface PromptSession {
  readonly sessionId: string
  readonly memory: SessionMemory
}

export type MaybePromised<Value> = Value | Promise<Value>

/** The prompt of one call. */
export interface CallPrompt {
  /** What the engine is to be asked. */
  readonly request: GenerationRequest
  /** Where no engine need be asked: its answer. */
  readonly answer?: GenerationStream
  /**
   * What can be done while the engine works, and so costs the agent no time; to be awaited before anything is read.
   * @throws ProxyError `invalid_request`
   */
  whileAsked(): Promise<void>
  /** What the agent gets of what the engine said. */
  read(events: readonly GenerationEvent[]): MaybePromised<readonly GenerationEvent[]>
  /** Nothing more will be read, whether the answer is whole or not. */
  close?(): void
  /** The answer is whole, and on record. Before the agent can have read the end and go on from it. */
  answered(completion: Completion): void
}

/** The prompt of a call that has no messages: it goes to the engine, and its answer to the agent, as they are. */
export function plainPrompt(request: GenerationRequest): CallPrompt {
  return {
    request,
    whileAsked: async () => {},
    read: (events) => events,
    answered() {},
  }
}

/** The end that an agent gets at a limit of its session. @param limit the limit's name, for the record */
export function endAtLimit(request: GenerationRequest, limit: string): CallPrompt {
  return { ...plainPrompt(request), answer: emptyAnswer({ annotations: { limit } }, 'stop') }
}

/** Where no engine is asked. */
export async function* emptyAnswer(
  start: Pick<GenerationStart, 'promptTokenIds' | 'annotations'>,
  finishReason: string,
): GenerationStream {
  const prompt = start.promptTokenIds?.length ?? 0
  const usage = { prompt_tokens: prompt, completion_tokens: 0, total_tokens: prompt }
  yield [
    { type: 'start', engine: NO_ENGINE, ...start },
    { type: 'delta', content: '' },
    { type: 'end', finishReason, usage },
  ]
}

/** How prompts came about, counted by reason since the start of the process. */
export class PromptCounts {
  readonly #counts: Record<string, number> = {}

  add(reason: string): void {
    this.#counts[reason] = (this.#counts[reason] ?? 0) + 1
  }

  toJSON(): Record<string, number> {
    return { ...this.#counts }
  }
}
