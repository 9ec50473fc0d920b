/**
 * Details: what an engine can tell of a turn's tokens beyond their ids and one logprob each. Who wants them on record
 * names them; what an engine does not give is not there. A detail travels and is kept packed, under the name of its kind.
 */
import { ProxyError } from '../../base/errors.ts'

/** What the engine that sampled tells, by its name on each wire. */
const SAMPLED_KINDS = [
  'sampling_mask',
  'sampling_logprobs',
  'top_logprobs',
  'prompt_logprobs',
  'routed_experts',
  'weight_versions',
] as const

/** What is known only later: of a teacher that reads the tokens, and of a trainer. A number for each sampled token. */
export const TRAINER_DATA_KINDS = [
  'teacher_logprobs',
  'advantages',
  'ratios',
  'entropies',
  'loss_weights',
] as const

/** Every kind that can be on record. */
export const TOKEN_DATA_KINDS = [...SAMPLED_KINDS, ...TRAINER_DATA_KINDS] as const

export type TokenDataKind = (typeof TOKEN_DATA_KINDS)[number]

export type TrainerDataKind = (typeof TRAINER_DATA_KINDS)[number]

/** What can be asked for. `sampling_logprobs` come with the mask that they are normalised over. */
const RECORDABLE_DETAILS = SAMPLED_KINDS.filter((kind) => kind !== 'sampling_logprobs')

/**
 * The details that a call is recorded with. Numbers: how many alternatives there are to be per token, beside the token
 * itself.
 */
export interface CaptureOptions {
  readonly samplingMask?: boolean
  readonly topLogprobs?: number
  readonly promptLogprobs?: number
  readonly routedExperts?: boolean
  readonly weightVersions?: boolean
}

/** vLLM's own limit, unless it is started with another one. */
const DEFAULT_ALTERNATIVES = 20

/** SGLang and vLLM take any number; a whole vocabulary per token is a mistake. */
const MAX_ALTERNATIVES = 1_024

/**
 * Reads `sampling_mask`, `top_logprobs:64` and the like; `top_logprobs` alone is 20, `prompt_logprobs` alone is the
 * prompt's own tokens without alternatives.
 * @throws ProxyError `invalid_request` that names what is no such word
 */
export function parseCaptureOptions(names: readonly string[]): CaptureOptions {
  return Object.assign({}, ...names.map(parseCaptureName))
}

/** Whether {@link parseCaptureOptions} knows it. */
export function isCaptureName(name: string): boolean {
  try {
    parseCaptureName(name)
    return true
  } catch {
    return false
  }
}

/** @throws ProxyError `invalid_request` */
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
  const words = `${RECORDABLE_DETAILS.join(', ')}; top_logprobs:64 and prompt_logprobs:8 say how many per token`
  return new ProxyError('invalid_request', `'${name}' is nothing that can be recorded: ${words}`, {
    param: 'record',
  })
}

/** The names that {@link parseCaptureOptions} reads the same details from. */
export function getCaptureNames(requested: CaptureOptions): string[] {
  return [
    ...(requested.samplingMask ? ['sampling_mask'] : []),
    ...(requested.topLogprobs === undefined ? [] : [`top_logprobs:${requested.topLogprobs}`]),
    ...(requested.promptLogprobs === undefined ? [] : [`prompt_logprobs:${requested.promptLogprobs}`]),
    ...(requested.routedExperts ? ['routed_experts'] : []),
    ...(requested.weightVersions ? ['weight_versions'] : []),
  ]
}

/** @returns undefined for a request without anything in it, which costs a call nothing then */
export function undefinedIfEmpty(requested: CaptureOptions): CaptureOptions | undefined {
  return getCaptureNames(requested).length > 0 ? requested : undefined
}
