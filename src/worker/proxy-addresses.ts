/** Polls the addresses of a DNS name that resolves to several proxies, such as a headless service of Kubernetes. */
import { lookup } from 'node:dns/promises'
import { isIPv4 } from 'node:net'
import type { Clock } from '../base/clock.ts'

/** A function that resolves a host to all its addresses. @throws Error if the host has none, or the lookup fails */
export type HostResolver = (host: string) => Promise<readonly string[]>

/** Resolves as the system does, with `/etc/hosts` and the search domains of a cluster. */
export const resolveBySystem: HostResolver = async (host) =>
  (await lookup(host, { all: true })).map(({ address }) => address)

/** The name to poll, and callbacks for changes of its addresses. */
interface ProxyAddressesOptions {
  host: string
  resolve: HostResolver
  /** The time between two lookups. */
  intervalMs: number
  clock: Clock
  onFound(address: string): void
  onGone(address: string): void
  /** Called for the first of consecutive failures. Known addresses are retained. */
  onFailed(error: unknown): void
}

/** Envoy's default interval for a name that resolves to several hosts (`dns_refresh_rate`). */
export const LOOKUP_INTERVAL_MS = 5_000
/** The delay of an early lookup. */
const SOON_MS = 500
/** The number of consecutive lookups without an address after which it is gone: a single response may omit it. */
const LOOKUPS_TO_BE_GONE = 2

/** The addresses of one name, as of the latest lookups. */
export class ProxyAddresses {
  readonly #options: ProxyAddressesOptions
  /** The number of consecutive lookups without each known address. */
  readonly #misses = new Map<string, number>()
  #cancelNext: (() => void) | undefined
  /** The time of the next lookup on the clock; infinite if none is scheduled. */
  #nextAtMs = Number.POSITIVE_INFINITY
  #isLooking = false
  #hasFailed = false
  #hasStopped = false

  constructor(options: ProxyAddressesOptions) {
    this.#options = options
  }

  /** Starts polling. Must be called once. */
  start(): void {
    void this.#lookUp()
  }

  /**
   * Schedules an early lookup, because a lost proxy may return at another address. A lookup that is due earlier is not
   * postponed, because connections may fail more often than every {@link SOON_MS}.
   */
  lookSoon(): void {
    if (!this.#isLooking && this.#options.clock.nowMs() + SOON_MS < this.#nextAtMs) this.#lookAfter(SOON_MS)
  }

  stop(): void {
    this.#hasStopped = true
    this.#cancelNext?.()
  }

  async #lookUp(): Promise<void> {
    this.#isLooking = true
    this.#nextAtMs = Number.POSITIVE_INFINITY
    const { host, resolve, onFailed: failed } = this.#options
    try {
      const addresses = selectOneFamily(await resolve(host))
      this.#hasFailed = false
      if (!this.#hasStopped) this.#update(new Set(addresses))
    } catch (error) {
      if (!this.#hasFailed && !this.#hasStopped) failed(error)
      this.#hasFailed = true
    }
    this.#isLooking = false
    this.#lookAfter(this.#options.intervalMs)
  }

  #lookAfter(delayMs: number): void {
    if (this.#hasStopped) return
    this.#cancelNext?.()
    this.#nextAtMs = this.#options.clock.nowMs() + delayMs
    this.#cancelNext = this.#options.clock.after(delayMs, () => void this.#lookUp())
  }

  #update(addresses: ReadonlySet<string>): void {
    for (const address of addresses) {
      const isNew = !this.#misses.has(address)
      this.#misses.set(address, 0)
      if (isNew) this.#options.onFound(address)
    }
    for (const [address, misses] of this.#misses) {
      if (addresses.has(address)) continue
      if (misses + 1 < LOOKUPS_TO_BE_GONE) this.#misses.set(address, misses + 1)
      else {
        this.#misses.delete(address)
        this.#options.onGone(address)
      }
    }
  }
}

/** Returns the addresses of one family, IPv4 if there are any, because a dual-stack proxy must be dialed once. */
function selectOneFamily(addresses: readonly string[]): readonly string[] {
  const fours = addresses.filter((address) => isIPv4(address))
  return fours.length > 0 ? fours : addresses
}
