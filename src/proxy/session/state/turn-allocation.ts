/**
 * The part of a session that belongs to one request: its index, its budget and references to the session's config and
 * cache.
 */
import type { ProxyError } from '../../../base/errors.ts'
import { parseKeepingNumbers } from '../../../protocol/canonical/number-texts.ts'
import type { CaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { SessionRecord } from '../../store/port/turn-store.ts'
import type { RequestBudget, SessionUsage, TurnUsage } from './limits.ts'
import type { InFlightTurn } from './live-turn.ts'
import type { SessionMemory } from './session-memory.ts'

/** The session config in the form that requests use. It is set when the session is created and does not change. */
export interface SessionConfig extends Readonly<Pick<SessionRecord, ConfigFields>> {
  /** The sampling parameters, which override the agent's. */
  readonly samplingParams: Readonly<Record<string, unknown>>
  /** The captured data besides ids and logprobs; null: the session does not specify it. */
  readonly record: CaptureOptions | null
}

/** The fields of a session's row that requests use unchanged. */
type ConfigFields = 'trustAgent' | 'policies' | 'editedCalls' | 'continueResponses' | 'limits' | 'keyTag'

/** Parses the sampling parameters of a session. Large integers become raw numbers. */
export function readSamplingParams({
  samplingParams,
}: Pick<SessionRecord, 'samplingParams'>): Record<string, unknown> {
  return parseKeepingNumbers(samplingParams) as Record<string, unknown>
}

/** Callbacks to the session at the end of a request. */
interface AllocationCallbacks {
  /** Called when the turn is closed. */
  onDone(): void
  /** Called when the turn could not be stored, so that its index is free. */
  onUnrecorded(): void
}

/** A request in flight, from the allocation of its index until its turn is closed. */
export class TurnAllocation {
  readonly sessionId: string
  /** The index of the request's turn. */
  readonly index: number
  readonly config: SessionConfig
  readonly budget: RequestBudget
  /** The session's cache, which is referenced until the request is done. */
  readonly memory: SessionMemory
  /** The epoch under which this node owns the session; undefined: the database is not shared. */
  readonly epoch: number | undefined
  /**
   * The first index after a crash of the proxy or of the previous owner node, which served the turns before it. The
   * delivery of the last ones is unknown. undefined: there was no crash.
   */
  readonly resumedAt: number | undefined
  /** The request's turn; undefined before it is opened. */
  turn: InFlightTurn | undefined
  /** Whether the turn's usage has been counted. Until then, the request counts as in flight. */
  isUsageCounted = false
  readonly #usage: SessionUsage
  readonly #callbacks: AllocationCallbacks
  readonly #cancel = new AbortController()
  readonly #over = Promise.withResolvers<void>()
  #isDone = false

  constructor(
    fields: Pick<
      TurnAllocation,
      'sessionId' | 'index' | 'config' | 'memory' | 'budget' | 'epoch' | 'resumedAt'
    >,
    usage: SessionUsage,
    callbacks: AllocationCallbacks,
  ) {
    this.sessionId = fields.sessionId
    this.index = fields.index
    this.config = fields.config
    this.memory = fields.memory
    this.budget = fields.budget
    this.epoch = fields.epoch
    this.resumedAt = fields.resumedAt
    this.#usage = usage
    this.#callbacks = callbacks
  }

  /**
   * Aborts with a ProxyError when the session is ended, reset or deleted (`turn_cancelled`), the proxy stops
   * (`shutting_down`), the session moves to another node (`session_moved`) or no client waits for the response.
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

  /** Adds the turn's usage to that of the session. Repeated calls have no effect. */
  countUsage(turn: TurnUsage): void {
    if (!this.isUsageCounted) this.#usage.add(turn)
    this.isUsageCounted = true
  }

  /**
   * Ends the request. Must be called when its turn is closed in the store, whatever its outcome. Repeated calls have no
   * effect.
   */
  reportClosed(): void {
    if (this.#isDone) return
    this.#isDone = true
    this.#over.resolve()
    this.#callbacks.onDone()
  }

  /** Frees the index. Must be called before {@link reportClosed} if the turn could not be stored. */
  freeIndex(): void {
    this.#callbacks.onUnrecorded()
  }
}
