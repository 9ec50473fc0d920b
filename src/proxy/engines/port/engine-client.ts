/**
 * Port: one inference server that samples tokens. Adapters live in `../clients/`; the local backend and the
 * inference worker both use them. All adapters pass `test/conformance/engine-client.ts`.
 */
import type { GenerationStream } from '../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { CountTokens } from './count-tokens.ts'
import type { TokenizerAnswer, TokenizerQuestion } from './expected-tokenizer.ts'
import type { Score } from './score.ts'

export type EngineKind = 'vllm' | 'sglang' | 'openai' | 'embedded'

export interface ModelInfo {
  id: string
  /** Context length in tokens, where the engine tells. */
  maxModelLen?: number | undefined
  /** An adapter over another model that the engine serves. */
  isAdapter?: boolean | undefined
}

export interface EngineHealth extends TokenizerAnswer {
  models: ModelInfo[]
  /** Which weights the engine serves, in its own word, where it tells. */
  weightVersion?: string | undefined
  /** It is alive and samples nothing until somebody wakes it up. */
  unavailable?: Unavailable | undefined
}

/** A trainer has put it to sleep, or has paused it. An engine that pauses to sleep may tell the second alone. */
export type Unavailable = 'asleep' | 'paused'

export interface EngineClient {
  readonly kind: EngineKind
  /** How logs, records and `/health` call this engine: its URL without credentials, or `embedded`. */
  readonly name: string
  /** Whether it serves calls in token mode (`GenerationRequest.promptTokenIds`); others refuse them as `unsupported`. */
  readonly takesTokenIds: boolean
  /** Whether it serves those with images (`GenerationRequest.images`); absent: it refuses them as `unsupported`. */
  readonly takesImages?: boolean

  /** What an operator must know of an engine that serves: why its turns are not what they should be. */
  readonly warning?: string | undefined

  /**
   * Serves one request. Nothing is sent before the first `next()`. Aborting `signal`, or leaving the loop early,
   * cancels the engine's work at once. Does not retry: that is the backend's business.
   * @throws ProxyError `unsupported` (what this engine cannot be asked), `engine_unreachable` (no connection: nothing
   *   was sampled), `engine_rejected` (the engine's 4xx, with its status and body), `engine_failed` (its 5xx, or an
   *   answer that breaks its own protocol), `engine_lost` (the connection ended before `end`), `engine_timeout` (it fell
   *   silent). After an abort: whatever `signal.reason` is.
   */
  generate(request: GenerationRequest, signal: AbortSignal): GenerationStream

  /** Only of engines that can say what prompt a chat becomes. */
  countTokens?: CountTokens

  /** Only of engines that can say how probable given tokens are. */
  score?: Score

  /**
   * Only of engines that can say what each token adds to the text.
   * @returns undefined where this one cannot
   * @throws ProxyError as {@link generate}
   */
  tokenTexts?(model: string, ids: Int32Array, signal: AbortSignal): Promise<string[] | undefined>

  /**
   * Asks the engine whether it serves.
   * @param question about its tokenizer
   * @throws ProxyError `engine_unreachable` or `engine_failed`
   */
  checkHealth(signal: AbortSignal, question?: TokenizerQuestion): Promise<EngineHealth>

  /** The session makes no more calls: what is kept of it, here and at the server, may go. Returns at once. */
  endSession?(sessionId: string): void

  /** Ends idle connections. Running generations must have been cancelled before. */
  close(): Promise<void>
}
