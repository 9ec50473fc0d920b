/**
 * The body of SGLang's `POST /generate`, except `input_ids`: `GenerateReqInput` in
 * `python/sglang/srt/managers/io_struct.py`, and `docs/basic_usage/sampling_params.md` for `sampling_params`. The route
 * ignores unknown fields, but rejects unknown sampling parameters, so only known ones are sent.
 */
import { ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../../../../base/json.ts'
import { collapseImages, getImageUrls, type PromptImages } from '../../../../protocol/canonical/images.ts'
import type { ChatBody } from '../../../../protocol/canonical/request.ts'
import {
  getMaxTokens,
  getRequestedAlternatives,
  isMaskBounded,
  type TokenRequest,
  wantsLogprobs,
  withoutRenderedFields,
} from '../wire/request.ts'

/** SGLang's names of sampling parameters, by the agent's names. */
const SAMPLING_PARAMS: Readonly<Record<string, string>> = {
  temperature: 'temperature',
  top_p: 'top_p',
  top_k: 'top_k',
  min_p: 'min_p',
  frequency_penalty: 'frequency_penalty',
  presence_penalty: 'presence_penalty',
  repetition_penalty: 'repetition_penalty',
  logit_bias: 'logit_bias',
  seed: 'sampling_seed',
  min_tokens: 'min_new_tokens',
  stop: 'stop',
  stop_token_ids: 'stop_token_ids',
  stop_regex: 'stop_regex',
  ignore_eos: 'ignore_eos',
  // The next three change only the text, which is not read. They do not change the ids, which include those of a stop
  // string.
  no_stop_trim: 'no_stop_trim',
  skip_special_tokens: 'skip_special_tokens',
  spaces_between_special_tokens: 'spaces_between_special_tokens',
  regex: 'regex',
  ebnf: 'ebnf',
  custom_params: 'custom_params',
}

/**
 * Fields that are removed from the body of an agent. This route would interpret them as another prompt, as the
 * continuation of one, or as the id of another request; with `background`, a field of OpenAI's Responses, it would
 * continue the request after a disconnect.
 */
const REMOVED_FIELDS: Readonly<Record<string, undefined>> = {
  text: undefined,
  input_embeds: undefined,
  session_params: undefined,
  rid: undefined,
  background: undefined,
  input_ids: undefined,
  // The only images sent are those of the messages: the prompt has no placeholders for others.
  image_data: undefined,
  video_data: undefined,
  audio_data: undefined,
}

/**
 * Returns the body: a shallow copy of the agent's. Fields that are `undefined` are omitted from the JSON.
 * @throws ProxyError `unsupported` for a constraint on the output that the route does not support
 */
export function buildGenerateBody(request: TokenRequest): Record<string, unknown> {
  const { body, stream } = request
  return {
    ...buildForwardedFields(body),
    sampling_params: buildSamplingParams(body),
    // SGLang's chat route derives this field from the template. Without it, the constraint applies to the reasoning
    // too.
    ...(request.mayReason && isConstrained(body) && { require_reasoning: true }),
    return_logprob: true,
    // Requests logprobs of the completion only.
    logprob_start_len: -1,
    top_logprobs_num: getRequestedAlternatives(request),
    ...buildDetailFields(request),
    return_text_in_logprobs: wantsLogprobs(request),
    stream,
  }
}

/**
 * Returns the complete body of a request with images. SGLang expects one placeholder per image and expands it to the
 * number that its processor computes (`_expand_input_ids` in
 * `python/sglang/srt/multimodal/processors/base_processor.py`, 0.5.23). The resulting prompt is requested.
 */
export function buildImageBody(request: TokenRequest, images: PromptImages): Record<string, unknown> {
  return {
    ...buildGenerateBody(request),
    input_ids: Array.from(collapseImages(request.promptTokenIds.toArray(), images)),
    image_data: getImageUrls(request.body.messages),
    return_prompt_token_ids: true,
  }
}

/** Returns the fields for token data. The number of alternatives is the same for prompt and completion. */
function buildDetailFields({
  record,
  expertsStart = 0,
  body,
}: TokenRequest): Record<string, unknown> | undefined {
  if (record === undefined) return undefined
  const { promptLogprobs } = record
  return {
    ...(promptLogprobs !== undefined && { logprob_start_len: 0 }),
    ...(promptLogprobs && { top_logprobs_num: Math.max(promptLogprobs, record.topLogprobs ?? 0) }),
    ...(record.routedExperts && { return_routed_experts: true, routed_experts_start_len: expertsStart }),
    ...(record.samplingMask && isMaskBounded(body) && { return_sampling_mask: true }),
  }
}

function buildSamplingParams(body: ChatBody): Record<string, unknown> {
  const params: Record<string, unknown> = {
    // null requests the rest of the context; without the field, the route stops after 128 tokens.
    max_new_tokens: getMaxTokens(body) ?? null,
    ...buildConstraint(body),
  }
  for (const field in SAMPLING_PARAMS) {
    const value = body[field]
    if (value !== undefined && value !== null) params[SAMPLING_PARAMS[field]!] = value
  }
  return params
}

/** Returns the other fields of the body that do not concern the prompt, such as `priority` or `lora_path`. */
function buildForwardedFields(body: ChatBody): Record<string, unknown> {
  const fields = { ...withoutRenderedFields(body), ...REMOVED_FIELDS }
  for (const field in SAMPLING_PARAMS) fields[field] = undefined
  for (const field of ['max_tokens', 'max_completion_tokens', 'logprobs', 'top_logprobs'])
    fields[field] = undefined
  for (const field of ['response_format', 'stream_options']) fields[field] = undefined
  return fields
}

function isConstrained(body: ChatBody): boolean {
  return Boolean(body.regex || body.ebnf) || Object.keys(buildConstraint(body)).length > 0
}

/**
 * Returns the constraint on the output in the form that SGLang's chat route uses internally: JSON schemas and tags as
 * text.
 */
function buildConstraint(body: ChatBody): Record<string, unknown> {
  rejectVllmConstraints(body)
  const format = body.response_format
  if (format === undefined || format === null) return {}
  if (isRecord(format)) {
    if (format.type === 'text') return {}
    if (format.type === 'json_object') return { json_schema: '{"type":"object"}' }
    if (format.type === 'structural_tag') return { structural_tag: JSON.stringify(format) }
    const schema = isRecord(format.json_schema) ? format.json_schema.schema : undefined
    if (format.type === 'json_schema' && schema !== undefined) return { json_schema: JSON.stringify(schema) }
  }
  throw createUnsupportedFieldError(
    'response_format',
    'it must be text, json_object, json_schema with a schema, or structural_tag',
  )
}

/** Rejects vLLM's constraints: if ignored, they would be violated silently. */
function rejectVllmConstraints(body: ChatBody): void {
  for (const field in body) {
    if (field !== 'structured_outputs' && !field.startsWith('guided_')) continue
    if (body[field] === null || body[field] === undefined) continue
    throw createUnsupportedFieldError(field, 'use response_format, regex or ebnf instead')
  }
}

function createUnsupportedFieldError(field: string, hint: string): ProxyError {
  return new ProxyError('unsupported', `SGLang does not support this '${field}' in token mode: ${hint}`, {
    param: field,
  })
}
