/** What is on record of a turn's sampling, as the {@link Verifier} compares it. */
import type { EngineSampling } from '../../protocol/canonical/events.ts'
import { type TokenDataBlob, unpackTokenData } from '../../protocol/token-data/token-data.ts'
import type { LogprobsKind, SamplingMask } from './compare.ts'

export interface TurnMasks {
  /** What was left for each sampled token, if it is on record. */
  readonly samplingMask?: SamplingMask | undefined
  /** Each sampled token's logprob among what was left, if it is on record. */
  readonly samplingLogprobs?: readonly (number | null)[] | undefined
}

/** The kinds that {@link getTurnMasks} reads. */
export const MASK_KINDS = ['sampling_mask', 'sampling_logprobs'] as const

/** @throws RangeError for bytes that are no such details */
export function getTurnMasks(packed: Iterable<TokenDataBlob>): TurnMasks {
  const { sampling_mask: table, sampling_logprobs: logprobs } = unpackTokenData(packed)
  let end = 0
  const rows = table?.counts.map((count) => {
    end += count
    return count === 0 ? null : table.ids.slice(end - count, end)
  })
  return {
    samplingMask: rows,
    samplingLogprobs: logprobs?.map((logprob) => (Number.isNaN(logprob) ? null : logprob)),
  }
}

/**
 * What a turn's logprobs are of, where it was measured, or who runs the proxy says so (`--logprobs-mode`).
 * @param annotations of the turn
 */
export function getRecordedLogprobs(annotations: { sampling?: EngineSampling }): LogprobsKind | undefined {
  const mode = annotations.sampling?.logprobsMode
  if (mode === 'raw_logprobs') return 'raw'
  if (mode === 'temperature_logprobs') return 'temperature'
  return mode === 'processed_logprobs' ? 'mask' : undefined
}
