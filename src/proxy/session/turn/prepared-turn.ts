/** Applies a session's config to a request: what is requested of an engine, and what is recorded. */
import { readInteger, toJsonInteger } from '../../../protocol/canonical/number-texts.ts'
import type { CanonicalRequest, GenerationRequest } from '../../../protocol/canonical/request.ts'
import { type CaptureOptions, undefinedIfEmpty } from '../../../protocol/token-data/kinds.ts'
import type { OpenTurn } from '../../store/port/turn-store.ts'
import type { AgentRoleAnnotation } from '../roles/declared-role.ts'
import { findPolicy } from '../state/policies.ts'
import { newTurnId } from '../state/session-id.ts'
import type { SessionConfig, TurnAllocation } from '../state/turn-allocation.ts'
import type { AgentRequest, Choice } from './agent-request.ts'
import { type RequestTexts, toParamsText } from './request-texts.ts'

interface PreparedTurn {
  readonly open: OpenTurn
  readonly request: CanonicalRequest
  readonly annotations: Record<string, unknown>
  /** The sub-agent that sent the request, if it is declared and trusted. */
  readonly subagent: string | undefined
  /** Whether the session determines the model, so that only engines that serve it may be used. */
  readonly mustServe: boolean
}

interface RequestWithConfig {
  readonly request: CanonicalRequest
  /** The agent role that the agent declares, if it is trusted. */
  readonly line: AgentRoleAnnotation | undefined
  /** The session's model for the agent role; undefined: it declares none. */
  readonly policy: string | undefined
}

/**
 * Applies a session's config to a request.
 * @param model replaces the requested model, if the session declares none
 */
export function applySessionConfig(
  { request, word }: AgentRequest,
  rules: Pick<SessionConfig, 'samplingParams' | 'trustAgent' | 'policies'>,
  model: string | undefined,
): RequestWithConfig {
  const line = rules.trustAgent || !word.hasAgentKey ? word.line : undefined
  const policy = findPolicy(rules.policies, line?.told)
  return { request: applyOverrides(request, rules.samplingParams, policy ?? model), line, policy }
}

/**
 * Prepares a turn.
 * @param model see {@link applySessionConfig}
 */
export function prepareTurn(
  call: AgentRequest,
  written: RequestTexts,
  { index, rules, epoch, resumedAt }: TurnAllocation,
  { model, startedAtMs }: { model: string | undefined; startedAtMs: number },
): PreparedTurn {
  const { session, dialect, word, choice } = call
  const { sessionId } = session.live
  const ruled = applySessionConfig(call, rules, model)
  const { line, policy } = ruled
  const { request, recorded } = requestOfChoice(ruled.request, choice)
  const isHeard = rules.trustAgent || !word.hasAgentKey
  const open: OpenTurn = {
    turnId: choice?.index === 0 ? choice.call : newTurnId(sessionId),
    sessionId,
    index,
    dialect,
    startedAtMs,
    ...written,
    // The session's sampling parameters are included: the store keeps what was requested of the engine.
    params: recorded === call.request ? written.params : toParamsText(recorded),
    retryCount: isHeard ? word.retryCount : 0,
    epoch,
  }
  const annotations: Record<string, unknown> = {
    ...call.annotations,
    line,
    choice,
    policy,
    resumed_at: resumedAt,
    idempotency_key: word.idempotencyKey,
  }
  const subagent = line?.told.startsWith('subagent:') ? line.told.slice('subagent:'.length) : undefined
  return { open, request, annotations, subagent, mustServe: policy !== undefined }
}

/**
 * Returns the request to an engine.
 * @param record the captured data to request in addition to ids and logprobs
 */
export function generationRequest(
  { stream, choice, span }: AgentRequest,
  { open, request, subagent, mustServe }: PreparedTurn,
  record: CaptureOptions,
): GenerationRequest {
  const requested = undefinedIfEmpty(record)
  return {
    ...request,
    requestId: open.turnId,
    sessionId: open.sessionId,
    stream,
    lastMessage: open.lastMessage,
    subagent,
    mustServe: mustServe || undefined,
    record: requested,
    spans: span?.turn(open),
    choiceOf: choice?.call,
  }
}

/**
 * Returns the request with the session's sampling parameters, which override the agent's.
 * @param model replaces the requested model
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
  return withBody(request, body)
}

/**
 * Removes the agent's length limits. The limit has two names, and the session's must not conflict with the agent's
 * under the other name.
 */
function withoutLimits(body: CanonicalRequest['body']): object {
  const { max_tokens: _old, max_completion_tokens: _new, ...rest } = body
  return rest
}

/**
 * Returns the request to the engine, and the recorded one, which differs only in `n`. Each choice has a separate seed,
 * since all would be equal otherwise: the sum of the agent's seed and the choice's index, as in vLLM
 * (`_get_child_sampling_params` of `vllm/v1/engine/parallel_sampling.py`).
 */
function requestOfChoice(
  request: CanonicalRequest,
  choice: Choice | undefined,
): { request: CanonicalRequest; recorded: CanonicalRequest } {
  if (choice === undefined) return { request, recorded: request }
  const seed = readInteger(request.body.seed)
  // Engines treat -1 as no seed.
  const hasSeed = seed !== undefined && seed >= 0n
  const own = { ...request.body, ...(hasSeed && { seed: toJsonInteger(seed + BigInt(choice.index)) }) }
  return {
    request: withBody(request, { ...own, n: undefined }),
    recorded: withBody(request, { ...own, n: choice.of }),
  }
}

function withBody(request: CanonicalRequest, body: object): CanonicalRequest {
  return { ...request, body } as CanonicalRequest
}
