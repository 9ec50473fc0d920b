/**
 * The storage of prompt ids as differences from earlier turns. The sequence of a turn is its prompt ids followed by its
 * completion ids; the next prompt of the conversation begins with it, so that only the new ids must be stored.
 */
import { ProxyError } from '../../../base/errors.ts'
import { LruCache } from '../../../base/lru-cache.ts'
import { getSharedLength } from '../../../protocol/token-ids/token-ids.ts'
import { MIN_SHARED_TOKENS } from '../port/turn-store.ts'
import { checkSum } from './check-sums.ts'
import { packIds, unpackIds } from './packing.ts'
import type { PromptColumns, SequenceRow, SequenceTables } from './tables.ts'
import { IDS_SUMMED } from './turn-columns.ts'

const NO_IDS = new Int32Array(0)

/** The sequences of turns, read and written through a cache of the most recently used ones, up to a number of bytes. */
export class TokenSequences {
  readonly #cache: LruCache<number, Int32Array>
  readonly #tables: SequenceTables

  constructor(tables: SequenceTables, cacheBytes: number) {
    this.#tables = tables
    this.#cache = new LruCache(cacheBytes, (sequence) => sequence.byteLength)
  }

  /** Finds the turn whose sequence shares the longest prefix with this turn's prompt, and packs the difference. */
  pack(turn: { id: number; tree: number; node: number }, promptIds: Int32Array): PromptColumns {
    const best = this.#findBase(turn, promptIds)
    if (best.shared < MIN_SHARED_TOKENS) return { base: null, shared: null, rest: packIds(promptIds) }
    return { ...best, rest: packIds(promptIds.subarray(best.shared)) }
  }

  /** Discards the cached sequences of a tree that will not grow further. */
  forgetTree(tree: number): void {
    for (const id of this.#tables.listTurns(tree)) this.#cache.delete(id)
  }

  /** Returns whether the sequence is cached, so that a sequence which extends it can be assembled without its rows. */
  isCached(id: number): boolean {
    return this.#cache.get(id) !== undefined
  }

  /** Discards all cached sequences. To be called after a rollback: the row ids of its turns may be assigned again. */
  forget(): void {
    this.#cache.clear()
  }

  /** Returns the ids of a turn as copies, which may be transferred. */
  read(id: number): { promptIds: Int32Array; completionIds: Int32Array } {
    const row = this.#getRow(id)
    const completionLength = row?.completion ? unpackIds(row.completion).length : 0
    const sequence = this.#sequence(id)
    const promptLength = sequence.length - completionLength
    return { promptIds: sequence.slice(0, promptLength), completionIds: sequence.slice(promptLength) }
  }

  /** Reads and verifies a row. @throws ProxyError `data_damaged` */
  #getRow(id: number): SequenceRow | undefined {
    const row = this.#tables.findSequence(id)
    if (row !== undefined)
      checkSum(toColumns(row), IDS_SUMMED, { sum: row.sum, what: `The prompt of turn ${id}` })
    return row
  }

  #findBase(turn: { id: number; tree: number; node: number }, promptIds: Int32Array) {
    let best = { base: 0, shared: 0 }
    for (const base of this.#tables.listBases(turn)) {
      const sequence = this.#findIntactSequence(base)
      if (sequence === undefined) continue
      const shared = getSharedLength(sequence, promptIds)
      if (shared > best.shared) best = { base, shared }
      // The search ends at a sequence of which the prompt is a prefix, or which is a prefix of the prompt.
      if (shared === promptIds.length || (shared === sequence.length && shared > 0)) break
    }
    return best
  }

  /** Returns a sequence; undefined if it is damaged, so that no row depends on it. */
  #findIntactSequence(id: number): Int32Array | undefined {
    try {
      return this.#sequence(id)
    } catch (error) {
      if (error instanceof ProxyError && error.code === 'data_damaged') return undefined
      throw error
    }
  }

  /**
   * Assembles a sequence from that of the nearest cached ancestor. Iterates, because a chain may have ten thousand
   * turns.
   */
  #sequence(id: number): Int32Array {
    const chain: SequenceRow[] = []
    let start = this.#cache.get(id)
    for (let at: number | null = id; start === undefined && at !== null; ) {
      const row: SequenceRow | undefined = this.#getRow(at)
      if (row === undefined) throw new Error(`turn ${at}, the base of another one, is missing`)
      chain.push(row)
      at = row.base
      if (at !== null) start = this.#cache.get(at)
    }
    if (chain.length === 0) return start ?? NO_IDS
    const sequence = assembleSequence(start ?? NO_IDS, chain.reverse())
    this.#cache.set(id, sequence)
    return sequence
  }
}

/** Applies a chain of turns, oldest first, each of which truncates its base's sequence and appends its ids. */
function assembleSequence(start: Int32Array, chain: SequenceRow[]): Int32Array {
  const growing = new GrowingIds(start)
  for (const row of chain) {
    growing.truncate(row.shared ?? 0)
    if (row.rest !== null) growing.append(unpackIds(row.rest))
    if (row.completion !== null) growing.append(unpackIds(row.completion))
  }
  return growing.take()
}

function toColumns({ base, shared, rest, completion }: SequenceRow) {
  return { prompt_base: base, prompt_shared: shared, prompt_rest: rest, completion_ids: completion }
}

/** Token ids in a buffer that grows by doubling. */
class GrowingIds {
  #ids: Int32Array
  #length: number

  constructor(start: Int32Array) {
    this.#ids = start.slice()
    this.#length = start.length
  }

  truncate(length: number): void {
    this.#length = length
  }

  append(more: Int32Array): void {
    const length = this.#length + more.length
    if (length > this.#ids.length) {
      const larger = new Int32Array(length * 2)
      larger.set(this.#ids.subarray(0, this.#length))
      this.#ids = larger
    }
    this.#ids.set(more, this.#length)
    this.#length = length
  }

  take(): Int32Array {
    return this.#ids.slice(0, this.#length)
  }
}
