/** Reads the recorded sampling data of a turn that verification compares. */
import type { EngineSampling } from '../../protocol/canonical/events.ts'
import { type TokenDataBlob, unpackTokenData } from '../../protocol/token-data/token-data.ts'
import type { LogprobsKind, SamplingMask } from './compare.ts'

/** The masks of a turn's tokens, and the logprobs over them. */
export interface TurnMasks {
  /** For each sampled token, the ids that remained after top_p, top_k and min_p, if recorded. */
  readonly samplingMask?: SamplingMask | undefined
  /** Each sampled token's logprob over the remaining ids, if recorded; null if it is unknown for the token. */
  readonly samplingLogprobs?: readonly (number | null)[] | undefined
}

/** The annotations of a turn that verification reads. */
export interface SamplingAnnotation {
  readonly sampling?: EngineSampling | undefined
}

/** The kinds of token data that {@link getTurnMasks} reads. */
export const MASK_KINDS = ['sampling_mask', 'sampling_logprobs'] as const

/** Unpacks a turn's token data. @throws RangeError for bytes that are not valid token data */
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
 * Returns the distribution of a turn's recorded logprobs; undefined if it was neither measured nor configured
 * (`--logprobs-mode`).
 */
export function getRecordedLogprobs(annotations: SamplingAnnotation): LogprobsKind | undefined {
  const mode = annotations.sampling?.logprobsMode
  if (mode === 'raw_logprobs') return 'raw'
  if (mode === 'temperature_logprobs') return 'temperature'
  return mode === 'processed_logprobs' ? 'mask' : undefined
}
