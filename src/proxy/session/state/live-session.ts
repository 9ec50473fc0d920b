/**
 * What the process knows of a session beyond its record: what its calls remember, the calls in flight, who waits for its
 * end, and the queue that puts everything that happens to it in one order.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { ProxyError } from '../../../base/errors.ts'
import { parseCaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { SessionRecord } from '../../store/port/turn-store.ts'
import { type CallBudget, Spending } from './limits.ts'
import type { LiveTurn } from './live-turn.ts'
import { SessionCall, type SessionRules } from './session-call.ts'
import { SessionMemory } from './session-memory.ts'

/** Without what its calls remember. As measured. */
const LIVE_BYTES = 1_500

/** What the record says of a session. */
interface SessionState {
  readonly active: boolean
  readonly rules: SessionRules
  nextIndex: number
  /** Indexes below the next one whose turns could not be put on record, while later calls are under way. */
  readonly unrecorded: Set<number>
  readonly spending: Spending
  /** Under which the session is this proxy's; undefined: the record is not shared. */
  readonly epoch: number | undefined
  /** As {@link SessionCall.resumedAt}. */
  resumedAt: number | undefined
}

export class LiveSession {
  readonly sessionId: string
  /** undefined: not read from the store yet, or gone from it. */
  #state: SessionState | undefined
  /** undefined: nothing is remembered. */
  #memory: SessionMemory | undefined
  readonly #calls = new Set<SessionCall>()
  /** Calls with a name that are about to begin, the latest of each. */
  readonly #beginning = new Map<string, Promise<void>>()
  readonly #waiters = new Set<PromiseWithResolvers<SessionRecord | undefined>>()
  #lastTask: Promise<unknown> = Promise.resolve()

  constructor(sessionId: string) {
    this.sessionId = sessionId
  }

  /** What is remembered of its calls. */
  get memory(): SessionMemory {
    this.#memory ??= new SessionMemory()
    return this.#memory
  }

  get isRemembered(): boolean {
    return this.#memory !== undefined
  }

  /** Calls in flight keep what they have of it for themselves. */
  forget(): void {
    this.#memory = undefined
  }

