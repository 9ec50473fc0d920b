/**
 * Port: an inference server that samples tokens. Adapters are in `../clients/`; the local backend and the inference
 * worker use them. All adapters pass `test/conformance/engine-client.ts`.
 */
import type { EventSink } from '../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { TokenCounter } from './count-tokens.ts'
import type { TokenizerQuery, TokenizerReply } from './expected-tokenizer.ts'
import type { ScoreFunction } from './score.ts'

export type EngineKind = 'vllm' | 'sglang' | 'openai' | 'embedded'

export interface EngineModel {
  id: string
  /** The context length in tokens, if the engine reports it. */
  maxModelLen?: number | undefined
  /** Whether this is an adapter on another model that the engine serves. */
  isAdapter?: boolean | undefined
}

export interface EngineHealth extends TokenizerReply {
  models: EngineModel[]
  /** The version of the weights that the engine serves, in the engine's own notation, if it reports one. */
  weightVersion?: string | undefined
  /** Set while the engine is alive but samples nothing until it is woken. */
  unavailable?: UnavailableReason | undefined
}

/**
 * The reason why a healthy engine samples nothing: a trainer has put it to sleep, or has paused it. An engine that
 * pauses in order to sleep may report only `paused`.
 */
export type UnavailableReason = 'asleep' | 'paused'

export interface EngineClient {
  readonly kind: EngineKind
  /** The name of the engine in logs, stored turns and `/health`: its URL without credentials, or `embedded`. */
  readonly name: string
  /**
   * Whether the engine serves token mode (`GenerationRequest.promptTokenIds`); otherwise it rejects ids as
   * `unsupported`.
   */
  readonly takesTokenIds: boolean
  /**
   * Whether the engine serves images in token mode (`GenerationRequest.images`); if absent, it rejects them as
   * `unsupported`.
   */
  readonly takesImages?: boolean

  /** A warning for operators: the reason why turns of this healthy engine may be degraded. */
  readonly warning?: string | undefined

  /**
   * Serves one request: pushes its events to `sink` and resolves after the last one, `end`. Aborting `signal`, or an
   * error of the sink, cancels the engine's work immediately. Does not retry; the backend does.
   * @throws ProxyError `unsupported` (the engine lacks a capability), `engine_unreachable` (no connection: nothing was
   *   sampled), `engine_rejected` (the engine's 4xx, with its status and body), `engine_failed` (its 5xx, or a response
   *   that violates its protocol), `engine_aborted` (it aborted the request, for instance to load new weights),
   *   `engine_lost` (the connection ended before `end`), `engine_timeout` (the engine stopped sending), and errors of
   *   the sink. After an abort: `signal.reason`.
   */
  generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void>

  /** Present if the engine can render the prompt of a chat. */
  countTokens?: TokenCounter

  /** Present if the engine can compute the log-probabilities of given tokens. */
  score?: ScoreFunction

  /**
   * Returns the text that each token adds. Present if engines of this kind may support it.
   * @returns undefined if this engine does not support it
   * @throws ProxyError as {@link generate}
   */
  getTokenTexts?(model: string, ids: Int32Array, signal: AbortSignal): Promise<string[] | undefined>

  /**
   * Checks whether the engine serves.
   * @param question a query about the engine's tokenizer, to which the result contains the reply
   * @throws ProxyError `engine_unreachable` or `engine_failed`
   */
  checkHealth(signal: AbortSignal, question?: TokenizerQuery): Promise<EngineHealth>

  /** Discards the data of a session that has ended, in this client and at the server. Does not wait for the server. */
  endSession?(sessionId: string): void

  /** Closes idle connections. The caller must have cancelled running generations. */
  close(): Promise<void>
}
