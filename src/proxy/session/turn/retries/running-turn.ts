/** A turn in flight, for all the connections that wait for its answer. */

import { type ProxyError, toProxyError } from '../../../../base/errors.ts'
import type { CompletionFold } from '../../../../protocol/canonical/completion.ts'
import type { GenerationStream } from '../../../../protocol/canonical/events.ts'
import type { OpenTurn } from '../../../store/port/turn-store.ts'
import type { Turn } from '../agent-call.ts'
import type { RunningTry } from './first-tries.ts'
import type { TryWord } from './first-try.ts'
import { SharedAnswer } from './shared-answer.ts'

export interface RunningTurnParts {
  open: OpenTurn
  word: TryWord
  fold: CompletionFold
  /** Of the turn, to be read once. */
  events: GenerationStream
  cancel: AbortController
  /** What goes on record beside the columns; written when the turn is closed. */
  annotations: Record<string, unknown>
  over: Promise<unknown>
  /** How long the turn may go on for an agent that has lost its connection now. */
  graceMs(): number
  /** When it ended, in milliseconds since the epoch; undefined until that is on record, and its end may leave. */
  endedAtMs(): number | undefined
  /** Nobody got the committed answer. */
  undelivered(retriesAnswered: number, why?: ProxyError): Promise<void>
}

export class RunningTurn implements RunningTry {
  readonly #parts: RunningTurnParts
  readonly #answer: SharedAnswer
  readonly #audience: Audience
  /** Connections that were given the answer, and those of them that it could not be handed to. */
  #given = 0
  #lost = 0
  readonly answeredRetries: number[] = []

  constructor(parts: RunningTurnParts) {
    const { events, fold, cancel, graceMs } = parts
    this.#parts = parts
    this.#answer = new SharedAnswer(events, fold)
    this.#audience = new Audience(cancel, graceMs)
    const close = () => this.#audience.close()
    parts.over.then(close, close)
  }

  get turnId(): string {
    return this.#parts.open.turnId
  }

  get index(): number {
    return this.#parts.open.index
  }

  get request(): OpenTurn {
    return this.#parts.open
  }

  get retryCount(): number {
    return this.#parts.word.retryCount
  }

  get idempotencyKey(): string | undefined {
    return this.#parts.word.idempotencyKey
  }

  get isLost(): boolean {
    return this.#audience.isAway
  }

  get isEnding(): boolean {
    return this.#parts.fold.end !== undefined
  }

  get over(): Promise<unknown> {
    return this.#parts.over
  }

  /** For the connection that the call came by. */
  first(gone: AbortSignal): Turn {
    return this.#give(this.#answer.read(), gone)
  }

  /** For a retry of the call. */
  join(retryCount: number, gone: AbortSignal): Turn {
    this.answeredRetries.push(retryCount)
    this.#parts.annotations.answered_retries = this.answeredRetries
    return this.#give(this.#answer.join(), gone)
  }

  #give(events: GenerationStream, gone: AbortSignal): Turn {
    const { open, fold, cancel, endedAtMs } = this.#parts
    this.#given += 1
    let isLost = false
    this.#audience.add(gone)
    const { turnId, startedAtMs } = open
    return {
      turnId,
      startedAtMs,
      completion: fold,
      signal: cancel.signal,
      events,
      get endedAtMs() {
        return endedAtMs()
      },
      get isWhole() {
        return endedAtMs() !== undefined
      },
      undelivered: async (why) => {
        if (!isLost) this.#lost += 1
        isLost = true
        if (this.#lost === this.#given) await this.#parts.undelivered(this.answeredRetries.length, why)
      },
    }
  }
}

/** Those who wait for the answer of one turn. When the last has gone, nobody needs it. */

class Audience {
  readonly #cancel: AbortController
  readonly #graceMs: () => number
  #waiting = 0
  #grace: NodeJS.Timeout | undefined

  /**
   * @param cancel aborts when all have gone, with the reason of the last
   * @param graceMs how long the turn goes on for a client whose connection was lost, and who may try again
   */
  constructor(cancel: AbortController, graceMs: () => number) {
    this.#cancel = cancel
    this.#graceMs = graceMs
  }

  /** @param gone aborts when it waits no more */
  add(gone: AbortSignal): void {
    clearTimeout(this.#grace)
    this.#waiting += 1
    if (gone.aborted) this.#leave(gone.reason)
    else gone.addEventListener('abort', () => this.#leave(gone.reason), { once: true })
  }

  /** All have gone, and the turn goes on for a while. */
  get isAway(): boolean {
    return this.#waiting === 0
  }

  /** The turn is over. */
  close(): void {
    clearTimeout(this.#grace)
  }

  #leave(reason: unknown): void {
    this.#waiting -= 1
    if (this.#waiting > 0) return
    const graceMs = toProxyError(reason).code === 'agent_gone' ? this.#graceMs() : 0
    if (graceMs === 0) this.#cancel.abort(reason)
    else this.#grace = setTimeout(() => this.#cancel.abort(reason), graceMs)
  }
}
