/**
 * Token data: what an engine can report about a turn's tokens beyond their ids and one logprob each. Captured kinds are
 * selected by name; kinds that an engine does not report are absent. Token data is sent and stored packed, by kind.
 */
import { ProxyError } from '../../base/errors.ts'

/** The kinds that the sampling engine reports, by the names that all wire formats use. */
const SAMPLED_KINDS = [
  'sampling_mask',
  'sampling_logprobs',
  'top_logprobs',
  'prompt_logprobs',
  'routed_experts',
  'weight_versions',
] as const

/** The kinds that a teacher or a trainer adds after the turn: a number for each sampled token. */
export const TRAINER_DATA_KINDS = [
  'teacher_logprobs',
  'advantages',
  'ratios',
  'entropies',
  'loss_weights',
] as const

/** Every kind that can be stored. */
export const TOKEN_DATA_KINDS = [...SAMPLED_KINDS, ...TRAINER_DATA_KINDS] as const

export type TokenDataKind = (typeof TOKEN_DATA_KINDS)[number]

export type TrainerDataKind = (typeof TRAINER_DATA_KINDS)[number]

/**
 * The kinds that can be requested. Engines report `sampling_logprobs` together with the mask over which they are
 * normalised.
 */
const RECORDABLE_DETAILS = SAMPLED_KINDS.filter((kind) => kind !== 'sampling_logprobs')

/**
 * The token data to capture for a request. Numbers are the number of alternatives per token, in addition to the token
 * itself.
 */
export interface CaptureOptions {
  readonly samplingMask?: boolean
  readonly topLogprobs?: number
  readonly promptLogprobs?: number
  readonly routedExperts?: boolean
  readonly weightVersions?: boolean
}

/** The default number of alternatives, which is vLLM's default limit. */
const DEFAULT_ALTERNATIVES = 20

/**
 * The maximum number of alternatives. SGLang and vLLM accept any number; a request for the complete vocabulary is a
 * mistake.
 */
const MAX_ALTERNATIVES = 1_024

/**
 * Parses `sampling_mask`, `top_logprobs:64` and the like. `top_logprobs` alone means 20, `prompt_logprobs` alone means
 * the prompt's own tokens without alternatives.
 * @throws ProxyError `invalid_request` that quotes an unknown name
 */
export function parseCaptureOptions(names: readonly string[]): CaptureOptions {
  return Object.assign({}, ...names.map(parseCaptureName))
}

/** Returns whether {@link parseCaptureOptions} accepts the name. */
export function isCaptureName(name: string): boolean {
  try {
    parseCaptureName(name)
    return true
  } catch {
    return false
  }
}

/** Parses one name. @throws ProxyError `invalid_request` */
function parseCaptureName(name: string): CaptureOptions {
  const [, kind, count] = /^([a-z_]+)(?::(\d{1,4}))?$/.exec(name) ?? []
  const alternatives = count === undefined ? undefined : Number(count)
  if (alternatives !== undefined && alternatives > MAX_ALTERNATIVES) throw createUnknownNameError(name)
  if (kind === 'top_logprobs') return { topLogprobs: Math.max(1, alternatives ?? DEFAULT_ALTERNATIVES) }
  if (kind === 'prompt_logprobs') return { promptLogprobs: alternatives ?? 0 }
  if (alternatives !== undefined) throw createUnknownNameError(name)
  if (kind === 'sampling_mask') return { samplingMask: true }
  if (kind === 'routed_experts') return { routedExperts: true }
  if (kind === 'weight_versions') return { weightVersions: true }
  throw createUnknownNameError(name)
}

function createUnknownNameError(name: string): ProxyError {
  const words = `${RECORDABLE_DETAILS.join(', ')}; top_logprobs:64 and prompt_logprobs:8 set the number per token`
  return new ProxyError('invalid_request', `'${name}' cannot be recorded: ${words}`, {
    param: 'record',
  })
}

/** Returns the names from which {@link parseCaptureOptions} parses the same options. */
export function getCaptureNames(requested: CaptureOptions): string[] {
  return [
    ...(requested.samplingMask ? ['sampling_mask'] : []),
    ...(requested.topLogprobs === undefined ? [] : [`top_logprobs:${requested.topLogprobs}`]),
    ...(requested.promptLogprobs === undefined ? [] : [`prompt_logprobs:${requested.promptLogprobs}`]),
    ...(requested.routedExperts ? ['routed_experts'] : []),
    ...(requested.weightVersions ? ['weight_versions'] : []),
  ]
}

/** Returns the options, or undefined if they are empty, so that requests without capture have no overhead. */
export function omitEmpty(requested: CaptureOptions): CaptureOptions | undefined {
  return getCaptureNames(requested).length > 0 ? requested : undefined
}
