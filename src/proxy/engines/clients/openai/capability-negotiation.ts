/**
 * Capabilities of a server as learned from its responses. A single rejection is not sufficient evidence: a server that
 * loads weights or an adapter rejects requests that it accepts a second later, and at a lower level all later turns
 * would lack data. Therefore a lower level becomes the default only after several consecutive requests had to resort to
 * it, and the full level is retried periodically.
 */
import type { RequestLevel } from './request.ts'

/**
 * The number of consecutive requests that must be rejected at the full level and served at a lower one before the lower
 * level becomes the default.
 */
const CONFIRMATIONS = 3
/** One of this many requests at a lower level retries the full level: the server may have been replaced. */
const RETRY_EVERY = 50
/** The number of capabilities beyond which all are discarded. */
const MAX_CAPABILITIES = 1_000

/** The levels to try for one request. */
export interface RequestPlan {
  /** The levels to try, in this order, until one is accepted. */
  readonly levels: readonly RequestLevel[]
  /** The number of rejections of the full level when this request began. */
  readonly rejections: number
}

/** The learned capability of a server for one kind of request. */
interface Capability {
  level: RequestLevel
  rejections: number
  /** The number of requests since the full level was tried last. */
  requests: number
}

/** The learned capabilities of one server. */
export class CapabilityNegotiation {
  /** The capability by route, model and streaming: servers differ in each. */
  readonly #capabilities = new Map<string, Capability>()

  /**
   * Returns the plan of a request.
   * @param key the route, model and streaming of the request, as one text
   * @param levels all levels, from full to plain
   */
  createPlan(key: string, levels: readonly RequestLevel[]): RequestPlan {
    const capability = this.#capabilities.get(key)
    if (capability === undefined || capability.rejections < CONFIRMATIONS) {
      return { levels, rejections: capability?.rejections ?? 0 }
    }
    capability.requests += 1
    return {
      levels: capability.requests < RETRY_EVERY ? [capability.level] : levels,
      rejections: capability.rejections,
    }
  }

  /** Reports that one of the plan's levels was accepted. */
  reportAccepted(key: string, { levels, rejections }: RequestPlan, level: RequestLevel): void {
    if (level === 'ids') this.#capabilities.delete(key)
    // Requests that started at a lower level do not count; concurrent requests count once, since one cause may have
    // rejected all of them.
    if (
      levels[0] !== 'ids' ||
      level === 'ids' ||
      (this.#capabilities.get(key)?.rejections ?? 0) !== rejections
    )
      return
    // Some servers accept any model name: names that agents invent must not exhaust the memory.
    if (this.#capabilities.size >= MAX_CAPABILITIES) this.#capabilities.clear()
    this.#capabilities.set(key, { level, rejections: rejections + 1, requests: 0 })
  }

  /**
   * Reports that no level was accepted. The learned capability may be obsolete, so the next request tries the full
   * level.
   */
  reportRejected(key: string): void {
    const capability = this.#capabilities.get(key)
    if (capability) capability.requests = RETRY_EVERY
  }

  /** Discards all capabilities: the server was unreachable, and another one may have replaced it. */
  forget(): void {
    this.#capabilities.clear()
  }

  /** A warning for operators about the data that turns lack at the current levels; undefined if they lack none. */
  get warning(): string | undefined {
    const lesser = [...this.#capabilities.values()].filter(({ rejections }) => rejections >= CONFIRMATIONS)
    const levels = lesser.map(({ level }) => level)
    if (levels.includes('plain'))
      return 'it rejects requests for token ids and logprobs: its turns are not exact'
    if (levels.includes('logprobs')) return 'it rejects requests for token ids: its turns are not exact'
    return undefined
  }
}
