import { readTemplateVariables } from '../../../../protocol/canonical/reasoning-effort.ts'
import type { ChatBody, GenerationRequest } from '../../../../protocol/canonical/request.ts'
import {
  getRequestedAlternatives,
  getRoute,
  type TokenRequest,
  wantsLogprobs,
  withoutEmptyTools,
  withoutRenderedFields,
} from '../wire/request.ts'

/**
 * Returns the body for vLLM: the agent's, with the fields that recording requires overridden. It is a shallow copy,
 * since bodies can be large; fields that are `undefined` are omitted from the JSON.
 */
export function buildVllmBody(request: GenerationRequest): Record<string, unknown> {
  return {
    ...withoutEmptyTools(request.body),
    ...(request.kind === 'chat' ? getChatLogprobs(request) : buildCompletionFields(request)),
    ...buildRecordingFields(request),
    ...buildDetailFields(request),
  }
}

/**
 * Returns the body for vLLM in token mode, except the `prompt` of ids: `CompletionRequest` of
 * `vllm/entrypoints/openai/completion/protocol.py`, which has all of a chat's sampling fields under the same names,
 * including `response_format` and `structured_outputs`, and ignores unknown fields. If the agent requests it, text is
 * cut at a stop string and loses special tokens; ids are complete nevertheless, including those of the stop string.
 *
 * The sampled ids are the tokens of the logprobs. `return_token_ids` would report them too, and repeat all ids of the
 * prompt, which costs server and proxy more than the rest of the response.
 * @param maxTokens always sent: the route stops after 16 tokens otherwise
 * @param repeatsPrompt whether the server should report the prompt that it saw
 */
export function buildVllmTokenBody(
  request: TokenRequest,
  maxTokens: number,
  repeatsPrompt: boolean,
): Record<string, unknown> {
  return {
    ...withoutRenderedFields(request.body),
    prompt: undefined,
    add_special_tokens: false,
    max_tokens: maxTokens,
    max_completion_tokens: undefined,
    // 0 requests the sampled token's logprob without alternatives.
    logprobs: getRequestedAlternatives(request),
    top_logprobs: undefined,
    ...buildRecordingFields(request),
    ...buildDetailFields(request),
    return_token_ids: repeatsPrompt ? true : undefined,
    return_tokens_as_token_ids: true,
  }
}

/**
 * Returns the body for `TokenizeChatRequest` of `vllm/entrypoints/serve/tokenize/protocol.py`, without the model's
 * name: agents name models that the proxy replaces, and an engine serves one.
 */
export function buildVllmTokenizeBody(body: ChatBody): Record<string, unknown> {
  const { messages, tools } = withoutEmptyTools(body)
  // The schema has no `reasoning_effort`: the template receives it as the variable that vLLM derives from it in a chat.
  const chat_template_kwargs = readTemplateVariables(body) ?? body.chat_template_kwargs
  return { messages, tools, chat_template_kwargs, add_generation_prompt: true }
}

function buildRecordingFields({ body, stream }: GenerationRequest): Record<string, unknown> {
  return {
    return_token_ids: true,
    // With a parser configured, false removes ids and logprobs from every chunk. The dialect hides reasoning instead.
    include_reasoning: undefined,
    stream,
    // The usage shows whether ids were lost. vLLM rejects the field when it does not stream.
    stream_options: stream
      ? { ...(body.stream_options as object | undefined), include_usage: true }
      : undefined,
  }
}

/**
 * Returns the fields for token data. A server with routed experts returns them unrequested, but not in a stream. vLLM
 * rejects prompt logprobs in a stream.
 */
function buildDetailFields(request: GenerationRequest): Record<string, unknown> | undefined {
  const { record, expertsStart } = request
  if (record === undefined) return undefined
  const isComplete = record.routedExperts === true || record.promptLogprobs !== undefined
  return {
    ...(record.promptLogprobs !== undefined && { prompt_logprobs: record.promptLogprobs }),
    ...(record.routedExperts && expertsStart !== undefined && { routed_experts_prompt_start: expertsStart }),
    ...(recordsAlternatives(request) && { return_tokens_as_token_ids: true }),
    // vLLM 0.33 supports this field (according to its source code), and rejects it with beam search. Older versions
    // ignore it.
    ...(record.weightVersions && request.body.use_beam_search !== true && { return_weight_versions: true }),
    ...(isComplete && { stream: false, stream_options: undefined }),
  }
}

/**
 * Returns whether alternatives can be recorded. They are identified by ids if tokens are written as ids. On the
 * completions route the agent would then lose their text, so logprobs that the agent requests take precedence there.
 */
function recordsAlternatives(request: GenerationRequest): boolean {
  if (request.record?.topLogprobs === undefined) return false
  return getRoute(request) === '/v1/chat/completions' || !wantsLogprobs(request)
}

function getChatLogprobs(request: GenerationRequest): Record<string, unknown> {
  const { body, record } = request
  const requested = record?.topLogprobs === undefined ? undefined : getRequestedAlternatives(request)
  return {
    logprobs: true,
    top_logprobs: requested ?? (wantsLogprobs(request) ? body.top_logprobs : undefined),
  }
}

function buildCompletionFields(request: GenerationRequest): Record<string, unknown> {
  const { max_tokens, max_completion_tokens } = request.body
  return {
    // 0 requests the sampled token's logprob without alternatives.
    logprobs: getRequestedAlternatives(request),
    // This route ignores the newer name of the limit, and would stop after 16 tokens.
    max_tokens: max_tokens ?? max_completion_tokens,
    max_completion_tokens: undefined,
  }
}
