/**
 * Generation events: the reports of an engine while it serves one request, independent of engine, backend and the
 * agent's dialect. A generation is one `start`, any number of `delta` and one `end`, or it throws a ProxyError.
 *
 * Events are pushed in batches (`readonly GenerationEvent[]`) from the engine's socket to the agent's. A batch contains
 * the events of one read of the engine's socket, so that a fast engine causes one write to the agent per read and not
 * one per token.
 */
import type { TokenData } from '../token-data/token-data.ts'
import type { PromptIds } from '../token-ids/prompt-ids.ts'
import type { TokenLogprob, ToolCallDelta, Usage } from './messages.ts'

/** The `engine` of a {@link GenerationStart} for responses that the proxy generates itself. */
export const NO_ENGINE = 'none'

/** The first event: an engine has accepted the request. */
export interface GenerationStart {
  type: 'start'
  /** The recorded name of the engine: its URL without credentials, `embedded`, or `worker-id/url`. */
  engine: string
  /** The model name that the engine reports. */
  model?: string | undefined
  /** The prompt's token ids as the engine reports them, otherwise those that were sent to it. */
  promptTokenIds?: PromptIds | undefined
  /** One more than the model's highest token id; absent if unknown. */
  vocabularySize?: number
  /** The engine's own identifier of the weights that sampled. */
  weightVersion?: string | undefined
  /** Set if the engine did not stream: all tokens of the response had been sampled when this event was created. */
  isComplete?: true
  /** The sampling settings that the engine reports, independent of the request. */
  sampling?: EngineSampling
  /** Further annotations of the turn, for instance how token mode built its prompt. */
  annotations?: Record<string, unknown>
}

/** The settings with which an engine samples unless the request sets others, as far as the engine reports them. */
export interface EngineSampling {
  /**
   * The kind of its logprobs, by vLLM's names: `raw_logprobs`, or `processed_logprobs` after temperature and filters.
   */
  logprobsMode?: string
  /** The engine's defaults by the names of the request's fields. */
  defaults?: Readonly<Record<string, number>>
}

/** A delta of the completion. Every part is optional; a delta may carry tokens without text, or text without tokens. */
export interface GenerationDelta {
  type: 'delta'
  content?: string
  reasoning?: string
  refusal?: string
  toolCalls?: ToolCallDelta[]
  /**
   * Ids of the tokens sampled in this delta, in order, with the end-of-turn token. Unvalidated: they may be invalid
   * ids.
   */
  tokenIds?: number[]
  /** The natural-log probability of each of `tokenIds`. A correct engine sends one for each id. NaN: not reported. */
  logprobs?: number[]
  /** The engine's own entries with text and alternatives; set only if the agent requested logprobs. */
  logprobsContent?: TokenLogprob[]
  /** Other token data per token of `tokenIds` or of the completion; see {@link TokenData}. Set only if requested. */
  details?: TokenData | undefined
  /** Fields of the engine's message that are not defined here; they are forwarded unchanged. */
  extra?: Record<string, unknown>
}

/** The last event: the completion is finished. */
export interface GenerationEnd {
  type: 'end'
  /** A finish reason of OpenAI (`stop`, `length`, `tool_calls`, `content_filter`), or one that only this engine has. */
  finishReason: string
  /** The stop string or stop token id that ended it, if the engine reports it. */
  stopReason?: string | number | null | undefined
  usage?: Usage | undefined
  /** The prompt's token ids if the engine reports other ones after the start. They replace those of the start. */
  promptTokenIds?: PromptIds | undefined
  /**
   * The weights at the end, if known; they differ from the start's if weights changed meanwhile. Absent: those of the
   * start. null: unknown.
   */
  weightVersion?: string | null | undefined
}

export type GenerationEvent = GenerationStart | GenerationDelta | GenerationEnd

/** A receiver of the events of a generation, in order. */
export interface EventSink {
  /**
   * Receives a batch. The caller reads no further events until a returned promise has resolved, so that the agent's
   * backpressure reaches the engine.
   * @returns undefined if the sink accepts the next batch immediately
   * @throws an error that ends the generation and cancels the engine request; the promise may reject with one, too
   */
  write(events: readonly GenerationEvent[]): Promise<void> | undefined
}
