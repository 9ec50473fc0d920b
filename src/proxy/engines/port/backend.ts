/**
 * Port: how the proxy reaches engines. `local` speaks HTTP to them, `relay` waits for workers that dial in. Nothing
 * above this line knows which one it is. Both pass `test/conformance/backend.ts`.
 */
import type { GenerationStream } from '../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { CountTokens } from './count-tokens.ts'
import type { ModelInfo, Unavailable } from './engine-client.ts'
import type { TokenizerAnswer, TokenizerVerdict } from './expected-tokenizer.ts'

/** One engine or worker, as `/health` shows it. */
export interface BackendMember {
  name: string
  kind: string
  healthy: boolean
  /** It gets no new calls until it is awake. */
  unavailable?: Unavailable | undefined
  /** For how long it gets no new requests because its last ones failed; undefined: it is in rotation. */
  ejectedForMs?: number | undefined
  /** Of a worker only: false while it has lost its connection and its calls wait for it. */
  connected?: boolean
  /** Token mode: whether its tokenizer is the one that makes the prompts. */
  tokenizer?: TokenizerVerdict | undefined
  /** Of an engine behind a worker: its ids of the text by which tokenizers are compared. */
  textIds?: readonly number[]
  /** The same of the chats by which templates are. */
  chatIds?: TokenizerAnswer['chatIds'] | undefined
  /** Calls that it serves now. */
  inFlight: number
  /** Calls that it may serve at once. */
  capacity: number
  models: string[]
  /** Whether it can be asked in token mode. Of a worker: whether each of its engines can. */
  takesTokenIds: boolean
  /** The same of images among them; absent: no. */
  takesImages?: boolean | undefined
  weightVersion?: string | undefined
  /** Why it is not healthy. */
  error?: string | undefined
  /** Why its turns are not what they should be, though it serves. */
  warning?: string | undefined
}

export interface BackendStatus {
  members: BackendMember[]
  /** Calls that wait for a member. */
  queued: number
  /** When the pause began, in milliseconds since the epoch; undefined while calls go out. */
  pausedSinceMs?: number | undefined
  /** How often a session left the member that it stuck to, since the start. */
  moves?: number
}

export interface Backend {
  readonly mode: 'local' | 'relay'

  /**
   * Picks an engine or worker for the session (sticky, least loaded) and serves the request. A member that is lost
   * or fails before the first event was yielded is replaced by another one; after that the generation fails.
   * @throws ProxyError as {@link EngineClient.generate}, and `no_worker`, `queue_full`, `paused`, `engine_timeout`. After an
   *   abort: whatever `signal.reason` is.
   */
  generate(request: GenerationRequest, signal: AbortSignal): GenerationStream

  /** The models that can be asked for now, each once. */
  models(): Promise<ModelInfo[]>

  /** Refused where prompts cannot be counted exactly. */
  countTokens: CountTokens

  /** The session has ended: forget where it was served. */
  releaseSession(sessionId: string): void

  status(): BackendStatus

  /**
   * New calls wait and running ones finish, for instance while weights are replaced. A pause that lasts longer than the
   * backend's limit refuses calls with `paused`; pausing again starts that limit anew.
   */
  pause(): void
  /** Calls go out again once the engines have been asked as by {@link refresh}. */
  resume(): Promise<void>

  /**
   * Asks each engine that serves how it is, as health checks do now and then: its weights may be others by now, and no
   * version is known of one until it has answered. Resolves, whatever came of it, within seconds.
   */
  refresh(): Promise<void>

  close(): Promise<void>
}
