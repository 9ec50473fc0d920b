/**
 * vLLM's `/inference/v1/generate`: ids in, ids out (`GenerateRequest` in
 * `vllm/entrypoints/scale_out/token_in_token_out/protocol.py`). It accepts images, and it alone reports sampling masks.
 * Requests use it for one of these, or for the weight version of each token; `docs/engine-wire.md` lists its
 * limitations.
 */
import { ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../../../../base/json.ts'
import { getImageUrls } from '../../../../protocol/canonical/images.ts'
import {
  getRequestedAlternatives,
  isMaskBounded,
  type TokenRequest,
  wantsLogprobs,
  withoutRenderedFields,
} from '../wire/request.ts'

export const IDS_ROUTE = '/inference/v1/generate'

/** Fields that determine where a sample ends. */
const STOP_FIELDS = ['stop', 'stop_token_ids']

/** Fields of `SamplingParams` (`vllm/sampling_params.py`) under the agent's names. */
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

/**
 * Further fields of `SamplingParams` in {@link IMAGES_SINCE}. An older server might not know them, and would ignore
 * them, so they are no reason to use this route; without images, `/v1/completions` receives them.
 */
const NEWER_SAMPLING_FIELDS = [
  'allowed_token_ids',
  'thinking_token_budget',
  'repetition_detection',
  'watermarking',
  'stream_interval',
]

/** Fields that this route has beside `sampling_params`, under the agent's names. */
const REQUEST_FIELDS = ['priority', 'cache_salt', 'kv_transfer_params', 'ec_transfer_params']

/** Fields of `/v1/completions` that change the response and that this route has under no name. */
const MISSING_FIELDS = ['structured_outputs', 'use_beam_search', 'logprob_token_ids']

/** Fields that do not affect sampling, or that have another name on this route. */
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

/** The first version that accepts images with unmodified ids (`content_parts`). */
export const IMAGES_SINCE = '0.32'
/**
 * The first version whose streams on this route are complete, and that reports which stop string or token ended a
 * sample.
 */
export const STREAMS_SINCE = '0.32'
/** The first version that reports the weight version of each token on `/v1/completions` too. */
export const SPANS_SINCE = '0.33'

/** The features that a server is known to have on this route. */
export interface IdsRouteFeatures {
  readonly masks: boolean
  /**
   * Whether every event of a stream has the fields of a complete response, and the stop string or token is reported.
   */
  readonly streams: boolean
  /** Whether the weight version of each token is reported here and nowhere else. */
  readonly spans: boolean
}

/**
 * Returns the reason to send a request without images to this route: the kind of recorded data that it needs and that
 * the route reports. Undefined if it needs none, or uses a field that the route does not support. The route supports no
 * constraints on the output, and reports no texts of tokens.
 */
export function findIdsRouteReason(
  request: TokenRequest,
  route: IdsRouteFeatures,
): 'masks' | 'versions' | undefined {
  const { record, body } = request
  const wantsMask = route.masks && record?.samplingMask === true && isMaskBounded(body)
  const wantsSpans = route.spans && record?.weightVersions === true
  if ((!wantsMask && !wantsSpans) || wantsLogprobs(request)) return undefined
  const fields = Object.entries(withoutRenderedFields(body)).filter(([, value]) => isSet(value))
  const isSupported = fields.every(
    ([field, value]) =>
      HARMLESS.has(field) || isTextFormat(field, value) || (route.streams && STOP_FIELDS.includes(field)),
  )
  if (!isSupported) return undefined
  return wantsMask ? 'masks' : 'versions'
}

/** The parameters of a request that its agent does not set. */
export interface IdsRequestOptions {
  readonly maxTokens: number
  readonly defaults: Record<string, unknown>
  /** Whether the server can stream. Older versions omit a last step without new ids, and thereby the finish reason. */
  readonly streams: boolean
}

/** Returns the body of a request without images, except `token_ids`. */
export function buildVllmIdsBody(
  request: TokenRequest,
  { maxTokens, defaults, streams }: IdsRequestOptions,
): Record<string, unknown> {
  const { body, record } = request
  const prompt = record?.promptLogprobs
  // Streams contain neither prompt logprobs nor routed experts.
  const stream = streams && request.stream && prompt === undefined && !record?.routedExperts
  return {
    model: body.model,
    sampling_params: {
      ...defaults,
      ...selectSet(body, [...SAMPLING_FIELDS, ...STOP_FIELDS, ...NEWER_SAMPLING_FIELDS]),
      ...(isSet(body.vllm_xargs) && { extra_args: body.vllm_xargs }),
      max_tokens: maxTokens,
      // 0 requests the sampled token's logprob without alternatives.
      logprobs: getRequestedAlternatives(request),
      ...(prompt !== undefined && { prompt_logprobs: prompt }),
    },
    stream,
    ...(stream && { stream_options: { include_usage: true } }),
    ...selectSet(body, REQUEST_FIELDS),
    return_token_ids: true,
  }
}

/**
 * Returns the body of a request with images, except `token_ids`: they have one placeholder per image, which the server
 * expands, and it reports the resulting prompt.
 * @throws ProxyError `unsupported` for a field that `/v1/completions` obeys and that this route does not accept, such as
 *   a constraint on the output
 */
export function buildVllmImagesBody(request: TokenRequest, sent: IdsRequestOptions): Record<string, unknown> {
  const { body } = request
  for (const [field, value] of Object.entries(body)) {
    const isMissing = MISSING_FIELDS.includes(field) || field.startsWith('guided_')
    const isFormat = field === 'response_format' && !isTextFormat(field, value)
    if ((!isMissing && !isFormat) || !isSet(value) || value === false) continue
    const message = `vLLM does not support '${field}' with token ids and images`
    throw new ProxyError('unsupported', message, { param: field })
  }
  const content_parts = getImageUrls(body.messages).map((url) => ({ type: 'image_url', url }))
  return { ...buildVllmIdsBody(request, sent), content_parts }
}

/**
 * Returns whether the server may lack this route. It also responds with 404 to an unknown model; vLLM 0.32 without
 * `--enable-scale-out` responds with 403, as may a gateway or a key for other routes.
 */
export function isRouteMissing(thrown: unknown): boolean {
  const isRefusal = thrown instanceof ProxyError && thrown.code === 'engine_rejected'
  return isRefusal && [403, 404, 405].includes(thrown.status)
}

/** Returns whether a parameter has a value: vLLM treats null and an empty list as missing. */
export function isSet(value: unknown): boolean {
  return value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0)
}

function selectSet(
  body: Readonly<Record<string, unknown>>,
  fields: readonly string[],
): Record<string, unknown> {
  return Object.fromEntries(fields.filter((field) => isSet(body[field])).map((field) => [field, body[field]]))
}

function isTextFormat(field: string, value: unknown): boolean {
  return field === 'response_format' && isRecord(value) && value.type === 'text'
}
