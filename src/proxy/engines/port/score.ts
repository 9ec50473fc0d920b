/**
 * Part of the engine port: scoring of tokens that were sampled before. The engine reads prompt and completion as one
 * prompt and returns the log-probability of each token in it.
 */

/** A request to score a completion that was sampled after a prompt. */
export interface ScoreRequest {
  promptTokenIds: Int32Array
  completionTokenIds: Int32Array
  /** The name of a model or adapter as the engine lists it; absent: the engine's default. */
  model?: string | undefined
  /** SGLang's name of an adapter (`lora_path`), if the turn was sampled with one. */
  loraPath?: string | undefined
  /** The number of most probable tokens to return with each token. 0: none. */
  alternatives: number
}

/**
 * The scores of one completion token, as natural logarithms of the model's distribution before temperature and every
 * other sampling parameter. Engines score prompts by this distribution, even if their sampled logprobs belong to
 * another one.
 */
export interface TokenScore {
  readonly logprob: number
  /** The logprobs of the most probable tokens, which may include this one. Empty unless requested. */
  readonly alternatives: readonly number[]
  /** The ids of those tokens, in the same order. */
  readonly alternativeIds: readonly number[]
}

/** The scores of a completion. */
export interface ScoreResult {
  /** One score per completion token. */
  readonly tokens: readonly TokenScore[]
}

/**
 * A function that scores a completion.
 * @throws ProxyError as `EngineClient.generate`, and `engine_failed` for a response that does not cover every token
 */
export type ScoreFunction = (request: ScoreRequest, signal: AbortSignal) => Promise<ScoreResult>
