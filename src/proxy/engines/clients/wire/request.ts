/** What all engine clients read from a request. */
import type { ChatBody, GenerationRequest } from '../../../../protocol/canonical/request.ts'
import { toJsonChunks } from '../../../../protocol/json/json-member.ts'
import type { PromptIds } from '../../../../protocol/token-ids/prompt-ids.ts'
import { writeIds } from '../../../../protocol/token-ids/token-ids-json.ts'

/** A call in token mode: sampled after the ids that it brings. */
export type TokenRequest = Extract<GenerationRequest, { kind: 'chat' }> & { promptTokenIds: PromptIds }

export function isTokenRequest(request: GenerationRequest): request is TokenRequest {
  return request.kind === 'chat' && request.promptTokenIds !== undefined
}

/** A request's body in UTF-8, in pieces. */
export type BodyPieces = readonly Buffer[]

/**
 * A body as JSON. The request's messages and tools, if they are in it, are not written again when they are there as JSON
 * already.
 */
export function bodyJson(body: Record<string, unknown>, request: GenerationRequest): string | BodyPieces {
  const { messages, ...others } = body
  const { messagesJson, toolsJson } = request
  if (messages !== request.body.messages || messagesJson === undefined) return JSON.stringify(body)
  const { tools, ...rest } = others
  if (tools !== request.body.tools || toolsJson === undefined)
    return toJsonChunks(others, { messages: messagesJson })
  return toJsonChunks(rest, { tools: [toolsJson], messages: messagesJson })
}

/** A body as JSON with the ids of the prompt under this name. */
export function bodyWithIds(
  body: Record<string, unknown>,
  field: string,
  { promptLists, promptTokenIds: ids }: TokenRequest,
): BodyPieces {
  return toJsonChunks(body, { [field]: promptLists?.write(ids) ?? [writeIds(ids.whole())] })
}

/** The route of OpenAI's API that serves the request. */
export function routeOf(request: GenerationRequest): string {
  return request.kind === 'chat' && !isTokenRequest(request) ? '/v1/chat/completions' : '/v1/completions'
}

export function wantsLogprobs({ body }: GenerationRequest): boolean {
  return body.logprobs === true || typeof body.logprobs === 'number'
}

/**
 * How many alternatives per token an agent that wants logprobs wants to see; undefined: as many as come, for a completion's
 * route names one number for both.
 */
export function shownAlternatives(request: GenerationRequest): number | undefined {
  return request.kind === 'chat' ? Number(request.body.top_logprobs ?? 0) : undefined
}

/** How many alternatives per token are to come: those for the record, and those for the agent. */
export function askedAlternatives(request: GenerationRequest): number {
  const { body, record } = request
  const legacy = typeof body.logprobs === 'number' ? body.logprobs : 0
  const shown = wantsLogprobs(request) ? Math.max(legacy, Number(body.top_logprobs ?? 0)) : 0
  return Math.max(shown, record?.topLogprobs ?? 0)
}

/**
 * Whether an engine tells the mask of this call: SGLang wants a bound on the mask's length, which top_p and min_p are none
 * of, and refuses the whole call without one (SGLang's pull requests 27408 and 35205); vLLM does with masks switched on.
 */
export function isMaskBounded({ top_k }: GenerationRequest['body']): boolean {
  return Number(top_k ?? 0) > 0
}

/** The agent's limit on the completion, in tokens; the newer name wins. */
export function maxTokensOf({ max_completion_tokens, max_tokens }: ChatBody): number | undefined {
  return max_completion_tokens ?? max_tokens ?? undefined
}

/** Engines refuse an empty list of tools, and a choice among none; clients send both. */
export function withoutEmptyTools<Body extends GenerationRequest['body']>(body: Body): Body {
  const isEmpty = Array.isArray(body.tools) && body.tools.length === 0
  return isEmpty ? { ...body, tools: undefined, tool_choice: undefined } : body
}

/**
 * Fields of a chat that say what its prompt is, or how its text is read: settled by whoever made the ids. Some would
 * mean something else to a route that takes ids, such as `echo`, or would have it sample after other ids.
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
  // More than one sample would be paid for and not read.
  n: undefined,
}

/** What of a chat's body is left to say when its prompt is ids; JSON leaves out what is undefined. */
export function withoutRenderedFields(body: ChatBody): Record<string, unknown> {
  return { ...body, ...RENDERED_FIELDS }
}

/** The ids of a prompt that is made of ids, unless the engine was told to cut it. */
export function sentPromptTokenIds(request: GenerationRequest): PromptIds | readonly number[] | undefined {
  if (request.kind === 'chat') return request.promptTokenIds
  const { prompt, truncate_prompt_tokens: cut } = request.body
  return typeof prompt === 'string' || cut != null ? undefined : prompt
}
