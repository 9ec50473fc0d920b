/** Reads the sampling parameters of a turn and their sources. */
import type { EngineSampling } from '../../../protocol/canonical/events.ts'
import {
  getRawNumber,
  parseKeepingNumbers,
  type RawNumber,
} from '../../../protocol/canonical/number-texts.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'

/** The fields that affect sampling or the kind of logprobs, by their names in the request. */
export const SAMPLING_FIELDS = [
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'frequency_penalty',
  'presence_penalty',
  'repetition_penalty',
  'seed',
] as const

/**
 * The source of a value. `engine`: the request does not set the value, which is known only if the engine reports its
 * default.
 */
type SamplingSource = 'session' | 'agent' | 'engine'

/** The sampling parameters of a turn, in the form of the trajectories API. */
export interface TurnSampling {
  /** The kind of logprobs, which the engine has reported or the operator has configured; null: unknown. */
  logprobs_mode: string | null
  /** The values; null: the default of an engine that does not report it. */
  values: Record<(typeof SAMPLING_FIELDS)[number], number | RawNumber | null>
  from: Record<(typeof SAMPLING_FIELDS)[number], SamplingSource>
}

/**
 * Returns the sampling parameters of a recorded turn, whose params include those of the session.
 * @param sessionParams the sampling parameters of the session, which do not change
 */
export function readSampling(
  { params, annotations }: Pick<TurnRecord, 'params' | 'annotations'>,
  sessionParams: Readonly<Record<string, unknown>>,
): TurnSampling {
  const requested = parseKeepingNumbers(params) as Record<string, unknown>
  const { sampling = {} } = JSON.parse(annotations) as { sampling?: EngineSampling }
  const sampled: TurnSampling = {
    logprobs_mode: sampling.logprobsMode ?? null,
    values: {} as TurnSampling['values'],
    from: {} as TurnSampling['from'],
  }
  for (const field of SAMPLING_FIELDS) {
    const value = requested[field]
    const isRequested = isNumber(value)
    sampled.values[field] = isRequested ? value : (sampling.defaults?.[field] ?? null)
    sampled.from[field] = !isRequested ? 'engine' : isNumber(sessionParams[field]) ? 'session' : 'agent'
  }
  return sampled
}

function isNumber(value: unknown): value is number | RawNumber {
  return typeof value === 'number' || getRawNumber(value) !== undefined
}
