/**
 * Calls that were under way when the proxy before this one was killed. Their workers may have their answers, or come back
 * with them; the retry that asks for one gets it.
 */

import type { Clock } from '../../base/clock.ts'
import type { GenerationEvent } from '../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../protocol/canonical/request.ts'
import type { DispatchWatch } from '../engines/dispatch/dispatcher.ts'
import type { RelayCall } from './relay-call.ts'

/** A worker that may have such an answer. */
interface Keeper {
  readonly identity: { readonly workerId: string }
  keeps(turnId: string): boolean
}

export interface TakeoversOptions {
  /** For how long from now on workers are waited for. */
  waitMs: number
  connected(): readonly Keeper[]
  clock: Clock
  watch?: DispatchWatch | undefined
}

export class Takeovers {
  readonly #options: TakeoversOptions
  #waitEndMs: number
  /** Of those who wait for a worker. */
  readonly #wakes = new Set<() => void>()

  constructor(options: TakeoversOptions) {
    this.#options = options
    this.#waitEndMs = options.clock.nowMs() + options.waitMs
  }

  /** A worker has come. */
  joined(): void {
    for (const wake of [...this.#wakes]) wake()
  }

  /** Nobody is waited for any more. */
  end(): void {
    this.#waitEndMs = Number.NEGATIVE_INFINITY
    this.joined()
  }

  /** @returns the worker that has the answer of a turn; undefined: none that came in time. After an abort: its reason */
  async keeperOf(turnId: string, signal: AbortSignal): Promise<string | undefined> {
    for (;;) {
      signal.throwIfAborted()
      const keeper = this.#options.connected().find((worker) => worker.keeps(turnId))
      if (keeper) return keeper.identity.workerId
      const leftMs = this.#waitEndMs - this.#options.clock.nowMs()
      if (leftMs <= 0) return undefined
      await this.#nextWorker(leftMs, signal)
    }
  }

  /**
   * @returns false, with nothing handed over, for a call that failed before its answer began, and for an answer to another
   *   prompt: in token mode the same messages become other ids where a turn that they go on from has come between
   */
  async *handOver(
    call: RelayCall,
    request: GenerationRequest,
    signal: AbortSignal,
  ): AsyncGenerator<readonly GenerationEvent[], boolean> {
    let hasBegun = false
    try {
      for await (const batch of call.stream(signal)) {
        if (!hasBegun && !isAnswerTo(request, batch)) return false
        if (!hasBegun) this.#options.watch?.tookOver()
        hasBegun = true
        yield batch
      }
      return true
    } catch (thrown) {
      if (hasBegun || signal.aborted) throw thrown
      return false
    }
  }

  #nextWorker(withinMs: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        cancel()
        signal.removeEventListener('abort', wake)
        this.#wakes.delete(wake)
        resolve()
      }
      const cancel = this.#options.clock.after(withinMs, wake)
      signal.addEventListener('abort', wake, { once: true })
      this.#wakes.add(wake)
    })
  }
}

function isAnswerTo(request: GenerationRequest, [first]: readonly GenerationEvent[]): boolean {
  if (request.kind !== 'chat' || request.promptTokenIds === undefined) return true
  return first?.type === 'start' && first.promptTokenIds?.equals(request.promptTokenIds) === true
}
