/**
 * Parses responses of protocol version 1. One frame contains the complete response, which is converted to one event per
 * field.
 */
import { ProxyError } from '../../base/errors.ts'
import type { GenerationDelta, GenerationEvent } from '../../protocol/canonical/events.ts'
import type { ToolCallDelta } from '../../protocol/canonical/messages.ts'
import type { CompletionResponseV1 } from '../../protocol/worker/protocol.ts'

/**
 * Converts a version-1 response to events. It has no prompt ids, so none of its tokens is trainable.
 * @throws ProxyError `engine_failed` with the worker's message if it reports an error, or for invalid tool calls
 */
export function parseResponseV1(response: CompletionResponseV1, workerId: string): GenerationEvent[] {
  if (response.error) {
    const logMessage = 'the worker reported that the request failed'
    throw new ProxyError('engine_failed', response.error, { logMessage })
  }
  const toolCalls = toToolCallDeltas(response)
  // completion_text includes the markup of the tool calls, which the agent must not receive.
  const content = response.content_text ?? (toolCalls.length > 0 ? null : response.completion_text)
  const deltas: GenerationDelta[] = []
  if (content) deltas.push({ type: 'delta', content })
  if (toolCalls.length > 0) deltas.push({ type: 'delta', toolCalls })
  if (response.token_ids?.length) deltas.push({ type: 'delta', ...toTokenFields(response) })
  return [
    { type: 'start', engine: workerId },
    ...deltas,
    { type: 'end', finishReason: response.finish_reason ?? (toolCalls.length > 0 ? 'tool_calls' : 'stop') },
  ]
}

function toTokenFields(response: CompletionResponseV1): Pick<GenerationDelta, 'tokenIds' | 'logprobs'> {
  const tokenIds = (response.token_ids ?? []).map((id) => id ?? Number.NaN)
  return response.log_probs
    ? { tokenIds, logprobs: response.log_probs.map((value) => value ?? Number.NaN) }
    : { tokenIds }
}

/** A tool call in a version-1 response. The arguments are JSON text or an object. */
interface ToolCallV1 {
  id?: string | null
  function: { name: string; arguments?: unknown }
}

function toToolCallDeltas({
  request_id: requestId,
  tool_calls: toolCalls,
}: CompletionResponseV1): ToolCallDelta[] {
  return parseToolCalls(toolCalls ?? []).map((call, index) => ({
    index,
    id: call.id ?? `call_${requestId}_${index}`,
    type: 'function',
    function: { name: call.function.name, arguments: toArgumentsText(call.function.arguments) },
  }))
}

function parseToolCalls(toolCalls: ToolCallV1[] | string): ToolCallV1[] {
  if (typeof toolCalls !== 'string') return toolCalls
  let list: unknown
  try {
    list = JSON.parse(toolCalls)
  } catch {
    // The cause is omitted: the parser's error quotes the tool calls.
    throw new ProxyError('engine_failed', 'the worker sent tool_calls that are not JSON')
  }
  if (!Array.isArray(list) || !list.every((call) => typeof call?.function?.name === 'string')) {
    throw new ProxyError('engine_failed', 'the worker sent tool_calls that are not a list of function calls')
  }
  return list as ToolCallV1[]
}

function toArgumentsText(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value ?? {})
}
