/**
 * The token ids of a prompt, stored as what it adds to an earlier one: the prompt of a request is the prompt of the
 * request before it, that one's completion, and a little more. A session's memory therefore grows with its tokens and
 * not with the square of its turns, and two prompts with a common base are compared from there on. The database rows
 * have the same form.
 */
import { createAttachmentSlots } from '../../base/side-table.ts'
import { concatIds, getSharedLength, type TokenIds } from './token-ids.ts'

const NO_IDS = new Int32Array(0)

export class PromptIds {
  /** The earlier prompt; undefined: none is shared. */
  base: PromptIds | undefined
  /** The number of tokens of the base, prompt and completion, that this prompt begins with. */
  shared: number
  /** The ids after those; immutable. */
  rest: Int32Array
  /** The number of ids. */
  readonly length: number
  /** The number of prompts that this one extends. */
  readonly depth: number
  /** The ids sampled after it, once they are complete and known to be exact. */
  completion: Int32Array = NO_IDS
  /** The attached values: see {@link SideTable}. */
  readonly notes = createAttachmentSlots()

  /**
   * Creates a prompt from a base and the ids after it.
   * @param rest must not be modified afterwards
   * @param shared number of leading tokens that are those of `base`
   * @throws RangeError if the base has fewer
   */
  constructor(rest: Int32Array, base?: PromptIds, shared = 0) {
    const known = base?.tokenCount ?? 0
    if (shared > known) throw new RangeError(`a prompt shares ${shared} tokens of ${known}`)
    // A reader of the prompt's JSON knows prompts only, and extends the end of one.
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

  /** Returns all ids; possibly the list that this prompt keeps, without a copy. */
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
   * Returns whether this prompt begins with all tokens of an earlier one, completion included. The earlier one becomes
   * its base, so that shared ids are stored once, if they have more in common than this prompt and its base.
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

  /** Returns how many leading tokens of another prompt are those of this prompt and its completion. */
  countShared(prompt: PromptIds): number {
    let [mine, its]: (PromptIds | undefined)[] = [this, prompt]
    let [myEnd, itsEnd] = [this.tokenCount, prompt.length]
    // Walk to the common base. Without one, or if it was found too late, the prompts are compared completely.
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
 * Returns the earliest prompt that has that many common tokens, so that later ones need not be kept in memory for them.
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
