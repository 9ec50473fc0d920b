/** A queue that serves accounts round-robin, so that an account with many items does not delay the others. */
export class FairQueue<Item> {
  /** Items of each account, oldest first; the first account is served next. */
  readonly #waiting = new Map<string, Item[]>()
  #size = 0

  get size(): number {
    return this.#size
  }

  /** The item that {@link shift} without a filter would return. */
  get next(): Item | undefined {
    const [items] = this.#waiting.values()
    return items?.[0]
  }

  push(account: string, item: Item): void {
    const items = this.#waiting.get(account)
    if (items === undefined) this.#waiting.set(account, [item])
    else items.push(item)
    this.#size += 1
  }

  /**
   * Removes an item: the oldest of the first account in order whose oldest item may be removed. Accounts that are
   * skipped keep their position.
   * @param mayGo returns whether an item may be removed. Default: every item may.
   * @returns undefined if there is no such item
   */
  shift(mayGo: (item: Item) => boolean = () => true): Item | undefined {
    for (const [account, items] of this.#waiting) {
      if (!mayGo(items[0]!)) continue
      this.#waiting.delete(account)
      const item = items.shift()
      if (items.length > 0) this.#waiting.set(account, items)
      this.#size -= 1
      return item
    }
    return undefined
  }
}
