/**
 * Stops sessions in the background: each stop is retried until it succeeds or is rejected, or until the runner is
 * closed.
 */
import { computeBackoffMs, pause } from '../../backoff.ts'
import type { AgentCoreEndpoint } from './endpoint.ts'
import { AgentCoreError } from './errors.ts'
import type { Ledger } from './ledger.ts'

export interface SessionStopsOptions {
  endpoint: AgentCoreEndpoint
  retryBaseMs: number
  /** Returns a random number from 0 to 1, as `Math.random` does. */
  random: () => number
  warn(text: string): void
}

/** How long `close` waits for stops; the next run stops the sessions that remain. */
const CLOSE_MS = 60_000

export class SessionStops {
  readonly #options: SessionStopsOptions
  readonly #running = new Set<Promise<void>>()
  readonly #closing = new AbortController()
  #hasWarned = false

  constructor(options: SessionStopsOptions) {
    this.#options = options
  }

  /** The number of sessions that are being stopped. */
  get size(): number {
    return this.#running.size
  }

  /** Stops a session. @param then called when the session has stopped, or its stop is abandoned; must not throw */
  stop(sessionId: string, ledger: Ledger, then: () => void = () => {}): void {
    const stopping = this.#stop(sessionId, ledger)
      .catch(() => {})
      .finally(() => {
        this.#running.delete(stopping)
        then()
      })
    this.#running.add(stopping)
  }

  /** Waits for the stops in progress. */
  async close(): Promise<void> {
    const limit = setTimeout(() => this.#closing.abort(), CLOSE_MS)
    if (this.#running.size > 0) this.#options.warn(`stopping ${this.#running.size} AgentCore sessions`)
    await Promise.all(this.#running)
    clearTimeout(limit)
  }

  async #stop(sessionId: string, ledger: Ledger): Promise<void> {
    const { endpoint, retryBaseMs, random } = this.#options
    const { signal } = this.#closing
    for (let failures = 1; ; failures += 1) {
      try {
        await endpoint.stop(sessionId, signal)
        return await ledger.recordClosed(sessionId)
      } catch (error) {
        signal.throwIfAborted()
        // The session stays in the ledger, for a later run that has the permission.
        if (!(error instanceof AgentCoreError) || error.kind === 'refused')
          return this.#warnOnce(error as Error)
        await pause(computeBackoffMs(retryBaseMs, failures, random), signal)
      }
    }
  }

  #warnOnce(error: Error): void {
    if (!this.#hasWarned)
      this.#options.warn(`a session could not be stopped and continues to cost money: ${error.message}`)
    this.#hasWarned = true
  }
}
