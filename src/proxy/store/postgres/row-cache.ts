/**
 * A cache of rows of one table by key, used while a group is computed: the changes of the group on top of committed
 * rows. A lookup of a key in neither returns undefined and marks the key as missing. The writer then loads the missing
 * rows, and computes the group again if any of them exists.
 */
import { LruCache } from '../../../base/lru-cache.ts'

/** The steps that undo the changes of a group, in the order of the changes. */
export class UndoLog {
  readonly #steps: (() => void)[] = []

  /** The number of steps, for {@link undoTo}. */
  get length(): number {
    return this.#steps.length
  }

  push(step: () => void): void {
    this.#steps.push(step)
  }

  undoTo(length: number): void {
    while (this.#steps.length > length) this.#steps.pop()!()
  }
}

export class RowCache<K extends string | number, V> {
  readonly #committed: LruCache<K, V>
  readonly #changed = new Map<K, V | undefined>()
  /** The keys for which the database had no row when they were loaded for this group. */
  readonly #absent = new Set<K>()
  readonly #missing = new Set<K>()
  #undo = new UndoLog()

  constructor(maxSize: number, getSize: (value: V) => number) {
    this.#committed = new LruCache(maxSize, getSize)
  }

  /** Starts the computation of a group, for the first time or again. */
  begin(undo: UndoLog): void {
    this.#undo = undo
    this.#changed.clear()
    this.#missing.clear()
  }

  get(key: K): V | undefined {
    if (this.#changed.has(key)) return this.#changed.get(key)
    const committed = this.#committed.get(key)
    if (committed === undefined && !this.#absent.has(key)) this.#missing.add(key)
    return committed
  }

  /** Returns the row as it was before the group. */
  getCommitted(key: K): V | undefined {
    return this.#committed.get(key)
  }

  /** Changes a row. @param value undefined: the row is deleted */
  set(key: K, value: V | undefined): void {
    const wasChanged = this.#changed.has(key)
    const before = this.#changed.get(key)
    this.#undo.push(() => {
      if (wasChanged) this.#changed.set(key, before)
      else this.#changed.delete(key)
    })
    this.#changed.set(key, value)
  }

  /** The keys that the group has looked up, and of which it is unknown whether the database has them. */
  get missing(): readonly K[] {
    return [...this.#missing]
  }

  /** Adds the rows that the database has for the missing keys. @returns whether there are any */
  load(found: ReadonlyMap<K, V>): boolean {
    for (const key of this.#missing) if (!found.has(key)) this.#absent.add(key)
    for (const [key, value] of found) this.#committed.set(key, value)
    return found.size > 0
  }

  /** The changes of the group, by key. */
  get changed(): ReadonlyMap<K, V | undefined> {
    return this.#changed
  }

  /** Applies the group's changes to the cache, after their commit. */
  commit(): void {
    for (const [key, value] of this.#changed) {
      if (value === undefined) this.#committed.delete(key)
      else this.#committed.set(key, value)
    }
    this.#changed.clear()
    this.#absent.clear()
  }

  /** Discards the changes of a group that was not committed. */
  rollback(): void {
    this.#changed.clear()
    this.#absent.clear()
    this.#missing.clear()
  }

  /** Drops rows that another node may have changed. */
  invalidate(keys: Iterable<K>): void {
    for (const key of keys) this.#committed.delete(key)
  }

  /** Drops all rows. */
  invalidateAll(): void {
    this.#committed.clear()
  }
}
