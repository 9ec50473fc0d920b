import { setTimeout as delay, setImmediate as yieldToEventLoop } from 'node:timers/promises'

/**
 * The limits of a completion's time slice, so that aborts are detected promptly even with many concurrent completions.
 */
const TOKENS_PER_SLICE = 32
const MS_PER_SLICE = 0.5

/** A schedule for the tokens of a completion: the first one after the latency, the others at a constant rate. */
export class TokenPacer {
  readonly #firstAtMs: number
  readonly #tokensPerSecond: number
  #generated = 0

  constructor(latencyMs: number, tokensPerSecond: number) {
    this.#firstAtMs = performance.now() + latencyMs
    this.#tokensPerSecond = tokensPerSecond
  }

  /**
   * Waits until a token is due, and generates tokens until none is due or the time slice ends.
   * @param generate generates a token; returns false after the last one
   * @throws the reason of the signal, as soon as it is aborted
   */
  async generateDue(signal: AbortSignal, generate: () => boolean): Promise<void> {
    const waitMs = this.#dueAtMs(this.#generated) - performance.now()
    if (waitMs > 0) await delay(waitMs, undefined, { signal }).catch(() => {})
    else await yieldToEventLoop()
    signal.throwIfAborted()
    const due = this.#countDue()
    const untilMs = performance.now() + MS_PER_SLICE
    let count = 1
    while (generate() && count < due && performance.now() < untilMs) count++
    this.#generated += count
  }

  #dueAtMs(token: number): number {
    return this.#firstAtMs + (this.#tokensPerSecond === 0 ? 0 : (token * 1000) / this.#tokensPerSecond)
  }

  #countDue(): number {
    if (this.#tokensPerSecond === 0) return TOKENS_PER_SLICE
    const due = Math.floor(((performance.now() - this.#firstAtMs) * this.#tokensPerSecond) / 1000) + 1
    return Math.min(Math.max(due - this.#generated, 1), TOKENS_PER_SLICE)
  }
}
