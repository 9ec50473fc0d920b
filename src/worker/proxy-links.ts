/** The links of a worker: one to each configured proxy, and one to each address to which a `dns+` URL resolves. */
import type { Clock } from '../base/clock.ts'
import { logEvent } from '../base/log-events.ts'
import type { Logger } from '../base/logger.ts'
import { type HostResolver, ProxyAddresses } from './proxy-addresses.ts'
import type { ProxyLink } from './proxy-link.ts'
import { isMultiProxyUrl, toAddressUrl } from './proxy-url.ts'

/** The proxy to which a link connects. */
export interface ProxyTarget {
  url: string
  /** The address to dial, if the URL's host has several. */
  address?: string
}

/** The options of {@link ProxyLinks}. */
interface ProxyLinksOptions {
  /** The URLs as configured, with or without the prefix `dns+`. */
  proxyUrls: readonly string[]
  /** Creates a link, which calls `lost` after each loss of its connection. */
  createLink(proxy: ProxyTarget, lost: () => void): ProxyLink
  resolve: HostResolver
  lookupIntervalMs: number
  clock: Clock
  logger: Logger
}

/** All links of a worker. */
export class ProxyLinks {
  readonly #options: ProxyLinksOptions
  readonly #links = new Set<ProxyLink>()
  readonly #running = new Set<Promise<void>>()
  readonly #watched: ProxyAddresses[] = []
  #isLeaving = false

  constructor(options: ProxyLinksOptions) {
    this.#options = options
  }

  [Symbol.iterator](): Iterator<ProxyLink> {
    return this.#links.values()
  }

  /** Dials the configured proxies and resolves `dns+` URLs. Must be called once. */
  start(): void {
    if (this.#isLeaving) return
    for (const url of this.#options.proxyUrls) {
      if (isMultiProxyUrl(url)) this.#watch(toAddressUrl(url))
      else this.#begin({ url })
    }
  }

  /** Stops DNS lookups and drains all links. @returns whether each response was delivered or cancelled by its proxy */
  async drain(): Promise<boolean> {
    this.#leave()
    const links = await Promise.all([...this.#links].map((link) => link.drain()))
    return links.every((delivered) => delivered)
  }

  /** Stops all links, which cancels their running requests. Resolves when every connection is closed. */
  async stop(): Promise<void> {
    this.#leave()
    for (const link of this.#links) link.stop()
    await Promise.all(this.#running)
  }

  #leave(): void {
    this.#isLeaving = true
    for (const each of this.#watched) each.stop()
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
        // At most one link per address: a second one would count as a restart of the worker, and the proxy would fail
        // the requests of the first.
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
    this.#watched.push(addresses)
    addresses.start()
  }

  #begin(proxy: ProxyTarget, lost: () => void = () => {}): ProxyLink {
    const link = this.#options.createLink(proxy, lost)
    this.#links.add(link)
    const run = link.run().finally(() => {
      this.#links.delete(link)
      this.#running.delete(run)
    })
    this.#running.add(run)
    return link
  }
}
