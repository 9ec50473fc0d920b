/**
 * What the writer knows of a table's rows by their keys: what a group of calls changes, above what is on record. A key of which
 * neither tells is taken for absent, and noted: if it turns out to be there, the group is worked out once more.
 */
import { LruCache } from '../../../base/lru-cache.ts'

/** What one group has asked for, changed, and can take back. */
export class Attempt {
  readonly #undo: (() => void)[] = []

  /** @returns where to go back to */
  get mark(): number {
    return this.#undo.length
  }

  onUndo(undo: () => void): void {
    this.#undo.push(undo)
  }

  undoTo(mark: number): void {
    while (this.#undo.length > mark) this.#undo.pop()!()
  }
}

export class Layer<K extends string | number, V> {
  readonly #recorded: LruCache<K, V>
  readonly #changed = new Map<K, V | undefined>()
  readonly #absent = new Set<K>()
  readonly #missing = new Set<K>()
  #attempt = new Attempt()

  constructor(maxSize: number, sizeOf: (value: V) => number) {
    this.#recorded = new LruCache(maxSize, sizeOf)
  }

  begin(attempt: Attempt): void {
    this.#attempt = attempt
    this.#changed.clear()
    this.#missing.clear()
  }

  get(key: K): V | undefined {
    if (this.#changed.has(key)) return this.#changed.get(key)
    const recorded = this.#recorded.get(key)
    if (recorded === undefined && !this.#absent.has(key)) this.#missing.add(key)
    return recorded
  }

  /** As it was before the group. */
  recorded(key: K): V | undefined {
    return this.#recorded.get(key)
  }

  /** @param value undefined: there is no such row any more */
  put(key: K, value: V | undefined): void {
    const had = this.#changed.has(key)
    const before = this.#changed.get(key)
    this.#attempt.onUndo(() => {
      if (had) this.#changed.set(key, before)
      else this.#changed.delete(key)
    })
    this.#changed.set(key, value)
  }

  /** Keys of which nobody knows whether they are on record. */
  get missing(): readonly K[] {
    return [...this.#missing]
  }

  /** @param found of those that were missing. @returns whether any is there */
  load(found: ReadonlyMap<K, V>): boolean {
    for (const key of this.#missing) if (!found.has(key)) this.#absent.add(key)
    for (const [key, value] of found) this.#recorded.set(key, value)
    return found.size > 0
  }

  /** What the group has changed, by key. */
  get changed(): ReadonlyMap<K, V | undefined> {
    return this.#changed
  }

  /** The group is on record. */
  commit(): void {
    for (const [key, value] of this.#changed) {
      if (value === undefined) this.#recorded.delete(key)
      else this.#recorded.set(key, value)
    }
    this.#changed.clear()
    this.#absent.clear()
  }

  /** Somebody else may have changed these rows. */
  forget(keys: Iterable<K>): void {
    for (const key of keys) this.#recorded.delete(key)
  }

  /** Rows have gone that nobody of this process removed by their keys. */
  forgetAll(): void {
    this.#recorded.clear()
  }

  /** The group is not. */
  forgetGroup(): void {
    this.#changed.clear()
    this.#absent.clear()
    this.#missing.clear()
  }
}
