import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import { getRequestedAlternatives, isMaskBounded, wantsLogprobs, withoutEmptyTools } from '../wire/request.ts'

/**
 * The level of a request to an engine of unknown kind, from full to plain: `ids` adds the fields of vLLM, SGLang and
 * similar engines, `ids_complete` does so without streaming, as SGLang's chat route requires, `logprobs` adds fields of
 * OpenAI's API only, `plain` sends the agent's body.
 */
export type RequestLevel = 'ids' | 'ids_complete' | 'logprobs' | 'plain'

/** Returns the levels to try in order until one is accepted. */
export function getRequestLevels({ stream }: GenerationRequest): RequestLevel[] {
  return stream ? ['ids', 'ids_complete', 'logprobs', 'plain'] : ['ids', 'logprobs', 'plain']
}

/**
 * Returns the body that requests token data in addition to ids, with SGLang's field names and vLLM's. Only SGLang's
 * chat route returns all kinds of token data, and none of them in a stream.
 */
export function buildDetailsBody(request: GenerationRequest): Record<string, unknown> {
  const { record = {}, body } = request
  const top = record.topLogprobs === undefined ? undefined : getRequestedAlternatives(request)
  return {
    ...buildOpenaiBody(request, 'ids_complete'),
    ...(top !== undefined && (request.kind === 'chat' ? { top_logprobs: top } : { logprobs: top })),
    ...(top !== undefined &&
      (request.kind === 'chat' || !wantsLogprobs(request)) && { return_tokens_as_token_ids: true }),
    ...(record.promptLogprobs !== undefined && { prompt_logprobs: record.promptLogprobs }),
    ...(record.routedExperts && { return_routed_experts: true }),
    ...(record.samplingMask && isMaskBounded(body) && { return_sampling_mask: true }),
    return_meta_info: true,
  }
}

/**
 * Returns the body for an OpenAI-compatible engine: a shallow copy; fields that are `undefined` are omitted from the
 * JSON.
 */
export function buildOpenaiBody(request: GenerationRequest, level: RequestLevel): Record<string, unknown> {
  const { body } = request
  const stream = request.stream && level !== 'ids_complete'
  const wantsIds = level === 'ids' || level === 'ids_complete'
  const agentOptions = (body.stream_options ?? undefined) as object | undefined
  const streamOptions = level === 'plain' ? agentOptions : { ...agentOptions, include_usage: true }
  return {
    ...withoutEmptyTools(body),
    ...(level !== 'plain' && buildLogprobsFields(request)),
    ...(wantsIds ? buildIdFields(request) : { return_token_ids: undefined }),
    include_reasoning: undefined,
    stream,
    stream_options: stream ? streamOptions : undefined,
  }
}

function buildLogprobsFields(request: GenerationRequest): Record<string, unknown> {
  const wanted = wantsLogprobs(request)
  if (request.kind === 'chat')
    return { logprobs: true, top_logprobs: wanted ? request.body.top_logprobs : undefined }
  // 1, because some servers interpret 0 as "no logprobs".
  return { logprobs: wanted ? request.body.logprobs : 1 }
}

/**
 * Returns the fields that request ids: as `token_ids` from engines that have them, otherwise written into the tokens.
 * The latter form is not requested if the agent requested alternatives, because their text would be lost.
 */
function buildIdFields(request: GenerationRequest): Record<string, unknown> {
  const { top_logprobs: top, logprobs } = request.body
  const wantsAlternatives =
    typeof logprobs === 'number' ? logprobs > 0 : logprobs === true && Number(top ?? 0) > 0
  return { return_token_ids: true, ...(!wantsAlternatives && { return_tokens_as_token_ids: true }) }
}
