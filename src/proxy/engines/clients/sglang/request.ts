/**
 * The body of SGLang's `POST /generate`, but for the `input_ids`: `GenerateReqInput` in `python/sglang/srt/managers/io_struct.py`, and
 * `docs/basic_usage/sampling_params.md` for what `sampling_params` holds. The route ignores fields that it does not know;
 * a sampling parameter that it does not know fails the call, so only known ones are sent.
 */
import { ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../../../../base/json.ts'
import { collapseImages, getImageUrls, type PromptImages } from '../../../../protocol/canonical/images.ts'
import type { ChatBody } from '../../../../protocol/canonical/request.ts'
import {
  askedAlternatives,
  isMaskBounded,
  maxTokensOf,
  type TokenRequest,
  wantsLogprobs,
  withoutRenderedFields,
} from '../wire/request.ts'

/** Sampling parameters of SGLang, by the name that an agent gives them. */
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
  // These three change the text, which nobody reads here, and never the ids: those of a stop string are among them.
  no_stop_trim: 'no_stop_trim',
  skip_special_tokens: 'skip_special_tokens',
  spaces_between_special_tokens: 'spaces_between_special_tokens',
  regex: 'regex',
  ebnf: 'ebnf',
  custom_params: 'custom_params',
}

/**
 * Fields that the route would take for another prompt, for the continuation of one, for an id that is in use, or, of
 * OpenAI's Responses, which asks to go on when nobody is connected any more.
 */
const NOT_THE_AGENTS: Readonly<Record<string, undefined>> = {
  text: undefined,
  input_embeds: undefined,
  session_params: undefined,
  rid: undefined,
  background: undefined,
  input_ids: undefined,
  // Images come with the messages, and nothing else is where their placeholders are.
  image_data: undefined,
  video_data: undefined,
  audio_data: undefined,
}

/**
 * One shallow copy of the agent's body. Fields that are `undefined` here are left out of the JSON.
 * @throws ProxyError `unsupported` for a constraint on the output that the route does not know
 */
export function generateBody(request: TokenRequest): Record<string, unknown> {
  const { body, stream } = request
  return {
    ...forwardedFields(body),
    sampling_params: samplingParams(body),
    // Its chat route says so by the template, and else the constraint begins with the first token.
    ...(request.mayReason && isConstrained(body) && { require_reasoning: true }),
    return_logprob: true,
    // Of the completion only.
    logprob_start_len: -1,
    top_logprobs_num: askedAlternatives(request),
    ...detailFields(request),
    return_text_in_logprobs: wantsLogprobs(request),
    stream,
  }
}

/**
 * The whole body of a call with images: SGLang takes one placeholder for each and writes as many as its own processor
 * counts (`_expand_input_ids` in `python/sglang/srt/multimodal/processors/base_processor.py`, 0.5.23). What it made of
 * the prompt it is asked to tell.
 */
export function imageBody(request: TokenRequest, images: PromptImages): Record<string, unknown> {
  return {
    ...generateBody(request),
    input_ids: Array.from(collapseImages(request.promptTokenIds.whole(), images)),
    image_data: getImageUrls(request.body.messages),
    return_prompt_token_ids: true,
  }
}

/** What is recorded beyond ids and logprobs. Alternatives of prompt and completion have one number. */
function detailFields({ record, expertsStart = 0, body }: TokenRequest): Record<string, unknown> | undefined {
  if (record === undefined) return undefined
  const { promptLogprobs } = record
  return {
    ...(promptLogprobs !== undefined && { logprob_start_len: 0 }),
    ...(promptLogprobs && { top_logprobs_num: Math.max(promptLogprobs, record.topLogprobs ?? 0) }),
    ...(record.routedExperts && { return_routed_experts: true, routed_experts_start_len: expertsStart }),
    ...(record.samplingMask && isMaskBounded(body) && { return_sampling_mask: true }),
  }
}

function samplingParams(body: ChatBody): Record<string, unknown> {
  const params: Record<string, unknown> = {
    // null is the rest of the context; without it, the route stops after 128 tokens.
    max_new_tokens: maxTokensOf(body) ?? null,
    ...constraint(body),
  }
  for (const field in SAMPLING_PARAMS) {
    const value = body[field]
    if (value !== undefined && value !== null) params[SAMPLING_PARAMS[field]!] = value
  }
  return params
}

/** What is neither a sampling parameter nor about the prompt, such as `priority` or `lora_path`. */
function forwardedFields(body: ChatBody): Record<string, unknown> {
  const fields = { ...withoutRenderedFields(body), ...NOT_THE_AGENTS }
  for (const field in SAMPLING_PARAMS) fields[field] = undefined
  for (const field of ['max_tokens', 'max_completion_tokens', 'logprobs', 'top_logprobs'])
    fields[field] = undefined
  for (const field of ['response_format', 'stream_options']) fields[field] = undefined
  return fields
}

function isConstrained(body: ChatBody): boolean {
  return Boolean(body.regex || body.ebnf) || Object.keys(constraint(body)).length > 0
}

/** How the output is to look, as SGLang's own chat route passes it on: JSON schemas and tags as text. */
function constraint(body: ChatBody): Record<string, unknown> {
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
  throw unsupported(
    'response_format',
    'it must be text, json_object, json_schema with a schema, or structural_tag',
  )
}

/** Ignored, they would let an answer through that does not keep to them. */
function rejectVllmConstraints(body: ChatBody): void {
  for (const field in body) {
    if (field !== 'structured_outputs' && !field.startsWith('guided_')) continue
    if (body[field] === null || body[field] === undefined) continue
    throw unsupported(field, 'ask for response_format, regex or ebnf instead')
  }
}

function unsupported(field: string, hint: string): ProxyError {
  return new ProxyError('unsupported', `SGLang does not take this '${field}' in token mode: ${hint}`, {
    param: field,
  })
}
