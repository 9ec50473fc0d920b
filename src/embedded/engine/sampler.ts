/**
 * Samples the next token. The order of the steps is vLLM's (`vllm/v1/sample/sampler.py`): masks and penalties, then
 * greedy sampling, or temperature, min_p, top_k, top_p and a random draw. The logits are the model's logprobs; the
 * sampler computes with their exponentials, the weights.
 */
import type { NextTokenDistribution } from './ngram-model.ts'
import { createSeededRandom, type RandomSource } from './random.ts'
import type { SamplingParams } from './sampling-params.ts'

/** The temperature below which vLLM samples greedily. */
const GREEDY_BELOW = 1e-5

interface SamplerOptions {
  params: SamplingParams
  vocabularySize: number
  eosTokenId: number
  promptIds: ArrayLike<number>
}

/** The sampler of one completion. */
export class Sampler {
  readonly #params: SamplingParams
  readonly #random: RandomSource
  readonly #weights: Float64Array
  /** The tokens that end a completion, which are masked before `min_tokens`. */
  readonly #endings: readonly number[]
  readonly #inPrompt: ReadonlySet<number>
  /** The number of occurrences of each token in the completion. */
  readonly #generated = new Map<number, number>()
  #length = 0

  constructor({ params, vocabularySize, eosTokenId, promptIds }: SamplerOptions) {
    this.#params = params
    this.#random = createSeededRandom(params.seed)
    this.#weights = new Float64Array(vocabularySize)
    this.#endings = [...(params.ignoreEos ? [] : [eosTokenId]), ...params.stopTokenIds]
    this.#inPrompt = new Set(params.repetitionPenalty === 1 ? [] : Array.from(promptIds))
  }

  /** Draws a token without adding it to the completion. @returns the token's id */
  draw(next: NextTokenDistribution): number {
    const weights = this.#weights
    next.fill(weights)
    if (this.#length < this.#params.minTokens) for (const id of this.#endings) weights[id] = 0
    this.#penalize(weights)
    if (this.#params.temperature < GREEDY_BELOW) return findIndexOfLargest(weights)
    applyTemperature(weights, this.#params.temperature)
    const kept = this.#restrict(weights)
    return kept === undefined ? drawFromAll(weights, this.#random()) : drawFrom(kept, weights, this.#random())
  }

  /** Counts a token that was added to the completion, drawn or forced. */
  accept(id: number): void {
    this.#length++
    this.#generated.set(id, (this.#generated.get(id) ?? 0) + 1)
  }

  #penalize(weights: Float64Array): void {
    const { repetitionPenalty, presencePenalty, frequencyPenalty } = this.#params
    // A log-probability is never positive, so the repetition penalty always multiplies it.
    if (repetitionPenalty !== 1) {
      for (const id of new Set([...this.#inPrompt, ...this.#generated.keys()])) {
        weights[id] = weights[id]! ** repetitionPenalty
      }
    }
    if (presencePenalty === 0 && frequencyPenalty === 0) return
    for (const [id, count] of this.#generated) {
      weights[id]! *= Math.exp(-presencePenalty - frequencyPenalty * count)
    }
  }

  /**
   * Returns the tokens that remain after top_k and top_p, the most probable first; undefined if all tokens with a
   * positive weight do. min_p sets weights to 0.
   */
  #restrict(weights: Float64Array): number[] | undefined {
    const { minP, topK, topP } = this.#params
    if (minP > 0) clearBelow(weights, minP * weights[findIndexOfLargest(weights)]!)
    if (topK > 0 && topK < weights.length) {
      const ranked = rankUntil(weights, (ids) => ids.length >= topK).slice(0, topK)
      return cutAtMass(ranked, weights, topP * sumIds(ranked, weights))
    }
    if (topP === 1) return undefined
    const mass = topP * sumWeights(weights)
    return cutAtMass(
      rankUntil(weights, (ids) => sumIds(ids, weights) >= mass),
      weights,
      mass,
    )
  }
}

function applyTemperature(weights: Float64Array, temperature: number): void {
  if (temperature === 1) return
  // The weights are divided by the largest one, because otherwise all would underflow at a low temperature.
  const largest = weights[findIndexOfLargest(weights)]!
  for (let id = 0; id < weights.length; id++) weights[id] = (weights[id]! / largest) ** (1 / temperature)
}

function clearBelow(weights: Float64Array, floor: number): void {
  for (let id = 0; id < weights.length; id++) if (weights[id]! < floor) weights[id] = 0
}

/**
 * Returns the ids with the largest weights in descending order, and by id if weights are equal. The result contains at
 * least enough ids, or all with a positive weight. Sorting the complete vocabulary for each token would take most of
 * the engine's time.
 */
function rankUntil(weights: Float64Array, areEnough: (ids: readonly number[]) => boolean): number[] {
  const largest = weights[findIndexOfLargest(weights)]!
  let threshold = largest
  let ids: number[] = []
  do {
    threshold = threshold > largest * 1e-9 ? threshold / 32 : Number.MIN_VALUE
    ids = selectIds(weights, threshold)
  } while (threshold > Number.MIN_VALUE && !areEnough(ids))
  return ids.sort((a, b) => weights[b]! - weights[a]! || a - b)
}

function selectIds(weights: Float64Array, threshold: number): number[] {
  const ids: number[] = []
  for (let id = 0; id < weights.length; id++) if (weights[id]! >= threshold) ids.push(id)
  return ids
}

/** Returns the shortest prefix of `ranked` whose total weight reaches `mass`. */
function cutAtMass(ranked: readonly number[], weights: Float64Array, mass: number): number[] {
  let left = mass
  let length = 0
  while (length < ranked.length && left > 0) left -= weights[ranked[length++]!]!
  return ranked.slice(0, length)
}

function drawFrom(ids: readonly number[], weights: Float64Array, random: number): number {
  let left = random * sumIds(ids, weights)
  for (const id of ids) {
    left -= weights[id]!
    if (left < 0) return id
  }
  return ids.at(-1)!
}

function drawFromAll(weights: Float64Array, random: number): number {
  let left = random * sumWeights(weights)
  let last = 0
  for (let id = 0; id < weights.length; id++) {
    if (weights[id] === 0) continue
    left -= weights[id]!
    if (left < 0) return id
    last = id
  }
  return last
}

/** Returns the lowest index of the largest weight. */
export function findIndexOfLargest(weights: Float64Array): number {
  let largest = 0
  for (let id = 1; id < weights.length; id++) if (weights[id]! > weights[largest]!) largest = id
  return largest
}

function sumWeights(weights: Float64Array): number {
  let sum = 0
  for (const weight of weights) sum += weight
  return sum
}

function sumIds(ids: readonly number[], weights: Float64Array): number {
  let sum = 0
  for (const id of ids) sum += weights[id]!
  return sum
}
