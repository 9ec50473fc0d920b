/**
 * Restricts what an agent with a key may request of an engine. Engines obey fields whose effect exceeds one request:
 * another chat template, a priority over other requests, a path to an adapter, a URL to fetch. Such fields are
 * rejected. Fields that no known engine reads, which clients of commercial services send, are dropped, because a future
 * engine may read them.
 *
 * Sources of the fields: `vllm/entrypoints/openai/chat_completion/protocol.py`, `vllm/entrypoints/chat_utils.py`,
 * `sglang/srt/entrypoints/openai/protocol.py`.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'

/** The settings that extend what agents may request. */
export interface AgentPolicy {
  /** Further fields that agents may set; `*`: all. Default: none. */
  agentFields?: readonly string[]
  /**
   * The URLs that images, sounds and videos may have: `data`: only `data:` URLs; `any`: also URLs that the engine
   * fetches. Default: `data`.
   */
  agentMedia?: 'data' | 'any'
}

/** OpenAI's fields of Chat Completions and Completions, to which the fields of other dialects are converted. */
export const OPENAI_FIELDS = [
  'audio',
  'best_of',
  'echo',
  'frequency_penalty',
  'function_call',
  'functions',
  'logit_bias',
  'logprobs',
  'max_completion_tokens',
  'max_tokens',
  'messages',
  'metadata',
  'modalities',
  'model',
  'moderation',
  'n',
  'parallel_tool_calls',
  'prediction',
  'presence_penalty',
  'prompt',
  'prompt_cache_key',
  'prompt_cache_options',
  'prompt_cache_retention',
  'reasoning_effort',
  'response_format',
  'safety_identifier',
  'seed',
  'service_tier',
  'stop',
  'store',
  'stream',
  'stream_options',
  'suffix',
  'temperature',
  'tool_choice',
  'tools',
  'top_logprobs',
  'top_p',
  'user',
  'verbosity',
  'web_search_options',
] as const

/** Fields of engines that affect only the request in which they are sent. */
const ENGINE_FIELDS = [
  'chat_template_kwargs',
  'include_reasoning',
  'min_p',
  'min_tokens',
  'repetition_penalty',
  'return_token_ids',
  'stop_token_ids',
  'top_k',
] as const

/**
 * Fields that vLLM 0.32 or SGLang 0.5.23 obeys and that agents may not set. Fields with ids of requests and sessions
 * are not included: they are dropped, because clients send them.
 */
export const RESTRICTED_FIELDS: readonly string[] = [
  'add_generation_prompt',
  'add_special_tokens',
  'allowed_token_ids',
  'bad_words',
  'bootstrap_host',
  'bootstrap_port',
  'bootstrap_room',
  'cache_salt',
  'chat_template',
  'continue_final_message',
  'custom_labels',
  'custom_logit_processor',
  'custom_params',
  'data_parallel_rank',
  'disagg_prefill_dp_rank',
  'documents',
  'ebnf',
  'ec_transfer_params',
  'extra_key',
  'ignore_eos',
  'images_config',
  'include_stop_str_in_output',
  'input_ids',
  'json_schema',
  'kv_transfer_params',
  'length_penalty',
  'logprob_token_ids',
  'lora_path',
  'max_dynamic_patch',
  'media_io_kwargs',
  'min_dynamic_patch',
  'mm_payload',
  'mm_processor_kwargs',
  'no_stop_trim',
  'priority',
  'prompt_embeds',
  'prompt_logprobs',
  'regex',
  'repetition_detection',
  'return_cached_tokens_details',
  'return_flat_raw_output_top_logprobs',
  'return_flat_raw_top_logprobs_b64',
  'return_hidden_states',
  'return_input_ids_in_sglext',
  'return_meta_info',
  'return_mm_kwargs',
  'return_output_ids_in_sglext',
  'return_prompt_text',
  'return_prompt_token_ids',
  'return_routed_experts',
  'return_sampling_mask',
  'return_spec_tokens_details',
  'return_token_offsets',
  'return_tokens_as_token_ids',
  'routed_dp_rank',
  'routed_experts_prompt_start',
  'routed_experts_start_len',
  'sampling_logprobs_mode',
  'separate_reasoning',
  'session_params',
  'skip_special_tokens',
  'spaces_between_special_tokens',
  'stop_regex',
  'stream_interval',
  'stream_reasoning',
  'structured_outputs',
  'task',
  'thinking',
  'thinking_token_budget',
  'truncate_prompt_tokens',
  'truncation_side',
  'use_audio_in_video',
  'use_beam_search',
  'video_config',
  'vllm_xargs',
  'watermark',
  'watermarking',
]

/** The allowed fields of `chat_template_kwargs`, in which a client could otherwise send a complete template. */
const TEMPLATE_SWITCHES = ['enable_thinking', 'thinking', 'reasoning_effort'] as const

