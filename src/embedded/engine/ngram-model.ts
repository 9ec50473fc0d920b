/**
 * An interpolated n-gram language model with absolute discounting (Ney, Essen & Kneser 1994). The mass of tokens that a
 * long context has not seen is distributed by the next shorter one, down to the uniform distribution, so that every
 * token has a probability above zero after every context.
 */
import { decodeNgrams, type NgramCounts, type NgramLevel } from './ngram-file.ts'

/**
 * Subtracted from every count in favour of shorter contexts. Small, because the corpus is small and its sentences
 * should be reproduced.
 */
const DISCOUNT = 0.25

export class NgramModel {
  readonly vocabularySize: number
  /** Probability of each token without any context. */
  readonly #base: Float64Array
  readonly #contexts: readonly ContextIndex[]

  constructor(counts: NgramCounts) {
    this.vocabularySize = counts.vocabularySize
    this.#base = computeBaseProbabilities(counts.unigrams)
    this.#contexts = counts.levels.map((level, i) => new ContextIndex(level, i + 1))
  }

  static fromFile(bytes: Uint8Array): NgramModel {
    return new NgramModel(decodeNgrams(bytes))
  }

  /** Returns the distribution of the token after the first `length` of `ids`. */
  getNextDistribution(ids: ArrayLike<number>, length = ids.length): NextTokenDistribution {
    const matches: ContextMatch[] = []
    for (const contexts of this.#contexts) {
      // If a shorter context was never seen, the longer ones were not seen either.
      const match = contexts.find(ids, length)
      if (match === undefined) break
      matches.push(match)
    }
    return new NextTokenDistribution(this.#base, matches)
  }
}

interface ContextMatch {
  level: NgramLevel
  from: number
  to: number
  /** Number of occurrences of the context. */
  total: number
}

interface NgramMatch extends ContextMatch {
  weight: number
}

/**
 * The distribution of one token. Both methods add the same terms in the same order, so their results are equal bit for
 * bit.
 */
export class NextTokenDistribution {
  readonly #base: Float64Array
  readonly #baseWeight: number
  readonly #matches: readonly NgramMatch[]

  /** @param matches the contexts that were seen, shortest first */
  constructor(base: Float64Array, matches: readonly ContextMatch[]) {
    const weighted: NgramMatch[] = []
    let left = 1
    for (const match of matches.toReversed()) {
      weighted.unshift({ ...match, weight: left / match.total })
      left *= (DISCOUNT * (match.to - match.from)) / match.total
    }
    this.#base = base
    this.#baseWeight = left
    this.#matches = weighted
  }

  getLogprob(token: number): number {
    return Math.log(this.getProbability(token))
  }

  getProbability(token: number): number {
    let probability = this.#base[token]! * this.#baseWeight
    for (const { level, from, to, weight } of this.#matches) {
      const offset = findInSorted(level.tokens, token, from, to)
      if (offset >= 0) probability += weight * (level.counts[offset]! - DISCOUNT)
    }
    return probability
  }

  /** Writes the probabilities of all tokens into an array of the vocabulary's size. */
  fill(probabilities: Float64Array): void {
    for (let token = 0; token < probabilities.length; token++) {
      probabilities[token] = this.#base[token]! * this.#baseWeight
    }
    for (const { level, from, to, weight } of this.#matches) {
      for (let index = from; index < to; index++) {
        probabilities[level.tokens[index]!]! += weight * (level.counts[index]! - DISCOUNT)
      }
    }
  }
}

/** Finds a context of `length` tokens by its last tokens. */
class ContextIndex {
  readonly #level: NgramLevel
  readonly #length: number
  readonly #positions = new Map<number, number>()
  readonly #totals: Uint32Array

  constructor(level: NgramLevel, length: number) {
    this.#level = level
    this.#length = length
    this.#totals = new Uint32Array(level.ends.length)
    for (let i = 0; i < level.ends.length; i++) {
      this.#positions.set(computeContextKey(level.contexts, i * length, length), i)
      for (let index = this.#from(i); index < level.ends[i]!; index++)
        this.#totals[i]! += level.counts[index]!
    }
  }

  find(ids: ArrayLike<number>, end: number): ContextMatch | undefined {
    if (end < this.#length) return undefined
    const position = this.#positions.get(computeContextKey(ids, end - this.#length, this.#length))
    if (position === undefined) return undefined
    return {
      level: this.#level,
      from: this.#from(position),
      to: this.#level.ends[position]!,
      total: this.#totals[position]!,
    }
  }

  #from(position: number): number {
    return position === 0 ? 0 : this.#level.ends[position - 1]!
  }
}

/** Three ids of 16 bits fit into the 53 bits of an exact number. */
function computeContextKey(ids: ArrayLike<number>, from: number, length: number): number {
  let key = 0
  for (let i = from; i < from + length; i++) key = key * 0x10000 + ids[i]!
  return key
}

function computeBaseProbabilities(unigrams: Uint32Array): Float64Array {
  const total = unigrams.reduce((sum, count) => sum + count, 0)
  const seen = unigrams.reduce((sum, count) => sum + Math.min(count, 1), 0)
  const floor = (DISCOUNT * seen) / total / unigrams.length
  return Float64Array.from(unigrams, (count) => Math.max(count - DISCOUNT, 0) / total + floor)
}

function findInSorted(sorted: Uint16Array, value: number, from: number, to: number): number {
  let low = from
  let high = to
  while (low < high) {
    const middle = (low + high) >>> 1
    if (sorted[middle]! < value) low = middle + 1
    else high = middle
  }
  return low < to && sorted[low] === value ? low : -1
}
