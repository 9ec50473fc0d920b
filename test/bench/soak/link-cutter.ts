import type { Forwarder } from '../../helpers/forwarder.ts'

/** Cuts each link repeatedly, after random times, half of them short. */
export class LinkCutter implements Disposable {
  readonly #meanMs: number
  readonly #random: () => number
  readonly #timers = new Set<NodeJS.Timeout>()
  cuts = 0

  constructor(links: readonly Forwarder[], meanMs: number, random: () => number) {
    this.#meanMs = meanMs
    this.#random = random
    for (const link of links) this.#schedule(link)
  }

  #schedule(link: Forwarder): void {
    const waitMs = -Math.log(1 - this.#random()) * this.#meanMs
    const timer = setTimeout(() => {
      this.#timers.delete(timer)
      if (link.connections > 0) this.cuts += 1
      link.cut()
      this.#schedule(link)
    }, waitMs)
    this.#timers.add(timer)
  }

  [Symbol.dispose](): void {
    for (const timer of this.#timers) clearTimeout(timer)
  }
}
