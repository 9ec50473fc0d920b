/** Complete responses of Anthropic Messages: https://platform.claude.com/docs/en/api/messages */
import type { Completion } from '../../../protocol/canonical/completion.ts'
import { isCutOff } from '../../../protocol/canonical/completion.ts'
import type { GenerationEnd, GenerationStart } from '../../../protocol/canonical/events.ts'
import type { ResponseIdentity, ResponseOptions } from '../common/dialect-request.ts'
import { SIGNATURE, seal } from '../common/sealed-reasoning.ts'
import { parseToolInput } from '../common/tool-input.ts'

/** Returns the body of a complete response. `completion.end` must be set. */
export function buildMessage(
  identity: ResponseIdentity,
  responseOptions: ResponseOptions,
  completion: Completion,
): object {
  const { start, end } = completion
  return {
    ...buildMessageHead(identity, start),
    content: buildContentBlocks(identity, responseOptions, completion),
    ...(end && buildStopFields(end, completion.toolCalls.length > 0)),
    usage: buildUsage(start, end, completion.tokenIds.length),
  }
}

/**
 * Returns a message without content. Fields without a value are omitted, except `stop_reason` and `stop_sequence`,
 * which the API always sends: clients that validate responses (the AI SDK) reject null in other fields.
 */
export function buildMessageHead(
  { turnId, model }: ResponseIdentity,
  start: GenerationStart | undefined,
): object {
  return {
    // Claude Code accepts only letters and digits in an id.
    id: `msg_${turnId.replaceAll('-', '')}`,
    type: 'message',
    role: 'assistant',
    model: start?.model ?? model,
    content: [],
    stop_reason: null,
    stop_sequence: null,
  }
}

function buildContentBlocks(
  identity: ResponseIdentity,
  responseOptions: ResponseOptions,
  completion: Completion,
): object[] {
  const { reasoning, content, refusal, toolCalls } = completion
  const text = `${content ?? ''}${refusal ?? ''}`
  const blocks: object[] = []
  if (reasoning && responseOptions.reasoning) blocks.push(buildThinkingBlock(reasoning, SIGNATURE))
  else if (reasoning && responseOptions.sealedReasoning) blocks.push(buildThinkingBlock('', seal(reasoning)))
  // The API has no texts of white space alone; between reasoning and tool calls such a text carries no information.
  if (hasText(text)) blocks.push(buildTextBlock(text))
  toolCalls.forEach((call, index) => {
    const id = call.id || createToolUseId(identity, index)
    blocks.push(buildToolUseBlock(id, call.function.name, parseToolInput(call.function.arguments)))
  })
  return blocks
}

export function hasText(text: string): boolean {
  return /\S/.test(text)
}

export function buildTextBlock(text: string): object {
  return { type: 'text', text }
}

export function buildThinkingBlock(thinking: string, signature: string): object {
  return { type: 'thinking', thinking, signature }
}

export function buildToolUseBlock(id: string, name: string, input: object): object {
  return { type: 'tool_use', id, name, input, caller: { type: 'direct' } }
}

/** Returns the id for a tool call without one: workers of protocol version 1 may omit it. */
export function createToolUseId({ turnId }: ResponseIdentity, index: number): string {
  return `toolu_${turnId.replaceAll('-', '')}_${index}`
}

/** Returns the fields that state why the model stopped, in Anthropic's terms. */
export function buildStopFields({ finishReason, stopReason }: GenerationEnd, calledTools: boolean): object {
  const stopped = typeof stopReason === 'string' && finishReason === 'stop'
  return {
    stop_reason: stopped ? 'stop_sequence' : toStopReason(finishReason, calledTools),
    stop_sequence: stopped ? stopReason : null,
  }
}

function toStopReason(finishReason: string, calledTools: boolean): string {
  if (isCutOff(finishReason)) return 'max_tokens'
  if (finishReason === 'content_filter') return 'refusal'
  // Engines report `stop` for a tool call that the request forced.
  return finishReason === 'tool_calls' || calledTools ? 'tool_use' : 'end_turn'
}

/**
 * The cache counts of vLLM's `PromptTokenUsageInfo` (`vllm/entrypoints/serve/engine/protocol.py`), which it reports
 * with `--enable-prompt-tokens-details`.
 */
interface CacheTokens {
  cached_tokens?: number | null
  created_cache_tokens?: number | null
}

/**
 * Returns token counts from the engine's usage or, without it, from the ids that it reported. Anthropic counts input
 * tokens that were read from the cache, or written to it, separately.
 */
export function buildUsage(
  start: GenerationStart | undefined,
  end: GenerationEnd | undefined,
  outputTokens: number,
): object {
  const counted = end?.usage
  const input = counted?.prompt_tokens ?? start?.promptTokenIds?.length ?? 0
  const details: CacheTokens | null | undefined = counted?.prompt_tokens_details
  const read = details?.cached_tokens ?? 0
  const created = details?.created_cache_tokens ?? 0
  const thinking = counted?.completion_tokens_details?.reasoning_tokens
  return {
    input_tokens: Math.max(0, input - read - created),
    cache_creation_input_tokens: created,
    cache_read_input_tokens: read,
    output_tokens: counted?.completion_tokens ?? outputTokens,
    ...(thinking !== undefined && { output_tokens_details: { thinking_tokens: thinking } }),
  }
}
