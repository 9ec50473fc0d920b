import { setTimeout as delay, setImmediate as nextTurn } from 'node:timers/promises'

/**
 * Limits of one completion per iteration of the event loop, so that aborts are detected promptly even with many
 * completions.
 */
const TOKENS_PER_TURN = 32
const MS_PER_TURN = 0.5

/** Schedules tokens: the first one after the latency, the others at an even rate. */
export class TokenPacer {
  readonly #firstAtMs: number
  readonly #tokensPerSecond: number
  #taken = 0

  constructor(latencyMs: number, tokensPerSecond: number) {
    this.#firstAtMs = performance.now() + latencyMs
    this.#tokensPerSecond = tokensPerSecond
  }

  /**
   * Waits until a token is due, then generates tokens until none is due or the time slice ends.
   * @param take generates a token; returns false after the last one
   * @throws the signal's reason, as soon as it is aborted
   */
  async takeDue(signal: AbortSignal, take: () => boolean): Promise<void> {
    const waitMs = this.#dueAtMs(this.#taken) - performance.now()
    if (waitMs > 0) await delay(waitMs, undefined, { signal }).catch(() => {})
    else await nextTurn()
    signal.throwIfAborted()
    const due = this.#countDue()
    const untilMs = performance.now() + MS_PER_TURN
    let count = 1
    while (take() && count < due && performance.now() < untilMs) count++
    this.#taken += count
  }

  #dueAtMs(token: number): number {
    return this.#firstAtMs + (this.#tokensPerSecond === 0 ? 0 : (token * 1000) / this.#tokensPerSecond)
  }

  #countDue(): number {
    if (this.#tokensPerSecond === 0) return TOKENS_PER_TURN
    const due = Math.floor(((performance.now() - this.#firstAtMs) * this.#tokensPerSecond) / 1000) + 1
    return Math.min(Math.max(due - this.#taken, 1), TOKENS_PER_TURN)
  }
}
