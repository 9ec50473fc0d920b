/** Functions that all engine clients apply to a request. */
import type { ChatBody, GenerationRequest } from '../../../../protocol/canonical/request.ts'
import { toJsonChunks } from '../../../../protocol/json/json-member.ts'
import type { PromptIds } from '../../../../protocol/token-ids/prompt-ids.ts'
import { writeIds } from '../../../../protocol/token-ids/token-ids-json.ts'

/** A request in token mode: the tokens are sampled after its ids. */
export type TokenRequest = Extract<GenerationRequest, { kind: 'chat' }> & { promptTokenIds: PromptIds }

export function isTokenRequest(request: GenerationRequest): request is TokenRequest {
  return request.kind === 'chat' && request.promptTokenIds !== undefined
}

/** The UTF-8 body of a request, in chunks. */
export type BodyChunks = readonly Buffer[]

/**
 * Serializes a body. The request's messages and tools, if the body contains them, are not serialized again if their
 * JSON is available.
 */
export function serializeBody(
  body: Record<string, unknown>,
  request: GenerationRequest,
): string | BodyChunks {
  const { messages, ...others } = body
  const { messagesJson, toolsJson } = request
  if (messages !== request.body.messages || messagesJson === undefined) return JSON.stringify(body)
  const { tools, ...rest } = others
  if (tools !== request.body.tools || toolsJson === undefined)
    return toJsonChunks(others, { messages: messagesJson })
  return toJsonChunks(rest, { tools: [toolsJson], messages: messagesJson })
}

/** Serializes a body with the ids of the prompt under the given name. */
export function serializeBodyWithIds(
  body: Record<string, unknown>,
  field: string,
  { promptLists, promptTokenIds: ids }: TokenRequest,
): BodyChunks {
  return toJsonChunks(body, { [field]: promptLists?.write(ids) ?? [writeIds(ids.toArray())] })
}

/** Returns the route of OpenAI's API that serves the request. */
export function getRoute(request: GenerationRequest): string {
  return request.kind === 'chat' && !isTokenRequest(request) ? '/v1/chat/completions' : '/v1/completions'
}

export function wantsLogprobs({ body }: GenerationRequest): boolean {
  return body.logprobs === true || typeof body.logprobs === 'number'
}

/**
 * Returns the number of alternatives per token for an agent that requested logprobs; undefined: all that the engine
 * reports, since the completions API requests logprobs and alternatives with one number.
 */
export function getShownAlternatives(request: GenerationRequest): number | undefined {
  return request.kind === 'chat' ? Number(request.body.top_logprobs ?? 0) : undefined
}

/** Returns the number of alternatives per token to request: enough for the recorded data and for the agent. */
export function getRequestedAlternatives(request: GenerationRequest): number {
  const { body, record } = request
  const legacy = typeof body.logprobs === 'number' ? body.logprobs : 0
  const shown = wantsLogprobs(request) ? Math.max(legacy, Number(body.top_logprobs ?? 0)) : 0
  return Math.max(shown, record?.topLogprobs ?? 0)
}

/**
 * Returns whether an engine can report the sampling mask of this request. SGLang requires a bound on the mask's length,
 * which top_p and min_p do not provide, and otherwise rejects the request (SGLang's pull requests 27408 and 35205); so
 * does vLLM with masks enabled.
 */
export function isMaskBounded({ top_k }: GenerationRequest['body']): boolean {
  return Number(top_k ?? 0) > 0
}

/** Returns the agent's limit on the completion, in tokens; the newer name takes precedence. */
export function getMaxTokens({ max_completion_tokens, max_tokens }: ChatBody): number | undefined {
  return max_completion_tokens ?? max_tokens ?? undefined
}

/** Removes an empty list of tools and the tool choice: engines reject them, and clients send both. */
export function withoutEmptyTools<Body extends GenerationRequest['body']>(body: Body): Body {
  const isEmpty = Array.isArray(body.tools) && body.tools.length === 0
  return isEmpty ? { ...body, tools: undefined, tool_choice: undefined } : body
}

/**
 * Fields of a chat that determine its prompt, or how its text is parsed: irrelevant when the prompt is ids. Some, for
 * instance `echo`, have another meaning on a route for ids, or would change the prompt.
 */
const RENDERED_FIELDS: Readonly<Record<string, undefined>> = {
  messages: undefined,
  tools: undefined,
  tool_choice: undefined,
  parallel_tool_calls: undefined,
  functions: undefined,
  function_call: undefined,
  documents: undefined,
  chat_template: undefined,
  chat_template_kwargs: undefined,
  add_generation_prompt: undefined,
  continue_final_message: undefined,
  reasoning_effort: undefined,
  include_reasoning: undefined,
  echo: undefined,
  truncate_prompt_tokens: undefined,
  truncation_side: undefined,
  // Further samples would cost money and be ignored.
  n: undefined,
}

/** Returns the fields of a chat's body that apply to a prompt of ids; JSON omits undefined fields. */
export function withoutRenderedFields(body: ChatBody): Record<string, unknown> {
  return { ...body, ...RENDERED_FIELDS }
}

/** Returns the ids of a prompt that consists of ids, unless the engine is to truncate it. */
export function getSentPromptTokenIds(request: GenerationRequest): PromptIds | readonly number[] | undefined {
  if (request.kind === 'chat') return request.promptTokenIds
  const { prompt, truncate_prompt_tokens: cut } = request.body
  return typeof prompt === 'string' || cut != null ? undefined : prompt
}
