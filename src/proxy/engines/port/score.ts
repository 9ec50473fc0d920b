/**
 * Part of the engine port: what an engine thinks of tokens that were sampled before. It is asked to read prompt and
 * completion as one prompt, and tells the log-probability of each token in it.
 */

export interface ScoreRequest {
  promptTokenIds: Int32Array
  completionTokenIds: Int32Array
  /** A model or adapter, by the name that the engine lists; absent: the engine's default. */
  model?: string | undefined
  /** SGLang's name of an adapter (`lora_path`), where the call had one. */
  loraPath?: string | undefined
  /** How many of the most probable tokens to tell beside each token. 0: none. */
  alternatives: number
}

/**
 * What the engine says of one token of the completion, in natural logarithms: as the model has it, before temperature and
 * every other sampling parameter. Engines score prompts that way, whatever they give with what they sample.
 */
export interface TokenScore {
  readonly logprob: number
  /** Of different tokens, this one among them or not: the most probable ones. Empty unless asked for. */
  readonly alternatives: readonly number[]
  /** Which tokens those are; as many. */
  readonly alternativeIds: readonly number[]
}

export interface ScoreResult {
  /** As many as the completion has. */
  readonly tokens: readonly TokenScore[]
}

/** @throws ProxyError as `EngineClient.generate`, and `engine_failed` for an answer that does not tell every token */
export type Score = (request: ScoreRequest, signal: AbortSignal) => Promise<ScoreResult>
