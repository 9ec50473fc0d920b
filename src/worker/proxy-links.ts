/**
 * The links of a worker: one to each configured proxy, and one to each address that a DNS name currently resolves to.
 */
import type { Clock } from '../base/clock.ts'
import { logEvent } from '../base/log-events.ts'
import type { Logger } from '../base/logger.ts'
import { type HostResolver, ProxyAddresses } from './proxy-addresses.ts'
import type { ProxyLink } from './proxy-link.ts'
import { standsForSeveral, toAddressUrl } from './proxy-url.ts'

/** The proxy that a link connects to. */
export interface ProxyTarget {
  url: string
  /** Address of this proxy, if the URL's host has several. */
  address?: string
}

interface ProxyLinksOptions {
  /** URLs as configured. */
  proxyUrls: readonly string[]
  /** Creates a link. The link calls `lost` when its connection has ended. */
  createLink(proxy: ProxyTarget, lost: () => void): ProxyLink
  resolve: HostResolver
  lookupIntervalMs: number
  clock: Clock
  logger: Logger
}

export class ProxyLinks {
  readonly #options: ProxyLinksOptions
  readonly #links = new Set<ProxyLink>()
  readonly #lives = new Set<Promise<void>>()
  readonly #names: ProxyAddresses[] = []
  #isLeaving = false

  constructor(options: ProxyLinksOptions) {
    this.#options = options
  }

  [Symbol.iterator](): Iterator<ProxyLink> {
    return this.#links.values()
  }

  /** Dials the configured proxies and those that DNS finds. Must be called once. */
  start(): void {
    if (this.#isLeaving) return
    for (const url of this.#options.proxyUrls) {
      if (standsForSeveral(url)) this.#watch(toAddressUrl(url))
      else this.#begin({ url })
    }
  }

  /** Stops DNS lookups and accepts no new requests. @returns whether each response was delivered */
  async drain(): Promise<boolean> {
    this.#leave()
    const links = await Promise.all([...this.#links].map((link) => link.drain()))
    return links.every((delivered) => delivered)
  }

  /** Cancels running requests. Resolves when every connection is closed. */
  async stop(): Promise<void> {
    this.#leave()
    for (const link of this.#links) link.stop()
    await Promise.all(this.#lives)
  }

  #leave(): void {
    this.#isLeaving = true
    for (const each of this.#names) each.stop()
  }

  #watch(url: string): void {
    const { resolve, lookupIntervalMs: intervalMs, clock, logger } = this.#options
    const host = new URL(url).hostname.replace(/^\[|\]$/g, '')
    const found = new Map<string, ProxyLink>()
    const leaving = new Map<string, ProxyLink>()
    const addresses = new ProxyAddresses({
      ...{ host, resolve, intervalMs, clock },
      onFound: (address) => {
        logEvent(logger, 'proxy_resolved', { host, address })
        // A proxy treats a second link of the same worker as a restart that lost its requests, so there is never more
        // than one.
        const left = leaving.get(address)
        leaving.delete(address)
        left?.resumeServing()
        found.set(address, left ?? this.#begin({ url, address }, () => addresses.lookSoon()))
      },
      onGone: (address) => {
        logEvent(logger, 'proxy_unresolved', { host, address })
        const link = found.get(address)
        if (link === undefined) return
        found.delete(address)
        leaving.set(address, link)
        void link.drain().then(() => {
          if (leaving.get(address) !== link) return
          leaving.delete(address)
          link.stop()
        })
      },
      onFailed: (error) => logEvent(logger, 'proxy_lookup_failed', { host, err: error }),
    })
    this.#names.push(addresses)
    addresses.start()
  }

  #begin(proxy: ProxyTarget, lost: () => void = () => {}): ProxyLink {
    const link = this.#options.createLink(proxy, lost)
    this.#links.add(link)
    const life = link.run().finally(() => {
      this.#links.delete(link)
      this.#lives.delete(life)
    })
    this.#lives.add(life)
    return link
  }
}
