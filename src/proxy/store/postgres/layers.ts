/**
 * A cache of a table's rows by key, in two layers: the changes of the current group above committed rows. A key in
 * neither is assumed to be absent and noted. If it turns out to exist, the group is computed again.
 */
import { LruCache } from '../../../base/lru-cache.ts'

/** The undo log of a group's changes. */
export class Attempt {
  readonly #undo: (() => void)[] = []

  /** The current position, for {@link undoTo}. */
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

  /** Returns the value before the group. */
  recorded(key: K): V | undefined {
    return this.#recorded.get(key)
  }

  /** Sets a row. @param value undefined: the row was deleted */
  put(key: K, value: V | undefined): void {
    const had = this.#changed.has(key)
    const before = this.#changed.get(key)
    this.#attempt.onUndo(() => {
      if (had) this.#changed.set(key, before)
      else this.#changed.delete(key)
    })
    this.#changed.set(key, value)
  }

  /** Keys whose existence in the database is unknown. */
  get missing(): readonly K[] {
    return [...this.#missing]
  }

  /** Adds the rows found for missing keys. @returns whether any was found */
  load(found: ReadonlyMap<K, V>): boolean {
    for (const key of this.#missing) if (!found.has(key)) this.#absent.add(key)
    for (const [key, value] of found) this.#recorded.set(key, value)
    return found.size > 0
  }

  /** The changes of the group, by key. */
  get changed(): ReadonlyMap<K, V | undefined> {
    return this.#changed
  }

  /** Applies the group's changes to the cache after their commit. */
  commit(): void {
    for (const [key, value] of this.#changed) {
      if (value === undefined) this.#recorded.delete(key)
      else this.#recorded.set(key, value)
    }
    this.#changed.clear()
    this.#absent.clear()
  }

  /** Drops rows that another node may have changed. */
  forget(keys: Iterable<K>): void {
    for (const key of keys) this.#recorded.delete(key)
  }

  /** Drops all rows, because rows were deleted other than by their keys through this cache. */
  forgetAll(): void {
    this.#recorded.clear()
  }

  /** Discards the changes of a group that was not committed. */
  forgetGroup(): void {
    this.#changed.clear()
    this.#absent.clear()
    this.#missing.clear()
  }
}
