interface Entry<V> {
  readonly value: V
  /** Size when the value was set. */
  readonly size: number
  usedAtMs: number
}

/**
 * A cache bounded by the total size of its values. The least recently used entry is evicted first; the entry that was
 * set last is not evicted.
 */
export class LruCache<K, V> {
  /** Entries, the least recently used first. */
  readonly #entries = new Map<K, Entry<V>>()
  readonly #maxSize: number
  readonly #sizeOf: (value: V) => number
  readonly #nowMs: () => number
  #size = 0

  /** @param nowMs returns the current time in milliseconds, for {@link deleteUnused} */
  constructor(maxSize: number, getSize: (value: V) => number, nowMs = () => 0) {
    this.#maxSize = maxSize
    this.#sizeOf = getSize
    this.#nowMs = nowMs
  }

  get(key: K): V | undefined {
    const entry = this.#entries.get(key)
    if (entry === undefined) return undefined
    entry.usedAtMs = this.#nowMs()
    this.#entries.delete(key)
    this.#entries.set(key, entry)
    return entry.value
  }

  /** Sets a value. Must be called again when the size of the value has changed. */
  set(key: K, value: V): void {
    this.delete(key)
    const size = this.#sizeOf(value)
    this.#entries.set(key, { value, size, usedAtMs: this.#nowMs() })
    this.#size += size
    // Checked before the loop: finding a map's first entry steps over the slots of all entries that were moved or
    // deleted.
    if (this.#size <= this.#maxSize) return
    for (const oldest of this.#entries.keys()) {
      if (this.#size <= this.#maxSize || oldest === key) return
      this.delete(oldest)
    }
  }

  delete(key: K): void {
    const entry = this.#entries.get(key)
    if (entry === undefined) return
    this.#size -= entry.size
    this.#entries.delete(key)
  }

  /**
   * Deletes the entries that were neither read nor set for `forMs`. Takes time proportional to the number of deleted
   * entries.
   */
  deleteUnused(forMs: number): void {
    const usedBefore = this.#nowMs() - forMs
    for (const [key, { usedAtMs }] of this.#entries) {
      if (usedAtMs > usedBefore) return
      this.delete(key)
    }
  }

  clear(): void {
    this.#entries.clear()
    this.#size = 0
  }
}
