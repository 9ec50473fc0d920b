/** One agent call of a session, from its place there until its turn is on record. */
import type { ProxyError } from '../../../base/errors.ts'
import type { CaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { SessionRecord } from '../../store/port/turn-store.ts'
import type { CallBudget, Spending, SpentTurn } from './limits.ts'
import type { LiveTurn } from './live-turn.ts'
import type { SessionMemory } from './session-memory.ts'

/** What the record says of a session for its calls. A trainer may change it, with several nodes through any of them. */
export interface SessionRules extends Readonly<Pick<SessionRecord, RulesOnRecord>> {
  /** What its turns are recorded with beyond ids and logprobs; null: the session does not say. */
  readonly record: CaptureOptions | null
}

type RulesOnRecord = 'samplingParams' | 'trustAgent' | 'policies' | 'editedCalls' | 'limits' | 'keyTag'

/** How a call's session learns of its end. */
interface CallEnds {
  onDone(): void
  onUnrecorded(): void
}

export class SessionCall {
  readonly sessionId: string
  /** The index of the turn that the call becomes. */
  readonly index: number
  readonly rules: SessionRules
  readonly budget: CallBudget
  /** What the session remembers of its calls; kept until this one is done. */
  readonly memory: SessionMemory
  /** Under which the session is this proxy's; undefined: the record is not shared. */
  readonly epoch: number | undefined
  /** Turns below it were answered by a proxy that was lost: whether the last of them reached their agents nobody knows. */
  readonly resumedAt: number | undefined
  /** The turn that it has become; undefined before that. */
  turn: LiveTurn | undefined
  /** What its turn comes to is counted; until then, it counts as a call in flight. */
  isSpent = false
  readonly #spending: Spending
  readonly #ends: CallEnds
  readonly #cancel = new AbortController()
  readonly #over = Promise.withResolvers<void>()
  #isDone = false

  constructor(
    place: Pick<SessionCall, 'sessionId' | 'index' | 'rules' | 'memory' | 'budget' | 'epoch' | 'resumedAt'>,
    spending: Spending,
    ends: CallEnds,
  ) {
    this.sessionId = place.sessionId
    this.index = place.index
    this.rules = place.rules
    this.memory = place.memory
    this.budget = place.budget
    this.epoch = place.epoch
    this.resumedAt = place.resumedAt
    this.#spending = spending
    this.#ends = ends
  }

  /**
   * Aborts with a ProxyError when the session is ended, reset or deleted (`turn_cancelled`), the proxy stops
   * (`shutting_down`) or nobody waits for the answer. To be looked at, too, right before the turn is opened in the store.
   */
  get signal(): AbortSignal {
    return this.#cancel.signal
  }

  cancel(reason: ProxyError): void {
    this.#cancel.abort(reason)
  }

  /** Resolves when it is done. */
  get over(): Promise<void> {
    return this.#over.promise
  }

  /** To be called when it is known what its turn has come to. A second time does nothing. */
  spend(turn: SpentTurn): void {
    if (!this.isSpent) this.#spending.add(turn)
    this.isSpent = true
  }

  /** To be called when the turn is closed in the store, however it ended. A second time does nothing. */
  done(): void {
    if (this.#isDone) return
    this.#isDone = true
    this.#over.resolve()
    this.#ends.onDone()
  }

  /** To be called, before {@link done}, when the turn could not be put on record: its index is free again. */
  unrecorded(): void {
    this.#ends.onUnrecorded()
  }
}
