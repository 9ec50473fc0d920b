/** One request of a session, from its index until its turn is committed. */
import type { ProxyError } from '../../../base/errors.ts'
import { parseKeepingNumbers } from '../../../protocol/canonical/number-texts.ts'
import type { CaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { SessionRecord } from '../../store/port/turn-store.ts'
import type { RequestBudget, SessionUsage, TurnUsage } from './limits.ts'
import type { InFlightTurn } from './live-turn.ts'
import type { SessionMemory } from './session-memory.ts'

/**
 * The session config, as its requests use it. A trainer may change it, and if there are several nodes, through any of
 * them.
 */
export interface SessionConfig extends Readonly<Pick<SessionRecord, ConfigFields>> {
  /** The sampling parameters that override the agent's. */
  readonly samplingParams: Readonly<Record<string, unknown>>
  /** The data to record beyond ids and logprobs; null: the session does not specify it. */
  readonly record: CaptureOptions | null
}

type ConfigFields = 'trustAgent' | 'policies' | 'editedCalls' | 'continueResponses' | 'limits' | 'keyTag'

/** Returns the sampling parameters of a session, with large integers as raw numbers. */
export function readSamplingParams({
  samplingParams,
}: Pick<SessionRecord, 'samplingParams'>): Record<string, unknown> {
  return parseKeepingNumbers(samplingParams) as Record<string, unknown>
}

/** Callbacks to the session at the end of a request. */
interface AllocationCallbacks {
  onDone(): void
  onUnrecorded(): void
}

export class TurnAllocation {
  readonly sessionId: string
  /** The index of the request's turn. */
  readonly index: number
  readonly config: SessionConfig
  readonly budget: RequestBudget
  /** The session's cache, referenced until the request is done. */
  readonly memory: SessionMemory
  /** The epoch under which this node owns the session; undefined: the database is not shared. */
  readonly epoch: number | undefined
  /**
   * The first index after a crash: a crashed node served the turns before it, and the delivery of the last ones is
   * unknown.
   */
  readonly resumedAt: number | undefined
  /** The request's turn; undefined before it is opened. */
  turn: InFlightTurn | undefined
  /** Whether the turn's usage is counted; before that, the request counts as in flight. */
  isUsageCounted = false
  readonly #usage: SessionUsage
  readonly #ends: AllocationCallbacks
  readonly #cancel = new AbortController()
  readonly #over = Promise.withResolvers<void>()
  #isDone = false

  constructor(
    fields: Pick<
      TurnAllocation,
      'sessionId' | 'index' | 'config' | 'memory' | 'budget' | 'epoch' | 'resumedAt'
    >,
    usage: SessionUsage,
    ends: AllocationCallbacks,
  ) {
    this.sessionId = fields.sessionId
    this.index = fields.index
    this.config = fields.config
    this.memory = fields.memory
    this.budget = fields.budget
    this.epoch = fields.epoch
    this.resumedAt = fields.resumedAt
    this.#usage = usage
    this.#ends = ends
  }

  /**
   * Aborts with a ProxyError when the session is ended, reset or deleted (`turn_cancelled`), the proxy stops
   * (`shutting_down`) or no client waits for the response. To be checked also right before the turn is opened in the
   * store.
   */
  get signal(): AbortSignal {
    return this.#cancel.signal
  }

  cancel(reason: ProxyError): void {
    this.#cancel.abort(reason)
  }

  /** Resolves when the request is done. */
  get over(): Promise<void> {
    return this.#over.promise
  }

  /** Counts the turn's usage, once it is known. Repeated calls do nothing. */
  countUsage(turn: TurnUsage): void {
    if (!this.isUsageCounted) this.#usage.add(turn)
    this.isUsageCounted = true
  }

  /** To be called when the turn is closed in the store, however it ended. Repeated calls do nothing. */
  reportClosed(): void {
    if (this.#isDone) return
    this.#isDone = true
    this.#over.resolve()
    this.#ends.onDone()
  }

  /** Frees the index. To be called, before {@link reportClosed}, if the turn could not be committed. */
  freeIndex(): void {
    this.#ends.onUnrecorded()
  }
}
