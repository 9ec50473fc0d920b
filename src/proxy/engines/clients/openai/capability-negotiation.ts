/**
 * What a server has been found to accept. One refusal proves little: a server that loads weights or an adapter refuses
 * what it takes a second later, and an ask without ids makes every later turn worthless. So a lesser ask is made at once
 * only after several calls, one after the other, had to resort to it, and the whole is tried again now and then.
 */
import type { RequestLevel } from './request.ts'

/** Calls that must have been refused in full and served with less. */
const CONFIRMATIONS = 3
/** Of the calls that are asked for less, one in so many is asked in full: the server may have been replaced. */
const RETRY_EVERY = 50
const REMEMBERED_LIMIT = 1_000

export interface RequestPlan {
  /** To be tried in turn until one is accepted. */
  readonly asks: readonly RequestLevel[]
  /** How often the full ask had been refused when this call began. */
  readonly refusals: number
}

interface Capability {
  ask: RequestLevel
  refusals: number
  /** Calls since the full ask was made last. */
  calls: number
}

export class CapabilityNegotiation {
  /** By route, model and streaming: servers differ in each. */
  readonly #learnt = new Map<string, Capability>()

  /** @param asks from all to nothing */
  planFor(key: string, asks: readonly RequestLevel[]): RequestPlan {
    const learnt = this.#learnt.get(key)
    if (learnt === undefined || learnt.refusals < CONFIRMATIONS) {
      return { asks, refusals: learnt?.refusals ?? 0 }
    }
    learnt.calls += 1
    return { asks: learnt.calls < RETRY_EVERY ? [learnt.ask] : asks, refusals: learnt.refusals }
  }

  /** One of the plan's asks was accepted. */
  accepted(key: string, { asks, refusals }: RequestPlan, ask: RequestLevel): void {
    if (ask === 'ids') this.#learnt.delete(key)
    // Asked for less from the start; or calls ran side by side, of which one refusal may have hit all: they count once.
    if (asks[0] !== 'ids' || ask === 'ids' || (this.#learnt.get(key)?.refusals ?? 0) !== refusals) return
    // Some servers accept any model name: the names of agents must not fill the memory.
    if (this.#learnt.size >= REMEMBERED_LIMIT) this.#learnt.clear()
    this.#learnt.set(key, { ask, refusals: refusals + 1, calls: 0 })
  }

  /** None was: of what was learnt nothing may be true any more, so the next call asks in full. */
  refused(key: string): void {
    const learnt = this.#learnt.get(key)
    if (learnt) learnt.calls = RETRY_EVERY
  }

  /** The server was away: another may be in its place. */
  forget(): void {
    this.#learnt.clear()
  }

  /** What is asked for that leaves turns without token ids; undefined while everything is. */
  get shortage(): string | undefined {
    const lesser = [...this.#learnt.values()].filter(({ refusals }) => refusals >= CONFIRMATIONS)
    const asks = lesser.map(({ ask }) => ask)
    if (asks.includes('plain'))
      return 'it refuses to be asked for token ids and logprobs: its turns are not exact'
    if (asks.includes('logprobs')) return 'it refuses to be asked for token ids: its turns are not exact'
    return undefined
  }
}
