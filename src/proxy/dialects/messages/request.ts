/** Conversion of Anthropic Messages requests to canonical form: https://platform.claude.com/docs/en/api/messages */

import { createUnsupportedError } from '../../../base/errors.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { createListChecker } from '../common/check.ts'
import type { DialectRequest, ResponseOptions } from '../common/dialect-request.ts'
import { toJsonText } from '../common/json-text.ts'
import { addThinkingSwitch, selectFields, toAnnotations } from '../common/other-fields.ts'
import { createNoToolLeftError } from '../common/request-errors.ts'
import { type Removal, removeVolatile, VOLATILE_RULES, type VolatileRule } from '../common/volatile.ts'
import { lowerConversation, rejectPrefill } from './lower-messages.ts'
import { listDroppedTools, lowerToolChoice, lowerTools } from './lower-tools.ts'
import { CountTokensRequest, Message, MessagesRequest, type ToolChoice } from './schema.ts'

const checkMessages = createListChecker(MessagesRequest, 'messages', Message)
const checkCountTokens = createListChecker(CountTokensRequest, 'messages', Message)

/**
 * Validates a Messages body and lowers it. Fields without a canonical equivalent are recorded with the turn.
 * @param volatileRules the rules that remove text from the system prompt
 * @param memo caches the parts that the session's earlier requests contained
 * @throws ProxyError `invalid_request` naming the field; `unsupported` for a field that cannot be supported
 */
export function lowerMessagesRequest(
  raw: unknown,
  volatileRules: readonly VolatileRule[] = VOLATILE_RULES,
  memo: PartMemo = NO_MEMO,
): DialectRequest {
  const request = checkMessages(raw, memo)
  rejectServerFeatures(request)
  rejectCacheWarming(request)
  rejectPrefill(request.messages)
  const { prompt, removed } = lowerPrompt(request, volatileRules, memo)
  const body = {
    ...selectFields('engine', request, FIELDS),
    ...prompt,
    ...toSamplingFields(request),
  } as ChatBody
  const dropped = listDroppedTools(request.tools ?? [])
  const annotations = toAnnotations(selectFields('record', request, FIELDS), removed, dropped)
  return {
    kind: 'chat',
    body,
    rejectOverlong: true,
    stream: request.stream === true,
    responseOptions: { logprobs: false, tokenIds: false, streamUsage: true, ...readThinkingOptions(request) },
    ...(annotations && { annotations }),
  }
}

/**
 * Lowers the body of a token-counting request to the prompt whose tokens are counted.
 * @throws as {@link lowerMessagesRequest}
 */
export function lowerCountTokensRequest(
  raw: unknown,
  volatileRules: readonly VolatileRule[] = VOLATILE_RULES,
  memo: PartMemo = NO_MEMO,
): ChatBody {
  const request = checkCountTokens(raw, memo)
  rejectServerFeatures(request)
  const { prompt } = lowerPrompt(request, volatileRules, memo)
  // Includes unknown fields that a template may read, such as `documents`.
  const body = { ...selectFields('engine', request, FIELDS), ...prompt }
  // Serialized to reject excessive nesting, because counting serializes or traverses the body.
  toJsonText(body)
  return body
}

/**
 * Fields of features that need Anthropic's servers: stored threads, connections to MCP servers, containers, compaction.
 */
const SERVER_FEATURES = ['thread', 'mcp_servers', 'container', 'compaction']

function rejectServerFeatures(request: Record<string, unknown>): void {
  for (const field of SERVER_FEATURES) {
    const value = request[field]
    if (value === undefined || value === null || (Array.isArray(value) && value.length === 0)) continue
    throw createUnsupportedError(`'${field}' is not supported: it works on Anthropic's servers only`, field)
  }
}

/** Rejects `max_tokens: 0`, with which a client fills Anthropic's prompt cache. */
function rejectCacheWarming({ max_tokens: limit }: MessagesRequest): void {
  if (limit > 0) return
  throw createUnsupportedError(
    "'max_tokens' 0 is not supported: it fills Anthropic's prompt cache without generating a response, and a turn " +
      'records a response',
    'max_tokens',
  )
}

