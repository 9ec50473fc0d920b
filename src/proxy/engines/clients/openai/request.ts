import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import { askedAlternatives, isMaskBounded, wantsLogprobs, withoutEmptyTools } from '../wire/request.ts'

/**
 * How much is asked of an engine of unknown make, from all to nothing: `ids` adds what vLLM, SGLang and their kin know,
 * `ids_whole` gives up streaming for them, as SGLang's chat demands, `logprobs` asks what OpenAI itself knows, `plain`
 * sends the agent's body.
 */
export type RequestLevel = 'ids' | 'ids_whole' | 'logprobs' | 'plain'

/** What to ask in turn until an ask is accepted. */
export function getRequestLevels({ stream }: GenerationRequest): RequestLevel[] {
  return stream ? ['ids', 'ids_whole', 'logprobs', 'plain'] : ['ids', 'logprobs', 'plain']
}

/**
 * What is asked for beyond ids, of servers that have it: SGLang's names, and vLLM's. Only SGLang's chat gives all of them,
 * and none of them in a stream.
 */
export function detailsBody(request: GenerationRequest): Record<string, unknown> {
  const { record = {}, body } = request
  const top = record.topLogprobs === undefined ? undefined : askedAlternatives(request)
  return {
    ...openaiBody(request, 'ids_whole'),
    ...(top !== undefined && (request.kind === 'chat' ? { top_logprobs: top } : { logprobs: top })),
    ...(top !== undefined &&
      (request.kind === 'chat' || !wantsLogprobs(request)) && { return_tokens_as_token_ids: true }),
    ...(record.promptLogprobs !== undefined && { prompt_logprobs: record.promptLogprobs }),
    ...(record.routedExperts && { return_routed_experts: true }),
    ...(record.samplingMask && isMaskBounded(body) && { return_sampling_mask: true }),
    return_meta_info: true,
  }
}

/** The body for an OpenAI-compatible engine. One shallow copy; fields that are `undefined` are left out of the JSON. */
export function openaiBody(request: GenerationRequest, ask: RequestLevel): Record<string, unknown> {
  const { body } = request
  const stream = request.stream && ask !== 'ids_whole'
  const wantsIds = ask === 'ids' || ask === 'ids_whole'
  const agentOptions = (body.stream_options ?? undefined) as object | undefined
  const streamOptions = ask === 'plain' ? agentOptions : { ...agentOptions, include_usage: true }
  return {
    ...withoutEmptyTools(body),
    ...(ask !== 'plain' && logprobsFields(request)),
    ...(wantsIds ? idFields(request) : { return_token_ids: undefined }),
    include_reasoning: undefined,
    stream,
    stream_options: stream ? streamOptions : undefined,
  }
}

function logprobsFields(request: GenerationRequest): Record<string, unknown> {
  const wanted = wantsLogprobs(request)
  if (request.kind === 'chat')
    return { logprobs: true, top_logprobs: wanted ? request.body.top_logprobs : undefined }
  // Some servers take 0 for "none".
  return { logprobs: wanted ? request.body.logprobs : 1 }
}

/**
 * Ids come as `token_ids` where the engine has them, else written into the tokens. The latter is not asked for when the
 * agent wants alternatives: their text would be lost.
 */
function idFields(request: GenerationRequest): Record<string, unknown> {
  const { top_logprobs: top, logprobs } = request.body
  const wantsAlternatives =
    typeof logprobs === 'number' ? logprobs > 0 : logprobs === true && Number(top ?? 0) > 0
  return { return_token_ids: true, ...(!wantsAlternatives && { return_tokens_as_token_ids: true }) }
}
