import { templateVariables } from '../../../../protocol/canonical/reasoning-effort.ts'
import type { ChatBody, GenerationRequest } from '../../../../protocol/canonical/request.ts'
import {
  askedAlternatives,
  routeOf,
  type TokenRequest,
  wantsLogprobs,
  withoutEmptyTools,
  withoutRenderedFields,
} from '../wire/request.ts'

/**
 * The body for vLLM: the agent's, and what recording needs whatever the agent said about it. One shallow copy, since
 * bodies can be large. Fields that are `undefined` here are left out of the JSON.
 */
export function vllmBody(request: GenerationRequest): Record<string, unknown> {
  return {
    ...withoutEmptyTools(request.body),
    ...(request.kind === 'chat' ? chatLogprobs(request) : completionFields(request)),
    ...recordingFields(request),
    ...detailFields(request),
  }
}

/**
 * The body for vLLM in token mode, but for the `prompt` of ids: `CompletionRequest` of `vllm/entrypoints/openai/completion/protocol.py`, which has
 * all of a chat's sampling fields under the same names, `response_format` and `structured_outputs` among them, and
 * ignores what it does not know. Text is cut at a stop string and loses special tokens if the agent asks for that; ids are
 * complete all the same, the stop string's included.
 *
 * The sampled ids come as the tokens of the logprobs. `return_token_ids` would tell them, too, and repeat all ids of the
 * prompt, which costs server and proxy more than the rest of the answer.
 * @param maxTokens always sent: the route stops after 16 tokens otherwise
 * @param repeatsPrompt whether the server is to tell what prompt it saw
 */
export function vllmTokenBody(
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
    // 0: the sampled token's logprob and no alternatives.
    logprobs: askedAlternatives(request),
    top_logprobs: undefined,
    ...recordingFields(request),
    ...detailFields(request),
    return_token_ids: repeatsPrompt ? true : undefined,
    return_tokens_as_token_ids: true,
  }
}

/**
 * `TokenizeChatRequest` of `vllm/entrypoints/serve/tokenize/protocol.py`. Without the model's name: agents ask for
 * models that the proxy replaces, and one engine serves one.
 */
export function vllmTokenizeBody(body: ChatBody): Record<string, unknown> {
  const { messages, tools } = withoutEmptyTools(body)
  // Its schema has no `reasoning_effort`: the template gets it as the variable that vLLM makes of it in a chat.
  const chat_template_kwargs = templateVariables(body) ?? body.chat_template_kwargs
  return { messages, tools, chat_template_kwargs, add_generation_prompt: true }
}

function recordingFields({ body, stream }: GenerationRequest): Record<string, unknown> {
  return {
    return_token_ids: true,
    // With a parser configured, false wipes ids and logprobs from every chunk. The dialect hides reasoning instead.
    include_reasoning: undefined,
    stream,
    // The usage tells whether ids were lost on the way. vLLM refuses the field when it does not stream.
    stream_options: stream
      ? { ...(body.stream_options as object | undefined), include_usage: true }
      : undefined,
  }
}

/**
 * What is recorded beyond ids and logprobs. A server that returns routed experts does so unasked, and never in a stream;
 * prompt logprobs are refused in one.
 */
function detailFields(request: GenerationRequest): Record<string, unknown> | undefined {
  const { record, expertsStart } = request
  if (record === undefined) return undefined
  const isWhole = record.routedExperts === true || record.promptLogprobs !== undefined
  return {
    ...(record.promptLogprobs !== undefined && { prompt_logprobs: record.promptLogprobs }),
    ...(record.routedExperts && expertsStart !== undefined && { routed_experts_prompt_start: expertsStart }),
    ...(recordsAlternatives(request) && { return_tokens_as_token_ids: true }),
    // Known to vLLM 0.33 (by its sources), which refuses it with beam search; older ones ignore it.
    ...(record.weightVersions && request.body.use_beam_search !== true && { return_weight_versions: true }),
    ...(isWhole && { stream: false, stream_options: undefined }),
  }
}

/**
 * Alternatives are known by their ids where tokens are written as ids. On the route of completions an agent would be left
 * without their text: there its own logprobs come first.
 */
function recordsAlternatives(request: GenerationRequest): boolean {
  if (request.record?.topLogprobs === undefined) return false
  return routeOf(request) === '/v1/chat/completions' || !wantsLogprobs(request)
}

function chatLogprobs(request: GenerationRequest): Record<string, unknown> {
  const { body, record } = request
  const asked = record?.topLogprobs === undefined ? undefined : askedAlternatives(request)
  return { logprobs: true, top_logprobs: asked ?? (wantsLogprobs(request) ? body.top_logprobs : undefined) }
}

function completionFields(request: GenerationRequest): Record<string, unknown> {
  const { max_tokens, max_completion_tokens } = request.body
  return {
    // Whatever else was asked for, the sampled token's comes.
    logprobs: askedAlternatives(request),
    // This route does not know the newer name, and would stop after 16 tokens.
    max_tokens: max_tokens ?? max_completion_tokens,
    max_completion_tokens: undefined,
  }
}
