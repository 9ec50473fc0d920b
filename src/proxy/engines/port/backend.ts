/**
 * Port: access to engines. `local` connects to them over HTTP, `relay` accepts connections from workers. Callers do not
 * depend on the mode. Both adapters pass `test/conformance/backend.ts`.
 */
import type { EventSink } from '../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { TokenCounter } from './count-tokens.ts'
import type { EngineModel, UnavailableReason } from './engine-client.ts'
import type { TokenizerReply, TokenizerVerdict } from './expected-tokenizer.ts'

/** An engine or worker, as `/health` reports it. */
export interface BackendMember {
  name: string
  kind: string
  healthy: boolean
  /** Set while the member receives no new requests because it is asleep or paused. */
  unavailable?: UnavailableReason | undefined
  /**
   * The remaining time for which the member receives no new requests because its last ones failed; undefined if it is
   * in rotation.
   */
  ejectedForMs?: number | undefined
  /** Workers only: false while the worker is disconnected and its requests wait for it to reconnect. */
  connected?: boolean
  /** Token mode: the result of the comparison of the member's tokenizer with the proxy's. */
  tokenizer?: TokenizerVerdict | undefined
  /** Set by a worker's backend: the engine's ids of `TOKENIZER_TEXT`, by which the proxy compares tokenizers. */
  textIds?: readonly number[]
  /** Set by a worker's backend: the prompt ids of `COMPARED_CHATS`, by which the proxy compares templates. */
  chatIds?: TokenizerReply['chatIds'] | undefined
  /** The number of requests in flight. */
  inFlight: number
  /** The number of requests that it can serve concurrently. */
  capacity: number
  models: string[]
  /** Whether the member accepts token ids. A worker does if each of its engines does. */
  takesTokenIds: boolean
  /** Whether the member accepts token ids with images; absent: no. */
  takesImages?: boolean | undefined
  weightVersion?: string | undefined
  /** The reason why the member is unhealthy. */
  error?: string | undefined
  /** The reason why turns of this healthy member may be degraded. */
  warning?: string | undefined
}

export interface BackendStatus {
  members: BackendMember[]
  /** The number of requests that wait for a member. */
  queued: number
  /** The start of the pause, in milliseconds since the epoch; undefined while the backend is not paused. */
  pausedSinceMs?: number | undefined
  /** The number of times, since the start, that a session left the member that it had affinity to. */
  moves?: number
}

export interface Backend {
  readonly mode: 'local' | 'relay'

  /**
   * Selects an engine or worker for the session (affinity first, then least loaded) and serves the request. Fails over
   * to another member if one is lost or fails before the first event; after that the generation fails.
   * @throws ProxyError as {@link EngineClient.generate}, and `no_worker`, `queue_full`, `paused`, `engine_timeout`.
   *   After an abort: `signal.reason`.
   */
  generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void>

  /** Returns the models that can be requested now, each once. */
  listModels(): Promise<EngineModel[]>

  /** Counts the tokens of a prompt. Rejects if no engine can count exactly. */
  countTokens: TokenCounter

  /** Discards the affinity of a session that has ended. */
  releaseSession(sessionId: string): void

  getStatus(): BackendStatus

  /**
   * Queues new requests while running ones finish, for instance during a weight update. A pause that exceeds the
   * backend's limit rejects requests with `paused`; another `pause` restarts the limit.
   */
  pause(): void
  /** Runs a {@link refresh}, then ends the pause. */
  resume(): Promise<void>

  /**
   * Runs the health check of each serving engine immediately, because its weights may have changed. An engine's weight
   * version is unknown until it has responded. Resolves within seconds, whatever the outcome.
   */
  refresh(): Promise<void>

  close(): Promise<void>
}
