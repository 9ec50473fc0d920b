/** A call under the rules of its session: what is asked of an engine for it, and what goes on record of that. */
import type { CanonicalRequest, GenerationRequest } from '../../../protocol/canonical/request.ts'
import { type CaptureOptions, undefinedIfEmpty } from '../../../protocol/token-data/kinds.ts'
import type { OpenTurn } from '../../store/port/turn-store.ts'
import type { AgentRoleAnnotation } from '../roles/declared-role.ts'
import { policyOf } from '../state/policies.ts'
import type { SessionCall, SessionRules } from '../state/session-call.ts'
import { newTurnId } from '../state/session-id.ts'
import type { AgentCall, Choice } from './agent-call.ts'
import { paramsText, type WrittenRequest } from './written-request.ts'

interface AskedTurn {
  readonly open: OpenTurn
  readonly request: CanonicalRequest
  readonly annotations: Record<string, unknown>
  /** Which sub-agent calls, where it is told and heard. */
  readonly subagent: string | undefined
  /** The session chose the model: only who serves it may be asked. */
  readonly mustServe: boolean
}

interface RuledRequest {
  readonly request: CanonicalRequest
  /** As the agent tells it, where it is heard. */
  readonly line: AgentRoleAnnotation | undefined
  /** The session's model for the line; undefined: it names none. */
  readonly policy: string | undefined
}

/** @param model replaces the one that the agent asks for, where the session names none */
export function underRules(
  { request, word }: AgentCall,
  rules: Pick<SessionRules, 'samplingParams' | 'trustAgent' | 'policies'>,
  model: string | undefined,
): RuledRequest {
  const line = rules.trustAgent || !word.hasAgentKey ? word.line : undefined
  const policy = policyOf(rules.policies, line?.told)
  return { request: applyOverrides(request, rules.samplingParams, policy ?? model), line, policy }
}

/** @param model as {@link underRules} has it */
export function askedTurn(
  call: AgentCall,
  written: WrittenRequest,
  { index, rules, epoch, resumedAt }: SessionCall,
  { model, startedAtMs }: { model: string | undefined; startedAtMs: number },
): AskedTurn {
  const { sessionId, dialect, word, choice } = call
  const ruled = underRules(call, rules, model)
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
    // The session's sampling parameters included: what was really asked of the engine.
    params: recorded === call.request ? written.params : paramsText(recorded),
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

/** @param record what is asked of the engine beyond ids and logprobs */
export function generationRequest(
  { stream, choice, span }: AgentCall,
  { open, request, subagent, mustServe }: AskedTurn,
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
  return withBody(request, body)
}

/** The limit of an answer's length has two names: the session's must not lose to the agent's under the other one. */
function withoutLimits(body: CanonicalRequest['body']): object {
  const { max_tokens: _old, max_completion_tokens: _new, ...rest } = body
  return rest
}

/**
 * What an engine is asked for, and what goes on record: the same, but for `n`, which the record keeps. Each choice has
 * a seed of its own, or all would be equal: the agent's and the choice's index, as in vLLM
 * (`_get_child_sampling_params` of `vllm/v1/engine/parallel_sampling.py`).
 */
function requestOfChoice(
  request: CanonicalRequest,
  choice: Choice | undefined,
): { request: CanonicalRequest; recorded: CanonicalRequest } {
  if (choice === undefined) return { request, recorded: request }
  const { seed } = request.body
  // Engines take -1 for no seed.
  const hasSeed = typeof seed === 'number' && seed >= 0
  const own = { ...request.body, ...(hasSeed && { seed: seed + choice.index }) }
  return {
    request: withBody(request, { ...own, n: undefined }),
    recorded: withBody(request, { ...own, n: choice.of }),
  }
}

function withBody(request: CanonicalRequest, body: object): CanonicalRequest {
  return { ...request, body } as CanonicalRequest
}
