interface Entry<V> {
  readonly value: V
  /** As it was when the value was set. */
  readonly size: number
}

/** A cache bounded by the size of what it holds. What was least recently used goes first; the newest always stays. */
export class RecentlyUsed<K, V> {
  readonly #entries = new Map<K, Entry<V>>()
  readonly #maxSize: number
  readonly #sizeOf: (value: V) => number
  #size = 0

  constructor(maxSize: number, sizeOf: (value: V) => number) {
    this.#maxSize = maxSize
    this.#sizeOf = sizeOf
  }

  get(key: K): V | undefined {
    const entry = this.#entries.get(key)
    if (entry === undefined) return undefined
    this.#entries.delete(key)
    this.#entries.set(key, entry)
    return entry.value
  }

  /** To be called again for a value that has grown. */
  set(key: K, value: V): void {
    this.delete(key)
    const size = this.#sizeOf(value)
    this.#entries.set(key, { value, size })
    this.#size += size
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

  clear(): void {
    this.#entries.clear()
    this.#size = 0
  }
}
