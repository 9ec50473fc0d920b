/**
 * The token ids of a prompt, as what it adds to an earlier one: the prompt of a call is the prompt of the call before it,
 * that one's completion, and a little more. A session's memory so grows with its tokens and not with the square of its
 * turns, and two prompts that go on from the same one are compared from there on. The store's rows say it alike.
 */
import { createAttachmentSlots } from '../../base/side-table.ts'
import { concatIds, getSharedLength, type TokenIds } from './token-ids.ts'

const NO_IDS = new Int32Array(0)

export class PromptIds {
  /** The earlier prompt; undefined: nothing is shared with one. */
  base: PromptIds | undefined
  /** How many of the base's tokens, prompt and completion, this prompt begins with. */
  shared: number
  /** The ids behind those. Nobody changes them. */
  rest: Int32Array
  /** How many ids there are. */
  readonly length: number
  /** How many prompts this one goes on from. */
  readonly depth: number
  /** What was sampled after it, once that is whole and known to be exact. */
  completion: Int32Array = NO_IDS
  /** What others keep with it: see {@link Note}. */
  readonly notes = createAttachmentSlots()

  /**
   * @param rest not to be changed any more
   * @param shared how many tokens of `base` come before
   * @throws RangeError if the base has not as many
   */
  constructor(rest: Int32Array, base?: PromptIds, shared = 0) {
    const known = base?.tokenCount ?? 0
    if (shared > known) throw new RangeError(`a prompt shares ${shared} tokens of ${known}`)
    // Who read its text knows prompts alone, and goes on from the end of one.
    const sampled = shared === base?.length ? getSharedLength(base.completion, rest) : 0
    this.length = shared + rest.length
    this.shared = shared + sampled
    this.rest = sampled === 0 ? rest : rest.slice(sampled)
    this.base = firstWith(this.shared, base)
    this.depth = this.base === undefined ? 0 : this.base.depth + 1
  }

  static of(...ids: number[]): PromptIds {
    return new PromptIds(Int32Array.from(ids))
  }

  static from(ids: Iterable<number>): PromptIds {
    return new PromptIds(Int32Array.from(ids))
  }

  /** Of prompt and completion together. */
  get tokenCount(): number {
    return this.length + this.completion.length
  }

  /** What is kept in memory because of this prompt. */
  get bytes(): number {
    return this.rest.byteLength + this.completion.byteLength
  }

  /** All ids; perhaps the very list that this prompt keeps. */
  whole(): Int32Array {
    return this.base === undefined ? this.rest : concatIds(...this.#parts(0, this.length))
  }

  /** The ids of prompt and completion from one place on, up to another. */
  slice(from: number, end: number): Int32Array {
    return concatIds(...this.#parts(from, end))
  }

  [Symbol.iterator](): Iterator<number> {
    return this.whole()[Symbol.iterator]()
  }

  /** The prompt of a call that goes on from this one and its completion. */
  continuedBy(...more: readonly TokenIds[]): PromptIds {
    return new PromptIds(concatIds(...more), this, this.tokenCount)
  }

  /** The same prompt for another answer: what is sampled after it is its own. */
  again(): PromptIds {
    return new PromptIds(NO_IDS, this, this.length)
  }

  /** Whether the two say the same. */
  equals(other: PromptIds): boolean {
    return this === other || (this.length === other.length && other.sharedWith(this) >= this.length)
  }

  /**
   * Whether this prompt begins with all tokens of an earlier one, completion included. What it shares with it is kept
   * from now on only once, if that is more than it shares with its base.
   */
  goesOnFrom(earlier: PromptIds): boolean {
    const shared = earlier.sharedWith(this)
    if (shared > this.shared) {
      this.rest = this.slice(shared, this.length)
      this.base = firstWith(shared, earlier)
      this.shared = shared
    }
    return shared === earlier.tokenCount
  }

  /** How many tokens of this prompt and its completion another prompt begins with. */
  sharedWith(prompt: PromptIds): number {
    let [mine, its]: (PromptIds | undefined)[] = [this, prompt]
    let [myEnd, itsEnd] = [this.tokenCount, prompt.length]
    // Up to the one that both go on from. Two that have none, or are found to go on too late, are compared as a whole.
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
    return known + sharedOfParts(this.#parts(known, end), prompt.#parts(known, end))
  }

  /** In order. */
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

/** The earliest prompt that has so many tokens alike: what came after them need not be kept for them. */
function firstWith(shared: number, base: PromptIds | undefined): PromptIds | undefined {
  let first = base
  while (first !== undefined && shared <= first.shared) first = first.base
  return first
}

function sharedOfParts(left: readonly Int32Array[], right: readonly Int32Array[]): number {
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
