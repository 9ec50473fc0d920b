/**
 * What the process knows of a session beyond its record: the calls in flight, who waits for its end, and the queue
 * that puts everything that happens to it in one order.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { ProxyError } from '../../../base/errors.ts'
import { type DetailWish, parseWish } from '../../../protocol/details/kinds.ts'
import type { EditedCalls, SessionRecord } from '../../store/port/turn-store.ts'
import type { Policies } from './policies.ts'

/** One agent call of a session, from its arrival until its turn is on record. */
export interface SessionCall {
  readonly sessionId: string
  /** The index of the turn that the call becomes. */
  readonly index: number
  /** The session's own; they overrule what the agent asks for. */
  readonly samplingParams: Readonly<Record<string, unknown>>
  /** Whether an agent that has no more than the session's key is heard on its own record. */
  readonly trustAgent: boolean
  /** What its turns are recorded with beyond ids and logprobs; null: the session does not say. */
  readonly record: DetailWish | null
  /** The session's models by line. */
  readonly policies: Policies
  /** What becomes of calls that its agent edits; null: the session does not say. */
  readonly editedCalls: EditedCalls | null
  /**
   * Aborts with a ProxyError when the session is ended, reset or deleted (`turn_cancelled`), or the proxy stops
   * (`shutting_down`). To be looked at, too, right before the turn is opened in the store.
   */
  readonly signal: AbortSignal
  /** To be called when the turn is closed in the store, however it ended. A second time does nothing. */
  done(): void
  /** To be called, before {@link done}, when the turn could not be put on record: its index is free again. */
  unrecorded(): void
}

/** The part of the record that a call needs, and that no other process changes. */
interface SessionState {
  active: boolean
  samplingParams: Readonly<Record<string, unknown>>
  trustAgent: boolean
  record: DetailWish | null
  policies: Policies
  editedCalls: EditedCalls | null
  keyTag: string | null
  nextIndex: number
  /** Indexes below the next one whose turns could not be put on record, while later calls are under way. */
  readonly unrecorded: Set<number>
}

interface RunningTurn {
  readonly controller: AbortController
  readonly done: Promise<void>
}

interface Waiter {
  resolve(session: SessionRecord): void
  reject(error: ProxyError): void
}

export class LiveSession {
  readonly sessionId: string
  /** undefined: not read from the store yet, or gone from it. */
  #state: SessionState | undefined
  readonly #calls = new Set<RunningTurn>()
  readonly #waiters = new Set<Waiter>()
  #lastTask: Promise<unknown> = Promise.resolve()

  constructor(sessionId: string) {
    this.sessionId = sessionId
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

  get isActive(): boolean {
    return this.#state?.active ?? false
  }

  /** Only for a session that {@link isKnown}. */
  get keyTag(): string | null {
    return this.#state!.keyTag
  }

  /** Takes over what the store says of the session; undefined: it is not there, or must be asked again. */
  learn(record: SessionRecord | undefined): void {
    this.#state = record && {
      active: record.status === 'active',
      samplingParams: record.samplingParams,
      trustAgent: record.trustAgent,
      record: record.record && parseWish(record.record),
      policies: record.policies,
      editedCalls: record.editedCalls,
      keyTag: record.keyTag,
      nextIndex: record.nextIndex,
      unrecorded: new Set(),
    }
  }

  /** Only for a session that {@link isKnown}. */
  beginCall(onDone: () => void): SessionCall {
    const state = this.#state!
    const controller = new AbortController()
    const { promise: done, resolve } = Promise.withResolvers<void>()
    const call = { controller, done }
    this.#calls.add(call)
    const index = state.nextIndex++
    return {
      sessionId: this.sessionId,
      index,
      samplingParams: state.samplingParams,
      trustAgent: state.trustAgent,
      record: state.record,
      policies: state.policies,
      editedCalls: state.editedCalls,
      signal: controller.signal,
      done: () => {
        if (!this.#calls.delete(call)) return
        resolve()
        onDone()
      },
      unrecorded: () => giveBack(state, index),
    }
  }

  /** Cancels the calls in flight. Resolves when all of them are done, or after `settleMs`. */
  async cancelCalls(reason: ProxyError, settleMs: number): Promise<void> {
    if (this.#calls.size === 0) return
    const calls = [...this.#calls]
    for (const call of calls) call.controller.abort(reason)
    const patience = new AbortController()
    const patienceOver = sleep(settleMs, undefined, { signal: patience.signal }).catch(() => undefined)
    await Promise.race([Promise.all(calls.map((call) => call.done)), patienceOver])
    patience.abort()
  }

  /**
   * @returns the session as it ended, undefined after `timeoutMs`.
   * @throws what {@link failWaiters} is given, `signal.reason`
   */
  async untilEnded(timeoutMs: number, signal: AbortSignal): Promise<SessionRecord | undefined> {
    signal.throwIfAborted()
    const { promise, resolve, reject } = Promise.withResolvers<SessionRecord | undefined>()
    const waiter = { resolve, reject }
    const onAbort = () => reject(signal.reason)
    const timer = setTimeout(resolve, timeoutMs, undefined)
    signal.addEventListener('abort', onAbort, { once: true })
    this.#waiters.add(waiter)
    try {
      return await promise
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

/** An index that a later call has passed is given back if that call fails as well; else nobody has it. */
function giveBack(state: SessionState, index: number): void {
  state.unrecorded.add(index)
  while (state.unrecorded.delete(state.nextIndex - 1)) state.nextIndex -= 1
}

/** Keeps neither the outcome of a task nor its error for the next one. */
function forget(): void {}
