/**
 * Conversion of OpenAI Responses requests to canonical form:
 * https://platform.openai.com/docs/api-reference/responses/create
 */

import { createInvalidError, createUnsupportedError } from '../../../base/errors.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import type { DialectRequest } from '../common/dialect-request.ts'
import { toJsonText } from '../common/json-text.ts'
import { buildSystemMessage } from '../common/messages.ts'
import { omitFields } from '../common/other-fields.ts'
import { createNoToolLeftError } from '../common/request-errors.ts'
import { type InputTools, lowerItems } from './items.ts'
import {
  checkJsonSchemaFormat,
  type InputItem,
  type ResponsesRequest,
  type TextFormat,
  type ToolParam,
} from './schema.ts'
import { lowerToolChoice, lowerTools, type ToolConversion, type WireTool, type WireTools } from './tools.ts'

/** The data of a request that is recorded with its turn as JSON, because the response or a later request needs it. */
export interface ResponsesAnnotation {
  /** Whether the first message is the instructions, which apply to this request only. */
  instructions: boolean
  previous_response_id: string | null
  include: string[]
  reasoning: { effort?: string | null; summary?: string | null } | null
  text: object | null
  truncation: 'auto' | 'disabled'
  max_tool_calls: number | null
  /** The tools that are not plain functions, in the form in which the agent declared them. */
  wire_tools: Record<string, WireTool>
  /** Types of hosted tools that the model was not shown. */
  dropped_tools: string[]
}

interface CanonicalResponsesRequest {
  lowered: DialectRequest & { kind: 'chat' }
  annotation: ResponsesAnnotation
  wireTools: WireTools
}

/**
 * Lowers a validated request to the body of Chat Completions.
 * @param history the messages that the request continues: the conversation of `previous_response_id`, with its
 *   completion
 * @param items the input, with item references resolved
 * @param memo caches the parts that the session's earlier requests contained
 * @throws ProxyError `invalid_request` naming the field; `unsupported` for a request that no engine can serve
 */
export function lowerResponsesRequest(
  request: ResponsesRequest,
  history: readonly ChatMessage[],
  items: readonly InputItem[],
  memo: PartMemo = NO_MEMO,
): CanonicalResponsesRequest {
  rejectHostedFeatures(request)
  const { messages, tools: itemTools } = lowerItems(items, memo)
  const instructions = request.instructions
    ? [memo.computeOnce(buildSystemMessage, request.instructions)]
    : []
  const all = [...instructions, ...history, ...messages]
  if (all.length === 0) throw createInvalidError("'input' must contain at least one message", 'input')
  const tools = collectTools(request, itemTools, memo)
  const annotation = createAnnotation(request, tools)
  // Serialized to reject excessive nesting now, because the response repeats these fields, and the turn records them.
  toJsonText([annotation, request.tools, request.tool_choice])
  const body = {
    // Fields that Chat Completions has as well, and unknown fields.
    ...omitFields(request, LOWERED_FIELDS),
    messages: all,
    ...buildToolFields(request, tools),
    ...buildSamplingFields(request),
  } as ChatBody
  const responseOptions = {
    logprobs: body.logprobs === true,
    tokenIds: request.return_token_ids === true,
    reasoning: request.include_reasoning !== false,
    streamUsage: true,
  }
  const annotations = { responses: annotation }
  return {
    lowered: {
      kind: 'chat',
      body,
      rejectOverlong: true,
      stream: request.stream === true,
      responseOptions,
      annotations,
    },
    annotation,
    wireTools: tools.wireTools,
  }
}

/** Rejects features that only OpenAI's service has, because they concern data that it stores. */
function rejectHostedFeatures({ background, conversation, prompt }: ResponsesRequest): void {
  const param = background ? 'background' : conversation ? 'conversation' : prompt ? 'prompt' : undefined
  if (param !== undefined) throw createUnsupportedError(`'${param}' is not supported`, param)
}

function collectTools(
  { tools }: ResponsesRequest,
  among: readonly InputTools[],
  memo: PartMemo,
): ToolConversion {
  const own = memo.computeOnce(lowerTools, tools ?? NO_TOOLS, 'tools')
  if (among.length === 0) return own
  const shown = [own, ...among.filter((some) => !some.isFound).map((some) => lowerTools(some.tools, some.at))]
  const lowered = [
    ...shown,
    ...among.filter((some) => some.isFound).map((some) => lowerTools(some.tools, some.at)),
  ]
  return {
    tools: shown.flatMap((some) => some.tools),
    wireTools: new Map(lowered.flatMap((some) => [...some.wireTools])),
    dropped: lowered.flatMap((some) => some.dropped),
  }
}

const NO_TOOLS: ToolParam[] = []

function createAnnotation(
  request: ResponsesRequest,
  { wireTools, dropped }: ToolConversion,
): ResponsesAnnotation {
  return {
    instructions: Boolean(request.instructions),
    previous_response_id: request.previous_response_id ?? null,
    include: request.include ?? [],
    reasoning: request.reasoning ?? null,
    text: request.text ?? null,
    truncation: request.truncation ?? 'disabled',
    max_tool_calls: request.max_tool_calls ?? null,
    wire_tools: Object.fromEntries(wireTools),
    dropped_tools: dropped,
  }
}

/** Fields that only the Responses API has, or that have another form or name in Chat Completions. */
const LOWERED_FIELDS = new Set([
  'input',
  'instructions',
  'previous_response_id',
  'include',
  'tools',
  'tool_choice',
  'reasoning',
  'text',
  'truncation',
  'max_output_tokens',
  'max_tool_calls',
  'top_logprobs',
  'stream',
  'stream_options',
  'background',
  'conversation',
  'prompt',
  // This API returns one completion: further ones would be sampled and not read.
  'n',
  'best_of',
])

function buildToolFields({ tool_choice: requested }: ResponsesRequest, lowered: ToolConversion): object {
  const { choice, tools } = requested
    ? lowerToolChoice(requested, lowered.tools)
    : { choice: undefined, ...lowered }
  // Engines reject a choice without tools.
  const isIdle = tools.length === 0 && (choice === 'auto' || choice === 'none')
  if (tools.length === 0 && choice !== undefined && !isIdle) throw createNoToolLeftError('tool_choice')
  return {
    ...(tools.length > 0 && { tools }),
    ...(choice !== undefined && !isIdle && { tool_choice: choice }),
  }
}

function buildSamplingFields(request: ResponsesRequest): object {
  const { reasoning, text, max_output_tokens, top_logprobs, include } = request
  const wantsLogprobs = (top_logprobs ?? 0) > 0 || include?.includes('message.output_text.logprobs')
  const format = text?.format && toResponseFormat(text.format)
  return {
    ...(max_output_tokens !== undefined && { max_completion_tokens: max_output_tokens }),
    ...(reasoning?.effort && { reasoning_effort: reasoning.effort }),
    ...(text?.verbosity && { verbosity: text.verbosity }),
    ...(format && { response_format: format }),
    ...(wantsLogprobs && { logprobs: true, top_logprobs: top_logprobs ?? 0 }),
  }
}

function toResponseFormat(format: TextFormat): object | undefined {
  if (format.type === 'text') return undefined
  if (format.type === 'json_object') return { type: 'json_object' }
  const { type, ...json_schema } = format
  return { type, json_schema: checkJsonSchemaFormat(json_schema, 'text.format') }
}
