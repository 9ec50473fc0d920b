/**
 * What an agent with a key may ask of an engine. Whatever else a body holds is passed on, and engines obey fields that
 * reach beyond one call: another chat template, a place before all other calls, a file of adapters, an address that the
 * engine is to fetch. So for agents fields are a list, and media are in the body itself.
 *
 * What engines read: `vllm/entrypoints/openai/chat_completion/protocol.py`, `vllm/entrypoints/chat_utils.py`,
 * `sglang/srt/entrypoints/openai/protocol.py`.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'

export interface AgentPolicy {
  /** Fields that agents may set besides the known ones; `*`: all. Default: none. */
  agentFields?: readonly string[]
  /** Which addresses images, sounds and videos may have: `data:` alone, or any that the engine fetches. Default: `data`. */
  agentMedia?: 'data' | 'any'
}

/** OpenAI's own, of Chat Completions and of the older Completions; those of other dialects become these. */
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

/** Engines' own that shape the sampling of this call and nothing else. */
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

/** Of `chat_template_kwargs`, which may also hold a whole template. */
const TEMPLATE_SWITCHES = ['enable_thinking', 'thinking', 'reasoning_effort'] as const

const PLAIN_PARTS = ['text', 'refusal', 'thinking', 'input_audio', 'file']
/** Parts that hold an address under their own name, as text or as `url`. */
const MEDIA_PARTS = ['image_url', 'audio_url', 'video_url']

/** @returns a check of a body; it throws ProxyError `forbidden` for one that asks for more than an agent may */
export function agentPolicy({ agentFields = [], agentMedia = 'data' }: AgentPolicy) {
  const allowed = new Set<string>([...OPENAI_FIELDS, ...ENGINE_FIELDS, ...agentFields])
  const anyField = allowed.has('*')
  return (body: CanonicalRequest['body']): void => {
    if (!anyField) refuseFields(body, allowed)
    if (agentMedia === 'data' && Array.isArray(body.messages)) refuseMedia(body.messages)
  }
}

function refuseFields(body: Record<string, unknown>, allowed: ReadonlySet<string>): void {
  for (const field in body) {
    if (allowed.has(field) || body[field] === null || body[field] === undefined) continue
    throw forbidden(field, `An agent may not set '${field}'; the operator of llm-proxy can allow it`)
  }
  const { chat_template_kwargs: kwargs } = body
  for (const [name, value] of Object.entries(kwargs ?? {})) {
    const isSwitch = (TEMPLATE_SWITCHES as readonly string[]).includes(name) && typeof value !== 'object'
    const param = `chat_template_kwargs.${name}`
    if (isSwitch || allowed.has(param)) continue
    throw forbidden(param, `An agent may not set '${param}'; the operator of llm-proxy can allow it`)
  }
}

function refuseMedia(messages: readonly { content?: unknown }[]): void {
  for (const [index, { content }] of messages.entries()) {
    if (!Array.isArray(content)) continue
    for (const [at, part] of content.entries()) refusePart(part, `messages.${index}.content.${at}`)
  }
}

function refusePart(part: Record<string, unknown>, at: string): void {
  const { type, file } = part
  if (typeof type !== 'string' || ![...PLAIN_PARTS, ...MEDIA_PARTS].includes(type)) {
    throw forbidden(`${at}.type`, `An agent may not send content of type '${type}'`)
  }
  // Engines keep media by names that a caller gives them, for all callers.
  if (part.uuid !== undefined && part.uuid !== null) {
    throw forbidden(`${at}.uuid`, "An agent may not set 'uuid': it would name what others have sent")
  }
  // By any of the names, whatever the type says: which of the two an engine goes by is its own business.
  for (const name of MEDIA_PARTS) if (part[name] !== undefined) refuseAddress(part[name], `${at}.${name}`)
  if (type === 'file' && !isInline(file)) {
    throw forbidden(`${at}.file`, "An agent's files must be in the body, as 'file_data'")
  }
}

function refuseAddress(media: unknown, at: string): void {
  const url = typeof media === 'object' && media !== null ? (media as { url?: unknown }).url : media
  if (typeof url === 'string' && /^data:/i.test(url)) return
  throw forbidden(at, "An agent's images, sounds and videos must be in the body, as data: URLs")
}

function isInline(file: unknown): boolean {
  if (typeof file !== 'object' || file === null) return false
  const { file_data: data, ...others } = file as Record<string, unknown>
  return (
    typeof data === 'string' &&
    !/^(?!data:)[a-z][a-z0-9+.-]*:/i.test(data) &&
    !('file_id' in others || 'file_url' in others)
  )
}

function forbidden(param: string, message: string): ProxyError {
  return new ProxyError('forbidden', message, { param })
}
