/** A queue in which accounts take turns: what one of them brings in heaps waits behind one thing of each other. */
export class FairQueue<Item> {
  /** Oldest first, of each account; the account whose turn it is, is the first. */
  readonly #waiting = new Map<string, Item[]>()
  #size = 0

  get size(): number {
    return this.#size
  }

  /** What {@link shift} would return, of any items. */
  get next(): Item | undefined {
    const [turn] = this.#waiting.values()
    return turn?.[0]
  }

  push(account: string, item: Item): void {
    const items = this.#waiting.get(account)
    if (items === undefined) this.#waiting.set(account, [item])
    else items.push(item)
    this.#size += 1
  }

  /**
   * @param mayGo Accounts whose oldest item may not go keep their turn. Default: any may
   * @returns the oldest item of the account whose turn it is; undefined: there is none
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
