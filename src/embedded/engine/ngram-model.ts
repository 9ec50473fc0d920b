/**
 * An interpolated n-gram language model with absolute discounting (Ney, Essen & Kneser 1994). The probability that a
 * context reserves for unseen tokens is distributed like that of the next shorter context, down to the uniform
 * distribution, so that every token has a probability above zero in every context.
 */
import { decodeNgrams, type NgramCounts, type NgramLevel } from './ngram-file.ts'

/**
 * The value that is subtracted from every count in favour of shorter contexts. It is low, because the corpus is small
 * and the model should reproduce its sentences.
 */
const DISCOUNT = 0.25

/** An n-gram model. */
export class NgramModel {
  readonly vocabularySize: number
  /** The probability of each token without context. */
  readonly #base: Float64Array
  readonly #contexts: readonly ContextIndex[]

  constructor(counts: NgramCounts) {
    this.vocabularySize = counts.vocabularySize
    this.#base = computeBaseProbabilities(counts.unigrams)
    this.#contexts = counts.levels.map((level, i) => new ContextIndex(level, i + 1))
  }

  /** Creates a model from an n-gram file. @throws Error if the bytes are not a complete n-gram file */
  static fromFile(bytes: Uint8Array): NgramModel {
    return new NgramModel(decodeNgrams(bytes))
  }

  /** Returns the distribution of the token that follows the first `length` of `ids`. */
  getNextDistribution(ids: ArrayLike<number>, length = ids.length): NextTokenDistribution {
    const matches: ContextMatch[] = []
    for (const contexts of this.#contexts) {
      // If a context has not been seen, neither have longer ones.
      const match = contexts.find(ids, length)
      if (match === undefined) break
      matches.push(match)
    }
    return new NextTokenDistribution(this.#base, matches)
  }
}

/** A context that has been seen: its entries in a level have the indices from `from` up to, but excluding, `to`. */
interface ContextMatch {
  level: NgramLevel
  from: number
  to: number
  /** The number of occurrences of the context. */
  total: number
}

/** A context with the factor for its discounted counts. */
interface NgramMatch extends ContextMatch {
  weight: number
}

/**
 * The distribution of the next token. `getProbability` and `fill` add the same terms in the same order, so their
 * results are bitwise equal.
 */
export class NextTokenDistribution {
  readonly #base: Float64Array
  readonly #baseWeight: number
  readonly #matches: readonly NgramMatch[]

  /** @param matches the contexts that have been seen, the shortest first */
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

  /** Returns the natural logarithm of a token's probability. */
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

/** An index of the contexts of one length. */
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

  /** Finds the context before index `end` of `ids`; undefined if it has not been seen. */
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

/** Returns a context's key. It is exact for up to three ids of 16 bits, because numbers are exact up to 53 bits. */
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
