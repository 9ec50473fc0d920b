/** With which sampling parameters a turn was sampled, and whose they are. */
import type { EngineSampling } from '../../../protocol/canonical/events.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'

/** Fields that change what is sampled, or what its logprobs are of, under the names of the request. */
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

/** `engine`: the call did not say; the value is there only if the engine tells what its default is. */
type SamplingSource = 'session' | 'agent' | 'engine'

export interface TurnSampling {
  /** What logprobs are of, in the word of the engine or of who runs the proxy; null: unknown. */
  logprobs_mode: string | null
  /** null: the engine's default, which it does not tell. */
  values: Record<(typeof SAMPLING_FIELDS)[number], number | null>
  from: Record<(typeof SAMPLING_FIELDS)[number], SamplingSource>
}

/**
 * Made of what is on record anyway: the params of a turn have the session's parameters in them.
 * @param sessionParams the session's own, which no call can change
 */
export function samplingOf(
  { params, annotations }: Pick<TurnRecord, 'params' | 'annotations'>,
  sessionParams: Readonly<Record<string, unknown>>,
): TurnSampling {
  const asked = JSON.parse(params) as Record<string, unknown>
  const { sampling = {} } = JSON.parse(annotations) as { sampling?: EngineSampling }
  const sampled: TurnSampling = {
    logprobs_mode: sampling.logprobsMode ?? null,
    values: {} as TurnSampling['values'],
    from: {} as TurnSampling['from'],
  }
  for (const field of SAMPLING_FIELDS) {
    const value = asked[field]
    const isSaid = typeof value === 'number'
    sampled.values[field] = isSaid ? value : (sampling.defaults?.[field] ?? null)
    sampled.from[field] = !isSaid ? 'engine' : typeof sessionParams[field] === 'number' ? 'session' : 'agent'
  }
  return sampled
}
