/** The response object of the Responses API: https://platform.openai.com/docs/api-reference/responses/object */
import type { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import { isCutOff } from '../../../protocol/canonical/completion.ts'
import type { GenerationEnd } from '../../../protocol/canonical/events.ts'
import type { Tool, Usage } from '../../../protocol/canonical/messages.ts'
import type { SamplingFields } from '../../../protocol/canonical/request.ts'
import type { ResponseIdentity, ResponseOptions } from '../common/dialect-request.ts'
import { buildOpenAiError } from '../common/openai-error.ts'
import { type OutputOptions, toOutputItems } from './output.ts'
import type { OutputItem } from './output-item.ts'
import type { ResponsesAnnotation } from './request.ts'
import type { ToolParam } from './schema.ts'
import type { WireTools } from './tools.ts'

/** The parts of a response that repeat its request, and the options that determine its form. */
export interface ResponseFrame {
  identity: ResponseIdentity
  responseOptions: Pick<ResponseOptions, 'logprobs' | 'reasoning' | 'tokenIds'>
  annotation: ResponsesAnnotation
  wireTools: WireTools
  /** The canonical body without its messages. */
  params: SamplingFields
  instructions: string | null
  /** The tools as the agent sent them, or as functions in a recorded turn. */
  tools: readonly (ToolParam | Tool)[]
  toolChoice: unknown
}

/** The state of the response so far. */
export interface ResponseState {
  status: 'in_progress' | 'completed' | 'incomplete' | 'failed'
  model?: string | undefined
  output: readonly OutputItem[]
  incompleteReason?: string | undefined
  usage?: Usage | undefined
  error?: ProxyError | undefined
  /** The end of the response, in seconds since the epoch. */
  endedAtS?: number | undefined
  tokenFields?: object | undefined
}

export const toResponseId = (turnId: string) => `resp_${turnId}`

/** Returns the turn id in a response id; undefined for an id of another form. */
export function parseTurnId(responseId: string): string | undefined {
  return responseId.startsWith('resp_') ? responseId.slice('resp_'.length) : undefined
}

export function buildResponseObject(frame: ResponseFrame, state: ResponseState): object {
  const { identity, annotation, params, instructions, tools, toolChoice } = frame
  const { status, output, incompleteReason, usage, error } = state
  return {
    id: toResponseId(identity.turnId),
    object: 'response',
    created_at: identity.createdS,
    status,
    completed_at: status === 'completed' ? (state.endedAtS ?? null) : null,
    background: false,
    error: error ? buildResponseError(error) : null,
    incomplete_details: incompleteReason === undefined ? null : { reason: incompleteReason },
    instructions,
    max_output_tokens: params.max_completion_tokens ?? null,
    max_tool_calls: annotation.max_tool_calls,
    metadata: params.metadata ?? {},
    model: state.model ?? identity.model,
    output,
    parallel_tool_calls: params.parallel_tool_calls ?? true,
    previous_response_id: annotation.previous_response_id,
    prompt_cache_key: params.prompt_cache_key ?? null,
    reasoning: { effort: null, summary: null, ...annotation.reasoning },
    safety_identifier: params.safety_identifier ?? null,
    service_tier: params.service_tier ?? 'default',
    store: params.store ?? true,
    temperature: params.temperature ?? null,
    text: { format: { type: 'text' }, ...annotation.text },
    tool_choice: toolChoice,
    tools,
    top_logprobs: params.top_logprobs ?? 0,
    top_p: params.top_p ?? null,
    truncation: annotation.truncation,
    usage: usage ? buildResponseUsage(usage) : null,
    user: params.user ?? null,
    ...state.tokenFields,
  }
}

/** Returns the final status of a generation that ended. */
export function toEndState({ finishReason }: Pick<GenerationEnd, 'finishReason'>): {
  status: 'completed' | 'incomplete'
  incompleteReason?: string
} {
  if (isCutOff(finishReason)) return { status: 'incomplete', incompleteReason: 'max_output_tokens' }
  if (finishReason === 'content_filter') return { status: 'incomplete', incompleteReason: finishReason }
  return { status: 'completed' }
}

/** Returns the body of a complete response. `completion.end` must be set. */
export function createResponse(frame: ResponseFrame, completion: Completion): object {
  const { start, end } = completion
  const ended = toEndState(end!)
  return buildResponseObject(frame, {
    ...ended,
    model: start?.model,
    output: toOutputItems(readOutputOptions(frame), completion, ended.status === 'completed'),
    usage: end?.usage,
    endedAtS: frame.identity.endedS,
    tokenFields: buildTokenFields(frame, completion),
  })
}

export function readOutputOptions({
  identity,
  responseOptions,
  annotation,
  wireTools,
}: Pick<ResponseFrame, 'identity' | 'responseOptions' | 'annotation' | 'wireTools'>): OutputOptions {
  const { logprobs, reasoning } = responseOptions
  const sealedReasoning = annotation.include.includes('reasoning.encrypted_content')
  return { turnId: identity.turnId, wireTools, logprobs, reasoning, sealedReasoning }
}

/** Returns the fields for agents that requested token ids; the names are those of Chat Completions. */
export function buildTokenFields(
  { responseOptions }: ResponseFrame,
  { start, tokenIds }: Pick<Completion, 'start' | 'tokenIds'>,
): object | undefined {
  if (!responseOptions.tokenIds) return undefined
  return {
    prompt_token_ids: start?.promptTokenIds ? Array.from(start.promptTokenIds) : null,
    token_ids: tokenIds,
    provider_specific_fields: { token_ids: tokenIds },
  }
}

/**
 * Converts usage. The SDKs' types require both details objects with numbers, which are 0 if the engine reported none.
 */
function buildResponseUsage(usage: Usage): object {
  return {
    input_tokens: usage.prompt_tokens,
    input_tokens_details: {
      cached_tokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
      cache_write_tokens: 0,
    },
    output_tokens: usage.completion_tokens,
    output_tokens_details: { reasoning_tokens: usage.completion_tokens_details?.reasoning_tokens ?? 0 },
    total_tokens: usage.total_tokens,
  }
}

function buildResponseError(error: ProxyError): object {
  const { message, type, code, param } = buildOpenAiError(error).error
  return { code: String(code), message, type, param }
}
