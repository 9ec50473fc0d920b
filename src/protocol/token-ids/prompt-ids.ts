/**
 * The token ids of a prompt, stored as the ids that it adds to an earlier prompt: a prompt usually repeats the previous
 * prompt and its completion, and adds a few tokens. The memory of a session therefore grows with its tokens and not
 * with the square of its turns, and two prompts with a common base are compared only after it. The database stores
 * prompts in the same form.
 */
import { createAttachmentSlots } from '../../base/side-table.ts'
import { concatIds, getSharedLength, type TokenIds } from './token-ids.ts'

const NO_IDS = new Int32Array(0)

export class PromptIds {
  /** The earlier prompt; undefined: none is shared. */
  base: PromptIds | undefined
  /** The number of tokens of the base, prompt and completion, that this prompt begins with. */
  shared: number
  /** The ids after the shared ones; immutable. */
  rest: Int32Array
  /** The number of ids. */
  readonly length: number
  /** The number of its bases: the base, the base's base, and so on. */
  readonly depth: number
  /** The ids sampled after this prompt, once they are complete and known to be exact. */
  completion: Int32Array = NO_IDS
  /** The attached values: see {@link SideTable}. */
  readonly notes = createAttachmentSlots()

  /**
   * Creates a prompt from a base and the ids after it.
   * @param rest must not be modified afterwards
   * @param shared number of leading tokens that are those of the base: its prompt, then its completion
   * @throws RangeError if the base has fewer
   */
  constructor(rest: Int32Array, base?: PromptIds, shared = 0) {
    const known = base?.tokenCount ?? 0
    if (shared > known) throw new RangeError(`a prompt shares ${shared} tokens of ${known}`)
    // PromptLists compares prompts without their completions, so `rest` may begin with the base's completion.
    const sampled = shared === base?.length ? getSharedLength(base.completion, rest) : 0
    this.length = shared + rest.length
    this.shared = shared + sampled
    this.rest = sampled === 0 ? rest : rest.slice(sampled)
    this.base = findFirstWith(this.shared, base)
    this.depth = this.base === undefined ? 0 : this.base.depth + 1
  }

  static of(...ids: number[]): PromptIds {
    return new PromptIds(Int32Array.from(ids))
  }

  static from(ids: Iterable<number>): PromptIds {
    return new PromptIds(Int32Array.from(ids))
  }

  /** The number of ids of prompt and completion together. */
  get tokenCount(): number {
    return this.length + this.completion.length
  }

  /** The memory that this prompt adds, in bytes. */
  get bytes(): number {
    return this.rest.byteLength + this.completion.byteLength
  }

  /** Returns all ids, in an array that must not be modified: it may be the prompt's own. */
  toArray(): Int32Array {
    return this.base === undefined ? this.rest : concatIds(...this.#parts(0, this.length))
  }

  /** Returns the ids of prompt and completion from one index up to another. */
  slice(from: number, end: number): Int32Array {
    return concatIds(...this.#parts(from, end))
  }

  [Symbol.iterator](): Iterator<number> {
    return this.toArray()[Symbol.iterator]()
  }

  /** Returns the prompt of a request that continues after this one and its completion. */
  createContinuation(...more: readonly TokenIds[]): PromptIds {
    return new PromptIds(concatIds(...more), this, this.tokenCount)
  }

  /** Returns the same prompt for another response, with a separate completion. */
  createCopy(): PromptIds {
    return new PromptIds(NO_IDS, this, this.length)
  }

  /** Returns whether the two have the same ids. */
  equals(other: PromptIds): boolean {
    return this === other || (this.length === other.length && other.countShared(this) >= this.length)
  }

  /**
   * Makes an earlier prompt the base if it shares more tokens with this prompt than the present base does, so that
   * shared ids are stored once.
   * @returns whether this prompt begins with all tokens of the earlier one, completion included
   */
  rebaseOn(earlier: PromptIds): boolean {
    const shared = earlier.countShared(this)
    if (shared > this.shared) {
      this.rest = this.slice(shared, this.length)
      this.base = findFirstWith(shared, earlier)
      this.shared = shared
    }
    return shared === earlier.tokenCount
  }

  /** Returns the number of leading tokens of another prompt that are those of this prompt and its completion. */
  countShared(prompt: PromptIds): number {
    let [mine, its]: (PromptIds | undefined)[] = [this, prompt]
    let [myEnd, itsEnd] = [this.tokenCount, prompt.length]
    // Walks to the common base. Without one, all ids are compared.
    while (mine !== its) {
      if (its === undefined || (mine !== undefined && mine.depth >= its.depth)) {
        myEnd = Math.min(myEnd, mine!.shared)
        mine = mine!.base
      } else {
        itsEnd = Math.min(itsEnd, its.shared)
        its = its.base
      }
    }
    const known = mine === undefined ? 0 : Math.min(myEnd, itsEnd)
    const end = Math.min(this.tokenCount, prompt.length)
    return known + countSharedIds(this.#parts(known, end), prompt.#parts(known, end))
  }

  /** Returns the ids in order, in parts. */
  #parts(from: number, end: number): Int32Array[] {
    const parts: Int32Array[] = []
    let last = end
    for (let at: PromptIds | undefined = this; at !== undefined && last > from; at = at.base) {
      const { length, shared, rest, completion } = at
      if (last > length) parts.push(completion.subarray(Math.max(0, from - length), last - length))
      if (last > shared && from < length) {
        parts.push(rest.subarray(Math.max(0, from - shared), Math.min(last, length) - shared))
      }
      last = Math.min(last, shared)
    }
    return parts.reverse()
  }
}

/**
 * Returns the earliest prompt among `base` and its bases that has the `shared` leading tokens, so that later prompts
 * need not be kept in memory.
 */
function findFirstWith(shared: number, base: PromptIds | undefined): PromptIds | undefined {
  let first = base
  while (first !== undefined && shared <= first.shared) first = first.base
  return first
}

function countSharedIds(left: readonly Int32Array[], right: readonly Int32Array[]): number {
  let total = 0
  let [mine, its] = [NO_IDS as Int32Array, NO_IDS as Int32Array]
  let [nextMine, nextIts] = [0, 0]
  for (;;) {
    if (mine.length === 0) mine = left[nextMine++] ?? NO_IDS
    if (its.length === 0) its = right[nextIts++] ?? NO_IDS
    const isOver = nextMine > left.length || nextIts > right.length
    if (isOver) return total
    const length = Math.min(mine.length, its.length)
    const shared = getSharedLength(mine, its)
    total += shared
    if (shared < length) return total
    mine = mine.subarray(length)
    its = its.subarray(length)
  }
}
