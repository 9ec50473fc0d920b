/**
 * Parses the sampling fields that the engine supports, with vLLM's names, meanings and defaults
 * (`vllm/sampling_params.py`). Other fields are ignored, as vLLM ignores unknown ones.
 */
import Type, { type Static } from 'typebox'
import type { ProxyError } from '../../base/errors.ts'
import { getRawNumber, readInteger } from '../../protocol/canonical/number-texts.ts'
import type { SamplingFields } from '../../protocol/canonical/request.ts'
import { createRejectionError } from './rejection.ts'
import { findSchemaError } from './schema-error.ts'

/** The maximum of `top_logprobs`: the default of vLLM's `--max-logprobs`. */
const MAX_TOP_LOGPROBS = 20

/**
 * The maximum number of stop strings, as in token mode. vLLM's default is 4, but clients of Anthropic's API send more.
 */
const MAX_STOPS = 64

/** The maximum number of stop tokens: the default of vLLM's `VLLM_MAX_STOP_TOKEN_IDS`. */
const MAX_STOP_TOKEN_IDS = 128

const count = (minimum: number) => Type.Optional(Type.Integer({ minimum }))
const number = (minimum: number, maximum?: number) =>
  Type.Optional(Type.Number({ minimum, ...(maximum === undefined ? {} : { maximum }) }))

const SamplingRequest = Type.Object({
  temperature: number(0),
  top_p: Type.Optional(Type.Number({ exclusiveMinimum: 0, maximum: 1 })),
  top_k: count(-1),
  min_p: number(0, 1),
  seed: Type.Optional(Type.Union([Type.Integer(), Type.BigInt()])),
  repetition_penalty: Type.Optional(Type.Number({ exclusiveMinimum: 0 })),
  presence_penalty: number(-2, 2),
  frequency_penalty: number(-2, 2),
  max_tokens: count(1),
  max_completion_tokens: count(1),
  min_tokens: count(0),
  stop: Type.Optional(Type.Array(Type.String({ minLength: 1 }), { maxItems: MAX_STOPS })),
  stop_token_ids: Type.Optional(Type.Array(Type.Integer({ minimum: 0 }), { maxItems: MAX_STOP_TOKEN_IDS })),
  ignore_eos: Type.Optional(Type.Boolean()),
  skip_special_tokens: Type.Optional(Type.Boolean()),
  include_stop_str_in_output: Type.Optional(Type.Boolean()),
  n: Type.Optional(Type.Integer({ minimum: 1, maximum: 1 })),
  return_tokens_as_token_ids: Type.Optional(Type.Boolean()),
})

/** The sampling parameters of a request. */
export interface SamplingParams {
  /** The temperature; 0: greedy sampling. */
  temperature: number
  topP: number
  /** The number of tokens to consider; 0: all. */
  topK: number
  minP: number
  seed: number | bigint
  repetitionPenalty: number
  presencePenalty: number
  frequencyPenalty: number
  maxTokens: number
  minTokens: number
  stop: readonly string[]
  stopTokenIds: readonly number[]
  ignoreEos: boolean
  /** Whether to omit special tokens from the text. */
  skipSpecialTokens: boolean
  /** Whether the text includes the string or token that ends the completion. */
  includeStop: boolean
}

/** The logprobs that the response contains for each token. */
export interface LogprobsOptions {
  /** The number of most probable tokens to list with the sampled one. */
  top: number
  /** Whether tokens are written as `token_id:42` instead of their text. */
  asTokenIds: boolean
}

/** The limits and defaults of a request. */
interface SamplingLimits {
  /** The maximum number of tokens of prompt and completion together. */
  contextLength: number
  promptLength: number
  /** The maximum length of a completion if the request sets none. */
  defaultMaxTokens: number
  /** The seed if the request sets none. */
  defaultSeed: number
  /**
   * Whether a maximum length that exceeds the context is reduced instead of rejected. Set for prompts of ids, whose
   * length the agent does not know.
   */
  cutsMaxTokens?: boolean
}