/** The types of message content without a URL that an engine fetches. */
const PLAIN_PARTS = ['text', 'refusal', 'thinking', 'input_audio', 'file']
/** The types of message content with a URL in the field of the same name, as text or as `url`. */
const MEDIA_PARTS = ['image_url', 'audio_url', 'video_url']

/** A request body after the restriction. */
export interface PolicyResult<Body> {
  /** The body without the dropped fields; the same object if there are none. */
  body: Body
  /** The dropped fields with their values. */
  dropped: Record<string, unknown>
}

/**
 * Creates the function that restricts a body to what an agent may request.
 * @returns a function that throws ProxyError `forbidden` for a body that requests more
 */
export function createAgentPolicy({ agentFields = [], agentMedia = 'data' }: AgentPolicy) {
  const allowed = new Set<string>([...OPENAI_FIELDS, ...ENGINE_FIELDS, ...agentFields])
  const anyField = allowed.has('*')
  return <Body extends CanonicalRequest['body']>(body: Body): PolicyResult<Body> => {
    if (agentMedia === 'data' && Array.isArray(body.messages)) rejectMedia(body.messages)
    return anyField ? { body, dropped: {} } : restrictFields(body, allowed)
  }
}

function restrictFields<Body extends Record<string, unknown>>(
  body: Body,
  allowed: ReadonlySet<string>,
): PolicyResult<Body> {
  const unknown = Object.keys(body).filter((field) => !allowed.has(field))
  for (const field of unknown) {
    if (!RESTRICTED.has(field) || !isSet(body[field])) continue
    throw createForbiddenError(
      field,
      `An agent may not set '${field}'; the operator of llm-proxy can allow it`,
    )
  }
  checkTemplateSwitches(body, allowed)
  if (unknown.length === 0) return { body, dropped: {} }
  const kept = { ...body }
  for (const field of unknown) delete kept[field]
  const dropped = unknown.filter((field) => isSet(body[field]))
  return { body: kept, dropped: Object.fromEntries(dropped.map((field) => [field, body[field]])) }
}

const RESTRICTED: ReadonlySet<string> = new Set(RESTRICTED_FIELDS)

function checkTemplateSwitches(body: Record<string, unknown>, allowed: ReadonlySet<string>): void {
  const { chat_template_kwargs: kwargs } = body
  for (const [name, value] of Object.entries(kwargs ?? {})) {
    const isPlain = value === null || typeof value !== 'object'
    const isSwitch = (TEMPLATE_SWITCHES as readonly string[]).includes(name) && isPlain
    const param = `chat_template_kwargs.${name}`
    if (isSwitch || allowed.has(param)) continue
    throw createForbiddenError(
      param,
      `An agent may not set '${param}'; the operator of llm-proxy can allow it`,
    )
  }
}

function rejectMedia(messages: readonly { content?: unknown }[]): void {
  for (const [index, { content }] of messages.entries()) {
    if (!Array.isArray(content)) continue
    for (const [i, part] of content.entries()) rejectPart(part, `messages.${index}.content.${i}`)
  }
}

function rejectPart(part: Record<string, unknown>, at: string): void {
  const { type, file } = part
  if (typeof type !== 'string' || ![...PLAIN_PARTS, ...MEDIA_PARTS].includes(type)) {
    throw createForbiddenError(`${at}.type`, `An agent may not send content of type '${type}'`)
  }
  // Engines cache media by the `uuid` that a client declares, and share the cache between all clients.
  if (isSet(part.uuid)) {
    throw createForbiddenError(
      `${at}.uuid`,
      "An agent may not set 'uuid': it would identify the media of other clients",
    )
  }
  // All media fields are checked regardless of `type`: some engines obey `type`, others the name of the field.
  for (const name of MEDIA_PARTS) if (isSet(part[name])) rejectUrl(part[name], `${at}.${name}`)
  if (type === 'file' && !isInline(file)) {
    throw createForbiddenError(`${at}.file`, "An agent's files must be in the body, as 'file_data'")
  }
}

function rejectUrl(media: unknown, at: string): void {
  const url = typeof media === 'object' && media !== null ? (media as { url?: unknown }).url : media
  if (typeof url === 'string' && /^data:/i.test(url)) return
  throw createForbiddenError(at, "An agent's images, sounds and videos must be in the body, as data: URLs")
}

function isInline(file: unknown): boolean {
  if (typeof file !== 'object' || file === null) return false
  const { file_data: data, ...rest } = file as Record<string, unknown>
  return (
    typeof data === 'string' &&
    !/^(?!data:)[a-z][a-z0-9+.-]*:/i.test(data) &&
    !(isSet(rest.file_id) || isSet(rest.file_url))
  )
}

/** Returns whether a field has a value: clients write null for a field that they do not set. */
function isSet(value: unknown): boolean {
  return value !== undefined && value !== null
}

function createForbiddenError(param: string, message: string): ProxyError {
  return new ProxyError('forbidden', message, { param })
}
