/**
 * The addresses behind a name in DNS, looked up again and again. It stands for several proxies, as a headless service of
 * Kubernetes does: each address is one of them.
 */
import { lookup } from 'node:dns/promises'
import { isIPv4 } from 'node:net'
import type { Clock } from '../base/clock.ts'

/** @returns all addresses of a host. @throws Error when it has none, or nobody can tell */
export type Resolve = (host: string) => Promise<readonly string[]>

/** As the system does it, with `/etc/hosts` and the search list of a cluster. */
export const resolveBySystem: Resolve = async (host) =>
  (await lookup(host, { all: true })).map(({ address }) => address)

interface ProxyAddressesOptions {
  host: string
  resolve: Resolve
  /** Between two lookups. */
  intervalMs: number
  clock: Clock
  found(address: string): void
  gone(address: string): void
  /** Told once of failures in a row. What was found stays. */
  failed(error: unknown): void
}

/** As often as Envoy does for a name that stands for several hosts. */
export const LOOKUP_INTERVAL_MS = 5_000
const SOON_MS = 500
/** An answer may lack an address that the next one has. */
const LOOKUPS_TO_BE_GONE = 2

export class ProxyAddresses {
  readonly #options: ProxyAddressesOptions
  /** By address: how many lookups in a row were without it. */
  readonly #misses = new Map<string, number>()
  #cancelNext: (() => void) | undefined
  #isLooking = false
  #hasFailed = false
  #hasStopped = false

  constructor(options: ProxyAddressesOptions) {
    this.#options = options
  }

  /** To be called once. */
  start(): void {
    void this.#look()
  }

  /** A proxy was lost: it may have come back under another address. */
  lookSoon(): void {
    if (!this.#isLooking) this.#lookAfter(Math.min(SOON_MS, this.#options.intervalMs))
  }

  stop(): void {
    this.#hasStopped = true
    this.#cancelNext?.()
  }

  async #look(): Promise<void> {
    this.#isLooking = true
    const { host, resolve, failed } = this.#options
    try {
      const addresses = ofOneFamily(await resolve(host))
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
      if (isNew) this.#options.found(address)
    }
    for (const [address, misses] of this.#misses) {
      if (addresses.has(address)) continue
      if (misses + 1 < LOOKUPS_TO_BE_GONE) this.#misses.set(address, misses + 1)
      else {
        this.#misses.delete(address)
        this.#options.gone(address)
      }
    }
  }
}

/** Where there are two families each proxy has an address in both, and is to be dialled once. */
function ofOneFamily(addresses: readonly string[]): readonly string[] {
  const fours = addresses.filter((address) => isIPv4(address))
  return fours.length > 0 ? fours : addresses
}
