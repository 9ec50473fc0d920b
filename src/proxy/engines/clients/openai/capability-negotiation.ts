/**
 * Capabilities of a server as learned from its responses. One rejection proves little: a server that loads weights or
 * an adapter rejects what it accepts a second later, and a request without ids makes all later turns worthless.
 * Therefore a lower level becomes the default only after several consecutive requests had to resort to it, and the full
 * level is retried periodically.
 */
import type { RequestLevel } from './request.ts'

/** The number of requests that must be rejected at the full level and served at a lower one. */
const CONFIRMATIONS = 3
/** One of this many requests at a lower level retries the full level: the server may have been replaced. */
const RETRY_EVERY = 50
const REMEMBERED_LIMIT = 1_000

export interface RequestPlan {
  /** The levels to try, in this order, until one is accepted. */
  readonly asks: readonly RequestLevel[]
  /** The number of rejections of the full level when this request began. */
  readonly refusals: number
}

interface Capability {
  ask: RequestLevel
  refusals: number
  /** The number of requests since the full level was tried last. */
  calls: number
}

export class CapabilityNegotiation {
  /** The capability by route, model and streaming: servers differ in each. */
  readonly #learnt = new Map<string, Capability>()

  /** Returns the plan of a request. @param asks levels, from full to plain */
  planFor(key: string, asks: readonly RequestLevel[]): RequestPlan {
    const learnt = this.#learnt.get(key)
    if (learnt === undefined || learnt.refusals < CONFIRMATIONS) {
      return { asks, refusals: learnt?.refusals ?? 0 }
    }
    learnt.calls += 1
    return { asks: learnt.calls < RETRY_EVERY ? [learnt.ask] : asks, refusals: learnt.refusals }
  }

  /** Reports that one of the plan's levels was accepted. */
  accepted(key: string, { asks, refusals }: RequestPlan, ask: RequestLevel): void {
    if (ask === 'ids') this.#learnt.delete(key)
    // Requests that started at a lower level do not count; concurrent requests count once, since one cause may have
    // rejected all of them.
    if (asks[0] !== 'ids' || ask === 'ids' || (this.#learnt.get(key)?.refusals ?? 0) !== refusals) return
    // Some servers accept any model name: names that agents invent must not exhaust the memory.
    if (this.#learnt.size >= REMEMBERED_LIMIT) this.#learnt.clear()
    this.#learnt.set(key, { ask, refusals: refusals + 1, calls: 0 })
  }

  /** Reports that no level was accepted. What was learned may be obsolete, so the next request tries the full level. */
  refused(key: string): void {
    const learnt = this.#learnt.get(key)
    if (learnt) learnt.calls = RETRY_EVERY
  }

  /** Discards what was learned after the server was unreachable: another one may have replaced it. */
  forget(): void {
    this.#learnt.clear()
  }

  /** The data that turns lack at the current levels; undefined if none. */
  get shortage(): string | undefined {
    const lesser = [...this.#learnt.values()].filter(({ refusals }) => refusals >= CONFIRMATIONS)
    const asks = lesser.map(({ ask }) => ask)
    if (asks.includes('plain'))
      return 'it rejects requests for token ids and logprobs: its turns are not exact'
    if (asks.includes('logprobs')) return 'it rejects requests for token ids: its turns are not exact'
    return undefined
  }
}
