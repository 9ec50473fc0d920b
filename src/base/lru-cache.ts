interface Entry<V> {
  readonly value: V
  /** As it was when the value was set. */
  readonly size: number
  usedAtMs: number
}

/** A cache bounded by the size of what it holds. What was least recently used goes first; the newest always stays. */
export class LruCache<K, V> {
  /** The least recently used first. */
  readonly #entries = new Map<K, Entry<V>>()
  readonly #maxSize: number
  readonly #sizeOf: (value: V) => number
  readonly #nowMs: () => number
  #size = 0

  /** @param nowMs a clock, of caches whose entries go by their age too ({@link deleteUnused}) */
  constructor(maxSize: number, sizeOf: (value: V) => number, nowMs = () => 0) {
    this.#maxSize = maxSize
    this.#sizeOf = sizeOf
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

  /** To be called again for a value that has grown. */
  set(key: K, value: V): void {
    this.delete(key)
    const size = this.#sizeOf(value)
    this.#entries.set(key, { value, size, usedAtMs: this.#nowMs() })
    this.#size += size
    // Asked first: a map steps over the place of each entry that was moved or deleted to find its first.
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

  /** What nobody has got or set for so long. Takes as long as there is such. */
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
