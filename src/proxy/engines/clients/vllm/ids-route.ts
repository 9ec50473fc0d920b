/**
 * `/inference/v1/generate` of vLLM: ids in, ids out (`GenerateRequest` in
 * `vllm/entrypoints/scale_out/token_in_token_out/protocol.py`). It takes images, and it alone tells sampling masks.
 * Calls go there for one of these, or for the weight version of each token; `docs/engine-wire.md` says what it lacks.
 */
import { ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../../../../base/json.ts'
import { getImageUrls } from '../../../../protocol/canonical/images.ts'
import {
  askedAlternatives,
  isMaskBounded,
  type TokenRequest,
  wantsLogprobs,
  withoutRenderedFields,
} from '../wire/request.ts'

export const IDS_ROUTE = '/inference/v1/generate'

/** What decides where a sample ends. */
const STOP_FIELDS = ['stop', 'stop_token_ids']

/** Fields of `SamplingParams` (`vllm/sampling_params.py`) under the names that an agent gives them. */
const SAMPLING_FIELDS = [
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'seed',
  'min_tokens',
  'ignore_eos',
  'presence_penalty',
  'frequency_penalty',
  'repetition_penalty',
  'logit_bias',
  'bad_words',
  'skip_special_tokens',
  'spaces_between_special_tokens',
  'include_stop_str_in_output',
]

/** Fields that say nothing of what is sampled, or that have another name on this route. */
const OTHER_FIELDS = [
  'model',
  'max_tokens',
  'max_completion_tokens',
  'logprobs',
  'top_logprobs',
  'stream',
  'stream_options',
  'return_token_ids',
  'priority',
  'cache_salt',
  'user',
  'metadata',
  'store',
  'service_tier',
  'safety_identifier',
  'prompt_cache_key',
]

const HARMLESS = new Set([...SAMPLING_FIELDS, ...OTHER_FIELDS])

/** The first version that takes images beside ids as they are (`content_parts`). */
export const IMAGES_SINCE = '0.32'
/** The first version whose streams of this route tell all, and that says which stop ended a sample. */
export const STREAMS_SINCE = '0.32'
/** The first version that tells the weight version of each token on `/v1/completions` too. */
export const SPANS_SINCE = '0.33'

/** What a server is known to give here. */
export interface IdsRoute {
  readonly masks: boolean
  /** Every event of a stream has what a whole answer has; a stop is told. */
  readonly streams: boolean
  /** The weight version of each token, which it tells nowhere else. */
  readonly spans: boolean
}

/**
 * What makes a call without images better asked here: it is recorded, and all that the call asks for can be said to this
 * route and comes back from it. It knows no constraints on the answer, and has no texts of tokens.
 */
export function detailsByIds(request: TokenRequest, route: IdsRoute): 'masks' | 'versions' | undefined {
  const { record, body } = request
  const wantsMask = route.masks && record?.samplingMask === true && isMaskBounded(body)
  const wantsSpans = route.spans && record?.weightVersions === true
  if ((!wantsMask && !wantsSpans) || wantsLogprobs(request)) return undefined
  const asked = Object.entries(withoutRenderedFields(body)).filter(([, value]) => isSet(value))
  const canBeSaid = asked.every(
    ([field, value]) =>
      HARMLESS.has(field) || isTextFormat(field, value) || (route.streams && STOP_FIELDS.includes(field)),
  )
  if (!canBeSaid) return undefined
  return wantsMask ? 'masks' : 'versions'
}

/** Sampling parameters that the engine has defaults of its own for, of the model's `generation_config.json` or of its flags. */
const DEFAULTED = [
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'repetition_penalty',
  'presence_penalty',
  'frequency_penalty',
  'stop_token_ids',
]

/**
 * What `/v1/completions` and chat sample with where a call does not say it, as their `render` routes tell; this route alone
 * goes by those of `SamplingParams`.
 * @param rendered an answer of `/v1/completions/render`
 */
export function defaultsIn(rendered: unknown): Record<string, unknown> {
  const first: unknown = Array.isArray(rendered) ? rendered[0] : rendered
  const params = isRecord(first) && isRecord(first.sampling_params) ? first.sampling_params : {}
  return Object.fromEntries(DEFAULTED.flatMap((name) => (isSet(params[name]) ? [[name, params[name]]] : [])))
}

/** What goes with a call beside what its agent says. */
export interface IdsRequestOptions {
  readonly maxTokens: number
  readonly defaults: Record<string, unknown>
  /** False: it is asked whole. Older versions leave out a last step that has no new ids, and the finish reason with it. */
  readonly streams: boolean
}

/** The body for a call without images, but for the `token_ids`. */
export function vllmIdsBody(
  request: TokenRequest,
  { maxTokens, defaults, streams }: IdsRequestOptions,
): Record<string, unknown> {
  const { body, record } = request
  const prompt = record?.promptLogprobs
  // A stream has no place for what is told of the prompt.
  const stream = streams && request.stream && prompt === undefined && !record?.routedExperts
  const given = [...SAMPLING_FIELDS, ...STOP_FIELDS].filter((field) => isSet(body[field]))
  return {
    model: body.model,
    sampling_params: {
      ...defaults,
      ...Object.fromEntries(given.map((field) => [field, body[field]])),
      max_tokens: maxTokens,
      // 0: the sampled token's logprob and no alternatives.
      logprobs: askedAlternatives(request),
      ...(prompt !== undefined && { prompt_logprobs: prompt }),
    },
    stream,
    ...(stream && { stream_options: { include_usage: true } }),
    ...(body.priority !== undefined && { priority: body.priority }),
    ...(body.cache_salt !== undefined && { cache_salt: body.cache_salt }),
    return_token_ids: true,
  }
}

/**
 * The body for a call with images, but for the `token_ids`: they have one placeholder for each, of which the server makes as
 * many as it counts, and it tells what prompt it made.
 * @throws ProxyError `unsupported` for a constraint on the answer, which this route knows under no name of an agent's
 */
export function vllmImagesBody(request: TokenRequest, sent: IdsRequestOptions): Record<string, unknown> {
  const { body } = request
  for (const [field, value] of Object.entries(body)) {
    const isConstraint = field === 'structured_outputs' || field.startsWith('guided_')
    const isFormat = field === 'response_format' && !isTextFormat(field, value)
    if ((!isConstraint && !isFormat) || !isSet(value)) continue
    const message = `vLLM does not take '${field}' beside token ids and images`
    throw new ProxyError('unsupported', message, { param: field })
  }
  const content_parts = getImageUrls(body.messages).map((url) => ({ type: 'image_url', url }))
  return { ...vllmIdsBody(request, sent), content_parts }
}

/**
 * Whether the server has no such route. One that does not know the model answers 404 too; vLLM 0.32 started without
 * `--enable-scale-out` answers 403, as may a gateway or a key for other routes.
 */
export function isRouteMissing(thrown: unknown): boolean {
  const isRefusal = thrown instanceof ProxyError && thrown.code === 'engine_rejected'
  return isRefusal && [403, 404, 405].includes(thrown.status)
}

function isSet(value: unknown): boolean {
  return value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0)
}

function isTextFormat(field: string, value: unknown): boolean {
  return field === 'response_format' && isRecord(value) && value.type === 'text'
}
