/**
 * Polls the addresses of a DNS name that stands for several proxies, such as a headless service of Kubernetes: each
 * address is one of them.
 */
import { lookup } from 'node:dns/promises'
import { isIPv4 } from 'node:net'
import type { Clock } from '../base/clock.ts'

/** Resolves a host to all its addresses. @throws Error if it has none, or the lookup fails */
export type HostResolver = (host: string) => Promise<readonly string[]>

/** Resolves like the system, with `/etc/hosts` and the search list of a cluster. */
export const resolveBySystem: HostResolver = async (host) =>
  (await lookup(host, { all: true })).map(({ address }) => address)

interface ProxyAddressesOptions {
  host: string
  resolve: HostResolver
  /** Interval between two lookups. */
  intervalMs: number
  clock: Clock
  onFound(address: string): void
  onGone(address: string): void
  /** Called once for consecutive failures. Known addresses stay. */
  onFailed(error: unknown): void
}

/** The interval of Envoy for a name that stands for several hosts. */
export const LOOKUP_INTERVAL_MS = 5_000
const SOON_MS = 500
/** A response may lack an address that the next one contains. */
const LOOKUPS_TO_BE_GONE = 2

export class ProxyAddresses {
  readonly #options: ProxyAddressesOptions
  /** Number of consecutive lookups without the address, by address. */
  readonly #misses = new Map<string, number>()
  #cancelNext: (() => void) | undefined
  #isLooking = false
  #hasFailed = false
  #hasStopped = false

  constructor(options: ProxyAddressesOptions) {
    this.#options = options
  }

  /** Starts the lookups. Must be called once. */
  start(): void {
    void this.#look()
  }

  /** Looks up the name soon, because a lost proxy may return at another address. */
  lookSoon(): void {
    if (!this.#isLooking) this.#lookAfter(Math.min(SOON_MS, this.#options.intervalMs))
  }

  stop(): void {
    this.#hasStopped = true
    this.#cancelNext?.()
  }

  async #look(): Promise<void> {
    this.#isLooking = true
    const { host, resolve, onFailed: failed } = this.#options
    try {
      const addresses = selectOneFamily(await resolve(host))
      this.#hasFailed = false
      if (!this.#hasStopped) this.#take(new Set(addresses))
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
    this.#cancelNext = this.#options.clock.after(delayMs, () => void this.#look())
  }

  #take(addresses: ReadonlySet<string>): void {
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

/** Returns the addresses of one family. A dual-stack proxy has an address in both and must be dialed once. */
function selectOneFamily(addresses: readonly string[]): readonly string[] {
  const fours = addresses.filter((address) => isIPv4(address))
  return fours.length > 0 ? fours : addresses
}
