/** Finds the probable cause of differing logprobs. */
import { comparePairs, isWithin, type TokenPair, type Tolerance } from './compare.ts'

/** The compared logprobs of a turn whose difference exceeds the tolerance. */
interface HintInput {
  readonly pairs: readonly TokenPair[]
  readonly params: Readonly<Record<string, unknown>>
  readonly tolerance: Tolerance
}

/** Returns the probable cause of a difference, for the operator; undefined if it matches no known cause. */
export function findHint({ pairs, params, tolerance }: HintInput): string | undefined {
  for (const by of [1, -1]) {
    if (isWithin(comparePairs(shiftPairs(pairs, by)), tolerance)) {
      return `each logprob is that of the token ${by === 1 ? 'before' : 'after'} it`
    }
  }
  const isApart = ({ recorded, recomputed }: TokenPair) => Math.abs(recomputed - recorded) > tolerance.mean
  const apart = pairs.filter(isApart)
  const isHigher = apart.every(({ recorded, recomputed }) => recorded > recomputed)
  if (isHigher && isFiltered(params)) {
    return 'every recorded logprob that differs is higher: the recorded ones were computed after top_p, top_k or min_p'
  }
  const first = pairs.findIndex(isApart)
  if (first > 0 && apart.length <= Math.max(4, pairs.length / 10)) {
    return 'a few tokens differ, and the others do not: one of them, or one shortly before, is not what was sampled'
  }
  if (first === 0 && apart.length <= 4) return 'only the beginning differs: the prompt was different'
  return undefined
}

/** Pairs each recorded logprob with the recomputed one of the token `by` positions before it. */
function shiftPairs(pairs: readonly TokenPair[], by: number): TokenPair[] {
  return pairs.flatMap(({ recorded }, index) => {
    const other = pairs[index - by]
    return other === undefined ? [] : [{ recorded, recomputed: other.recomputed }]
  })
}

/** Returns whether the sampling parameters restrict the candidate tokens (top_p, top_k or min_p). */
export function isFiltered(params: Readonly<Record<string, unknown>>): boolean {
  const { top_p: topP, top_k: topK, min_p: minP } = params
  return (
    (typeof topP === 'number' && topP < 1) ||
    (typeof topK === 'number' && topK > 0) ||
    (typeof minP === 'number' && minP > 0)
  )
}
