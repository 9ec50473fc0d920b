/** A turn in flight, as its session knows it: for who watches, and for a client that tries the call again. */
import type { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationStream } from '../../../protocol/canonical/events.ts'
import type { OpenTurn } from '../../store/port/turn-store.ts'

/** What a client says of its tries. */
export interface TryWord {
  /** How often it tried before. */
  retryCount: number
  /** Whether it counts them. Absent: it does if the count is above 0. */
  tellsTries?: boolean
  /** One name for all tries of a call, and for no other call. */
  idempotencyKey?: string | undefined
}

export interface LiveTurn {
  /** As it was put on record. */
  readonly open: OpenTurn
  readonly word: TryWord
  /** What has come of its answer; grows. */
  readonly completion: Completion
  /** Its agent's connection has broken. */
  readonly isLost: boolean
  /** Its answer is about to be committed: it is too late to join. */
  readonly isEnding: boolean
  /** Of the retries that joined it. */
  readonly answeredRetries: readonly number[]
  /** Settles when the turn is over. */
  readonly over: Promise<unknown>
  /** For a retry of the call, the count of its tries before. @param gone aborts when its connection has */
  join(retryCount: number, gone: AbortSignal): AwaitedTurn
}

/** A turn for one connection that waits for its answer. */
export interface AwaitedTurn {
  readonly turnId: string
  readonly startedAtMs: number
  /** As it is on record; undefined until then. */
  readonly endedAtMs?: number | undefined
  /** To be read once, to its end or to its error; leaving early aborts the turn. `end` comes after the commit. */
  readonly events: GenerationStream
  /** What `events` has brought so far. */
  readonly completion: Completion
  /** Aborts when the turn is cancelled, so that whoever hands `events` on stops waiting and pulls once more. */
  readonly signal: AbortSignal
  /** The end of the answer may leave: it is on disk. */
  readonly isWhole: boolean
  /**
   * The answer was committed, and then could not be handed to the agent: it must not be trained on. Of a turn that is
   * not `completed` nothing changes, and a second time nothing either.
   * @param why default: the agent left
   */
  undelivered(why?: ProxyError): Promise<void>
}