  get bytes(): number {
    return LIVE_BYTES + (this.#memory?.bytes ?? 0)
  }

  /** Lets go of what only a call that is under way needs. */
  rest(): void {
    this.#memory?.messages.letGoOfJson()
  }

  /** The turns in flight, in call order. */
  get turns(): LiveTurn[] {
    return [...this.#calls].flatMap(({ turn }) => turn ?? [])
  }

  /** The calls in flight. */
  get calls(): Iterable<SessionCall> {
    return this.#calls
  }

  get isBusy(): boolean {
    return this.#calls.size > 0
  }

  /** Runs tasks one after the other, in the order in which they were asked for. */
  runInOrder<T>(task: () => Promise<T>): Promise<T> {
    const result = this.#lastTask.then(task)
    this.#lastTask = result.then(forget, forget)
    return result
  }

  get isKnown(): boolean {
    return this.#state !== undefined
  }

  /** Under which the session is this proxy's; undefined: it is not known to be, or the record is not shared. */
  get epoch(): number | undefined {
    return this.#state?.epoch
  }

  get isActive(): boolean {
    return this.#state?.active ?? false
  }

  /** Only for a session that {@link isKnown}. */
  get rules(): SessionRules {
    return this.#state!.rules
  }

  /**
   * Takes over what the store says of the session; undefined: it is not there, or must be asked again.
   * @param more `spending` of the turns on record, where it has limits; `epoch` of a record that several proxies share;
   *   `resumedAt` where the proxy that had it before was lost
   */
  learn(
    record: SessionRecord | undefined,
    more: { spending?: Spending; epoch?: number | undefined; resumedAt?: number | undefined } = {},
  ): void {
    const { spending = new Spending(), epoch, resumedAt } = more
    this.#state = record && {
      active: record.status === 'active',
      rules: rulesOf(record),
      nextIndex: record.nextIndex,
      unrecorded: new Set(),
      spending,
      epoch,
      resumedAt,
    }
  }

  /** Marks the delivery of the latest responses as unknown, as after the crash of a node. */
  markDeliveryUnknown(): void {
    if (this.#state) this.#state.resumedAt = this.#state.nextIndex
  }

  /**
   * What a call may have that begins now. Only for a session that {@link isKnown}.
   * @throws ProxyError `limit_reached`
   */
  budgetAt(nowMs: number): CallBudget {
    const { rules, spending } = this.#state!
    const running = [...this.#calls].filter(({ isSpent }) => !isSpent)
    const sampled = running.map(({ turn }) => turn?.completion.tokenIds.length ?? 0)
    return spending.begin(rules.limits, sampled, nowMs)
  }

  /** Only for a session that {@link isKnown}. */
  beginCall(budget: CallBudget, onDone: () => void): SessionCall {
    const { sessionId, memory } = this
    const state = this.#state!
    const { rules, spending, epoch, resumedAt } = state
    const index = state.nextIndex++
    const place = { sessionId, index, rules, memory, budget, epoch, resumedAt }
    const call = new SessionCall(place, spending, {
      onDone: () => {
        this.#calls.delete(call)
        onDone()
      },
      onUnrecorded: () => giveBack(state, index),
    })
    this.#calls.add(call)
    return call
  }

  /**
   * Two tries of one call may come at once: the later one waits until the earlier one is among those that run.
   * @param name that the client gave the call
   * @returns to be disposed of then
   */
  async inTurn(name: string): Promise<Disposable> {
    const before = this.#beginning.get(name)
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#beginning.set(name, promise)
    await before
    return {
      [Symbol.dispose]: () => {
        if (this.#beginning.get(name) === promise) this.#beginning.delete(name)
        resolve()
      },
    }
  }

  /**
   * Cancels the calls in flight. Resolves when all of them are done, or after `settleMs`.
   * @param reasonOf is not asked where there are none: an error with its stack is dear
   */
  async cancelCalls(reasonOf: () => ProxyError, settleMs: number): Promise<void> {
    if (this.#calls.size === 0) return
    const reason = reasonOf()
    const calls = [...this.#calls]
    for (const call of calls) call.cancel(reason)
    const patience = new AbortController()
    const patienceOver = sleep(settleMs, undefined, { signal: patience.signal }).catch(() => undefined)
    await Promise.race([Promise.all(calls.map(({ over }) => over)), patienceOver])
    patience.abort()
  }

  /**
   * @returns the session as it ended, undefined after `timeoutMs`.
   * @throws what {@link failWaiters} is given, `signal.reason`
   */
  async untilEnded(timeoutMs: number, signal: AbortSignal): Promise<SessionRecord | undefined> {
    signal.throwIfAborted()
    const waiter = Promise.withResolvers<SessionRecord | undefined>()
    const onAbort = () => waiter.reject(signal.reason)
    const timer = setTimeout(waiter.resolve, timeoutMs, undefined)
    signal.addEventListener('abort', onAbort, { once: true })
    this.#waiters.add(waiter)
    try {
      return await waiter.promise
    } finally {
      clearTimeout(timer)
      signal.removeEventListener('abort', onAbort)
      this.#waiters.delete(waiter)
    }
  }

  tellWaiters(session: SessionRecord): void {
    for (const waiter of this.#waiters) waiter.resolve(session)
  }

  failWaiters(error: ProxyError): void {
    for (const waiter of this.#waiters) waiter.reject(error)
  }
}

function rulesOf(session: SessionRecord): SessionRules {
  const { samplingParams, trustAgent, policies, editedCalls, limits, keyTag } = session
  const record = session.record && parseCaptureOptions(session.record)
  return { samplingParams, trustAgent, record, policies, editedCalls, limits, keyTag }
}

/** An index that a later call has passed is given back if that call fails as well; else nobody has it. */
function giveBack(state: SessionState, index: number): void {
  state.unrecorded.add(index)
  while (state.unrecorded.delete(state.nextIndex - 1)) state.nextIndex -= 1
}

/** Keeps neither the outcome of a task nor its error for the next one. */
function forget(): void {}