function lowerPrompt(
  request: CountTokensRequest,
  rules: readonly VolatileRule[],
  memo: PartMemo,
): { prompt: ChatBody; removed: Removal[] } {
  const { system, tool_choice: toolChoice, model } = request
  const tools = request.tools?.length ? memo.computeOnce(lowerTools, request.tools) : []
  const blocks = typeof system === 'string' ? [system] : (system ?? []).map(({ text }) => text)
  const { texts, removed } = removeVolatile(blocks, rules)
  const prompt = {
    model,
    messages: lowerConversation(texts, request, memo),
    ...(tools.length > 0 && { tools }),
    ...(toolChoice && buildChoiceFields(toolChoice, tools.length > 0 || !request.tools?.length)),
    ...buildReasoningFields(request),
    ...buildResponseFormat(request),
  }
  return { prompt, removed }
}

/**
 * Returns the fields of the tool choice. If no tool is left, the choice is omitted or rejected, because engines reject
 * it.
 */
function buildChoiceFields(choice: ToolChoice, hasTools: boolean): Record<string, unknown> {
  if (hasTools) return lowerToolChoice(choice)
  if (choice.type === 'auto' || choice.type === 'none') return {}
  throw createNoToolLeftError('tool_choice')
}

function buildReasoningFields(request: CountTokensRequest): Partial<ChatBody> {
  const effort = request.output_config?.effort
  const { type } = request.thinking ?? {}
  const isSwitch = type === 'enabled' || type === 'disabled'
  const kwargs = addThinkingSwitch({ ...request }, isSwitch ? type === 'enabled' : undefined)
  return {
    ...(kwargs && { chat_template_kwargs: kwargs }),
    ...(effort && { reasoning_effort: effort }),
  }
}

function buildResponseFormat({ output_config, output_format }: CountTokensRequest): Partial<ChatBody> {
  const format = output_config?.format ?? output_format
  if (!format) return {}
  const schema = { name: 'output', schema: format.schema, strict: true }
  return { response_format: { type: 'json_schema', json_schema: schema } }
}

function toSamplingFields(request: MessagesRequest): Partial<ChatBody> {
  const { max_tokens, stop_sequences: stop, temperature, top_p, top_k } = request
  return {
    max_tokens,
    ...(typeof temperature === 'number' && { temperature }),
    ...(typeof top_p === 'number' && { top_p }),
    ...(typeof top_k === 'number' && { top_k }),
    ...(stop && stop.length > 0 && { stop }),
  }
}

function readThinkingOptions({
  thinking,
}: MessagesRequest): Pick<ResponseOptions, 'reasoning' | 'sealedReasoning'> {
  const wanted = thinking?.type !== 'disabled'
  const sealed = wanted && thinking?.display === 'omitted'
  return { reasoning: wanted && !sealed, ...(sealed && { sealedReasoning: true }) }
}

/** Fields that {@link lowerPrompt} and {@link toSamplingFields} translate without loss. */
const TRANSLATED_FIELDS = new Set([
  'model',
  'messages',
  'system',
  'tools',
  'tool_choice',
  'max_tokens',
  'stream',
  'stop_sequences',
  'temperature',
  'top_p',
  'top_k',
])

/** Fields of Anthropic's API that engines do not support, or interpret differently. */
const ANTHROPIC_FIELDS = new Set([
  ...SERVER_FEATURES,
  'metadata',
  'thinking',
  'output_config',
  'output_format',
  'context_management',
  'cache_control',
  'service_tier',
  'speed',
  'inference_geo',
  'diagnostics',
  'betas',
  'fallbacks',
  'fallback_credit_token',
  'billing_policy',
  'safeguards',
])

const FIELDS = { translated: TRANSLATED_FIELDS, foreign: ANTHROPIC_FIELDS }
