/**
 * Generation events: what an engine says while it serves one request, whatever the engine, the backend and the
 * agent's dialect. A generation is one `start`, any number of `delta`, one `end`; or it throws a ProxyError.
 *
 * Events travel in batches (`readonly GenerationEvent[]`): one batch is what one read of the engine's socket
 * brought, so that a fast engine costs one write to the agent per read and not one per token.
 */
import type { TokenData } from '../token-data/token-data.ts'
import type { PromptIds } from '../token-ids/prompt-ids.ts'
import type { TokenLogprob, ToolCallDelta, Usage } from './messages.ts'

/** What {@link GenerationStart} has where the proxy answered itself. */
export const NO_ENGINE = 'none'

/** The engine accepted the request. */
export interface GenerationStart {
  type: 'start'
  /** Which engine serves, for the record: its URL without credentials, `embedded`, or `worker-id/url`. */
  engine: string
  /** The model's name as the engine gives it. */
  model?: string | undefined
  /** The prompt's token ids as the engine saw them, where it tells, else those it was sent. */
  promptTokenIds?: PromptIds | undefined
  /** One more than the highest id that the model has, where it is known. */
  vocabularySize?: number
  /** Which weights sampled, in the engine's own word. */
  weightVersion?: string | undefined
  /** What the engine says of how it samples, whatever the call asked for. */
  sampling?: EngineSampling
  /** What else the record should say of this turn; for instance how token mode came by its prompt. */
  annotations?: Record<string, unknown>
}

/** How an engine samples where a call does not say, as far as it tells. */
export interface EngineSampling {
  /** What its logprobs are of, by vLLM's names: `raw_logprobs`, or `processed_logprobs` after temperature and filters. */
  logprobsMode?: string
  /** Its own defaults, by the names of the request's fields. */
  defaults?: Readonly<Record<string, number>>
}

/** A piece of the completion. Every part is optional; a piece may carry tokens and no text, or text and no tokens. */
export interface GenerationDelta {
  type: 'delta'
  content?: string
  reasoning?: string
  refusal?: string
  toolCalls?: ToolCallDelta[]
  /** Ids of the tokens sampled in this piece, the end-of-turn token included, in order. As the engine has them: they may be none. */
  tokenIds?: number[]
  /** Natural-log probability of each of `tokenIds`; equal length, where the engine keeps its word. NaN: it did not tell. */
  logprobs?: number[]
  /** The engine's own entries with text and alternatives; only where the agent asked for logprobs. */
  logprobsContent?: TokenLogprob[]
  /** What else was reported: per token of `tokenIds`, or of the whole; see {@link TokenData}. Only where it was asked for. */
  details?: TokenData | undefined
  /** Fields of the engine's message that have no name here; they reach the agent unchanged. */
  extra?: Record<string, unknown>
}

/** The completion is whole. */
export interface GenerationEnd {
  type: 'end'
  /** OpenAI's finish reasons: `stop`, `length`, `tool_calls`, `content_filter`; an engine's others pass through. */
  finishReason: string
  /** The stop string or stop token id that ended it, where the engine tells. */
  stopReason?: string | number | null | undefined
  usage?: Usage | undefined
  /** The prompt's token ids, where the engine reports them after the start and differently from it. They replace those. */
  promptTokenIds?: PromptIds | undefined
  /**
   * Weights at the end, if they are known; they differ from the start's when weights changed mid-way. Absent: those of the
   * start. null: nobody knows whether it is still those.
   */
  weightVersion?: string | null | undefined
}

export type GenerationEvent = GenerationStart | GenerationDelta | GenerationEnd

export type GenerationStream = AsyncIterable<readonly GenerationEvent[]>
