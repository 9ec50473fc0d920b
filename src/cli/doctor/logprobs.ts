/** Determines the distribution to which an engine's logprobs belong. */
import {
  type FirstTokens,
  type LogprobsMode,
  readLogprobsMode,
} from '../../proxy/engines/dispatch/logprobs-probe.ts'
import { createFailure, createOkFinding, createWarning, type Finding } from './finding.ts'

const ABOUT = 'logprobs'

const SEEN: Record<LogprobsMode, string> = {
  raw_logprobs: 'of the model, before temperature and filters',
  temperature_logprobs: 'of the model, after temperature and before filters',
  processed_logprobs: 'of the distribution that is sampled from, after temperature and filters',
}

const UNKNOWN = {
  too_few: 'of an unknown distribution: the engine reports too few alternatives',
  too_close: 'of an unknown distribution: two tokens are about equally likely',
  filters: 'after temperature; the response does not show whether also after filters',
} as const

/**
 * Judges the logprobs of an engine.
 * @param warm the candidates for the first token at temperature 1
 * @param hot those at temperature 2, filtered to the two best ones; empty: the engine reports no alternatives
 * @param mode value of `--logprobs-mode`
 */
export function judgeLogprobs(warm: FirstTokens, hot: FirstTokens, mode: string | undefined): Finding {
  const reading = readLogprobsMode(warm, hot)
  if ('mode' in reading) return judgeMode(reading.mode, mode)
  if (reading.unknown === 'logits')
    return createFailure(ABOUT, 'are logits: numbers above 0', 'start the engine with logprobs')
  if (reading.unknown !== 'other_gap') return createOkFinding(ABOUT, UNKNOWN[reading.unknown])
  const apart = reading.gapRatio.toFixed(2)
  const seen = `of an unknown distribution: at temperature 2 two tokens are ${apart} times as far apart as at temperature 1`
  return createWarning(
    ABOUT,
    seen,
    'ask the developers of the engine, and declare the distribution with --logprobs-mode',
  )
}

function judgeMode(found: LogprobsMode, mode: string | undefined): Finding {
  const seen = SEEN[found]
  const isOther = mode !== undefined && mode in SEEN && mode !== found
  if (isOther)
    return createFailure(ABOUT, `${seen}, not ${mode}`, `give --logprobs-mode ${found}, or omit it`)
  return createOkFinding(ABOUT, `${seen} (${mode ?? found})`)
}
