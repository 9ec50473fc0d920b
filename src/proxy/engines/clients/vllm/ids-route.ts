/**
 * `/inference/v1/generate` of vLLM: ids in, ids out (`GenerateRequest` in
 * `vllm/entrypoints/scale_out/token_in_token_out/protocol.py`). It takes features of images, and it alone tells sampling masks.
 * Calls go there for one of these; `docs/engines.md` says what it lacks.
 */
import { ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../wire/failures.ts'
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

/**
 * Whether a call without images is better asked here: its mask is recorded, and all that it asks for can be said to this
 * route and comes back from it. It knows no constraints on the answer, reports no stop reason, and has no texts of tokens.
 */
export function wantsMaskByIds(request: TokenRequest): boolean {
  if (!request.record?.samplingMask || !isMaskBounded(request.body) || wantsLogprobs(request)) return false
  const asked = Object.entries(withoutRenderedFields(request.body)).filter(([, value]) => isSaid(value))
  return asked.every(([field, value]) => HARMLESS.has(field) || isTextFormat(field, value))
}

/**
 * The body for a call without images, but for the `token_ids`. Asked whole: some versions leave out a last step of a stream
 * that has no new ids, and the finish reason with it.
 */
export function vllmIdsBody(request: TokenRequest, maxTokens: number): Record<string, unknown> {
  const { record } = request
  const body = commonBody(request, maxTokens)
  const prompt = record?.promptLogprobs
  const sampling = { ...body.sampling_params, ...(prompt !== undefined && { prompt_logprobs: prompt }) }
  return { ...body, sampling_params: sampling, return_token_ids: true }
}

/**
 * The body for a call with images, but for the `token_ids`.
 * @throws ProxyError `unsupported` for a constraint on the answer, which this route knows under no name of an agent's
 */
export function vllmFeaturesBody(
  request: TokenRequest,
  maxTokens: number,
  features: object,
): Record<string, unknown> {
  const { body } = request
  for (const [field, value] of Object.entries(body)) {
    const isConstraint = field === 'structured_outputs' || field.startsWith('guided_')
    const isFormat = field === 'response_format' && !isTextFormat(field, value)
    if ((!isConstraint && !isFormat) || !isSaid(value)) continue
    const message = `vLLM does not take '${field}' beside token ids and images`
    throw new ProxyError('unsupported', message, { param: field })
  }
  return { ...commonBody(request, maxTokens), features }
}

function commonBody(request: TokenRequest, maxTokens: number) {
  const { body } = request
  const given = [...SAMPLING_FIELDS, ...STOP_FIELDS].filter((field) => isSaid(body[field]))
  return {
    model: body.model,
    sampling_params: {
      ...Object.fromEntries(given.map((field) => [field, body[field]])),
      max_tokens: maxTokens,
      // 0: the sampled token's logprob and no alternatives.
      logprobs: askedAlternatives(request),
    },
    stream: false,
    ...(body.priority !== undefined && { priority: body.priority }),
    ...(body.cache_salt !== undefined && { cache_salt: body.cache_salt }),
  }
}

/**
 * Whether the server has no such route. One that does not know the model answers 404 too; vLLM 0.32 started without
 * `--enable-scale-out` answers 403, as may a gateway or a key for other routes.
 */
export function mayLackRoute(thrown: unknown): boolean {
  const isRefusal = thrown instanceof ProxyError && thrown.code === 'engine_rejected'
  return isRefusal && [403, 404, 405].includes(thrown.status)
}

function isSaid(value: unknown): boolean {
  return value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0)
}

function isTextFormat(field: string, value: unknown): boolean {
  return field === 'response_format' && isRecord(value) && value.type === 'text'
}
