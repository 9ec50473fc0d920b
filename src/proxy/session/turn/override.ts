import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'

/**
 * What is asked of the engine: the session's sampling parameters win over the agent's.
 * @param model replaces the one that the agent asks for
 */
export function applyOverrides(
  request: CanonicalRequest,
  samplingParams: Readonly<Record<string, unknown>>,
  model: string | undefined,
): CanonicalRequest {
  if (model === undefined && Object.keys(samplingParams).length === 0) return request
  const limits = 'max_tokens' in samplingParams || 'max_completion_tokens' in samplingParams
  const asked = limits ? withoutLimits(request.body) : request.body
  const body = { ...asked, ...samplingParams, ...(model !== undefined && { model }) }
  return { ...request, body } as CanonicalRequest
}

/** The limit of an answer's length has two names: the session's must not lose to the agent's under the other one. */
function withoutLimits(body: CanonicalRequest['body']): object {
  const { max_tokens: _old, max_completion_tokens: _new, ...rest } = body
  return rest
}
