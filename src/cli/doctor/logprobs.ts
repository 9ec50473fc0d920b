/**
 * Which distribution an engine's logprobs belong to: the same prompt at temperature 1 and 2. The gap between two good tokens
 * is halved where they are of what is sampled from, and stays where they are of what the model gave. No engine reports it.
 */
import { type Finding, failure, ok, warning } from './finding.ts'

/** What may have been the first token of an answer, by its text. */
export type FirstTokens = ReadonlyMap<string, number>

/** Two tokens that are closer tell nothing, as engines round. */
const MIN_GAP = 0.05
/** How far a ratio may be from 1 or 1/2. */
const NEAR = 0.1
const ABOUT = 'logprobs'

/**
 * @param warm at temperature 1 @param hot at temperature 2; empty: the engine does not tell alternatives
 * @param mode what `--logprobs-mode` says
 */
export function judgeLogprobs(warm: FirstTokens, hot: FirstTokens, mode: string | undefined): Finding {
  if ([...warm.values(), ...hot.values()].some((value) => value > 0))
    return failure(ABOUT, 'are logits: numbers above 0', 'start the engine with logprobs')
  // Engines list the sampled token beside the best ones, in any order.
  const [best, next] = [...warm].filter(([text]) => hot.has(text)).sort((one, other) => other[1] - one[1])
  if (best === undefined || next === undefined)
    return ok(ABOUT, 'of an unknown distribution: the engine tells too few alternatives')
  const gap = best[1] - next[1]
  if (gap < MIN_GAP) return ok(ABOUT, 'of an unknown distribution: two tokens are as good as each other')
  const ratio = (hot.get(best[0])! - hot.get(next[0])!) / gap
  const isRaw = Math.abs(ratio - 1) < NEAR
  if (!isRaw && Math.abs(ratio - 0.5) >= NEAR) {
    const seen = `of an unknown distribution: at temperature 2 two tokens are ${ratio.toFixed(2)} times as far apart`
    return warning(ABOUT, seen, 'ask its makers, and say what it is with --logprobs-mode')
  }
  const found = isRaw ? 'raw_logprobs' : 'processed_logprobs'
  const seen = isRaw
    ? 'of what the model gave, whatever the temperature'
    : 'of what is sampled from, temperature included'
  const isOther = ['raw_logprobs', 'processed_logprobs'].some((name) => name === mode && name !== found)
  if (isOther) return failure(ABOUT, `${seen}, not ${mode}`, `give --logprobs-mode ${found}`)
  const more = mode === undefined ? `; --logprobs-mode ${found} records it with each turn` : ` (${mode})`
  return ok(ABOUT, `${seen}${more}`)
}