/**
 * Parses the sampling parameters.
 * @throws ProxyError `engine_rejected` for an invalid field, or if prompt and completion exceed the context length
 */
export function readSamplingParams(body: SamplingFields, limits: SamplingLimits): SamplingParams {
  const request = checkSampling(body)
  const maxTokens = request.max_completion_tokens ?? request.max_tokens
  checkContext(limits, limits.cutsMaxTokens ? 1 : (maxTokens ?? 1))
  return {
    temperature: request.temperature ?? 1,
    topP: request.top_p ?? 1,
    topK: Math.max(request.top_k ?? 0, 0),
    minP: request.min_p ?? 0,
    seed: request.seed ?? limits.defaultSeed,
    repetitionPenalty: request.repetition_penalty ?? 1,
    presencePenalty: request.presence_penalty ?? 0,
    frequencyPenalty: request.frequency_penalty ?? 0,
    maxTokens: Math.min(maxTokens ?? limits.defaultMaxTokens, limits.contextLength - limits.promptLength),
    minTokens: request.min_tokens ?? 0,
    stop: request.stop ?? [],
    stopTokenIds: request.stop_token_ids ?? [],
    ignoreEos: request.ignore_eos ?? false,
    skipSpecialTokens: request.skip_special_tokens ?? true,
    includeStop: request.include_stop_str_in_output ?? false,
  }
}

/**
 * Parses the logprobs options. In a chat request, `logprobs` is a boolean, and `top_logprobs` a number; in a completion
 * request, `logprobs` is a number.
 * @returns undefined if the request asks for no logprobs
 * @throws ProxyError `engine_rejected` for an invalid number
 */
export function readLogprobsOptions(body: SamplingFields): LogprobsOptions | undefined {
  const { logprobs, top_logprobs: topLogprobs } = body
  if (logprobs === undefined || logprobs === null || logprobs === false) return undefined
  const top = logprobs === true ? (topLogprobs ?? 0) : logprobs
  if (!Number.isInteger(top) || Number(top) < 0) {
    throw createRejectionError('logprobs must be a non-negative integer', 'logprobs')
  }
  if (Number(top) > MAX_TOP_LOGPROBS) {
    const problem = `Requested sample logprobs of ${top}`
    throw createRejectionError(
      `${problem}, which is greater than max allowed: ${MAX_TOP_LOGPROBS}`,
      'logprobs',
    )
  }
  return { top: Number(top), asTokenIds: body.return_tokens_as_token_ids === true }
}

function checkSampling(body: SamplingFields): Static<typeof SamplingRequest> {
  const set = Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null))
  if (typeof set.stop === 'string') set.stop = [set.stop]
  if (getRawNumber(set.seed) !== undefined) set.seed = readInteger(set.seed)
  const error = findSchemaError(SamplingRequest, set)
  if (error) throw createRejectionError(`${error.path} ${error.reason}`, error.path)
  return set as Static<typeof SamplingRequest>
}

/**
 * Rejects a prompt and completion that exceed the context length. The message is vLLM's (`vllm/renderers/params.py`),
 * because agents search for it to detect that they must shorten the conversation.
 */
function checkContext({ contextLength, promptLength }: SamplingLimits, maxTokens: number): void {
  if (promptLength + maxTokens <= contextLength) return
  throw createRejectionError(
    `This model's maximum context length is ${contextLength} tokens. However, you requested ${maxTokens} output ` +
      `tokens and your prompt contains ${promptLength} input tokens, for a total of ${promptLength + maxTokens} ` +
      'tokens. Please reduce the length of the input prompt or the number of requested output tokens. ' +
      `(parameter=input_tokens, value=${promptLength})`,
    'input_tokens',
  )
}

/** Returns the error for a prompt that exceeds the context length, with a lower bound of its number of tokens. */
export function createTooLongError({
  contextLength,
  atLeast,
}: {
  contextLength: number
  atLeast: number
}): ProxyError {
  return createRejectionError(
    `This model's maximum context length is ${contextLength} tokens. However, your prompt contains at least ${atLeast} ` +
      `input tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=${atLeast})`,
    'input_tokens',
  )
}
