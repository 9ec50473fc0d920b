/**
 * Prepares a turn: serializes its request and applies the session's config. The results are the request to the engine
 * and the record.
 */
import { ProxyError } from '../../../base/errors.ts'
import { formatTools, readInteger, toJsonInteger } from '../../../protocol/canonical/number-texts.ts'
import type { CanonicalRequest, GenerationRequest } from '../../../protocol/canonical/request.ts'
import { encodeElements } from '../../../protocol/json/json-member.ts'
import { type CaptureOptions, omitEmpty } from '../../../protocol/token-data/kinds.ts'
import type { OpenTurn } from '../../store/port/turn-store.ts'
import { toPromptChunks } from '../prompts/prompt-chunks.ts'
import { limitToBudget } from '../state/limits.ts'
import type { RetryInfo } from '../state/live-turn.ts'
import { findPolicy } from '../state/policies.ts'
import { newTurnId } from '../state/session-id.ts'
import type { SessionMemory } from '../state/session-memory.ts'
import type { SessionConfig, TurnAllocation } from '../state/turn-allocation.ts'
import type { AgentRequest, Choice } from './agent-request.ts'
import type { TurnLog } from './request-log.ts'

/** A turn that is ready for dispatch. */
export interface PreparedTurn {
  /** The turn's index, and references to the session's config and cache. */
  readonly allocation: TurnAllocation
  /** The turn in the form that is recorded at its start. */
  readonly open: OpenTurn
  readonly retryInfo: RetryInfo
  /** The log of the turn; undefined: the request is not logged. */
  readonly log: TurnLog | undefined
  /** The annotations, which are recorded when the turn is closed. */
  readonly annotations: Record<string, unknown>
  /** The request to the engine. */
  readonly generation: GenerationRequest
}

/** The settings of the proxy that apply to all turns. */
interface TurnSettings {
  /** A model name that replaces the requested one, unless the session has a policy. */
  readonly model: string | undefined
  /** The captured data besides ids and logprobs, unless the session configures it. */
  readonly record: CaptureOptions
  readonly startedAtMs: number
}

/**
 * Applies a session's config to a request.
 * @param model replaces the requested model, unless the session has a policy
 * @returns the request; as `line`, the declared agent role if the request's metadata is trusted; the session's policy
 *   for that role
 */
export function applySessionConfig(
  { request, metadata }: AgentRequest,
  config: Pick<SessionConfig, 'samplingParams' | 'trustAgent' | 'policies'>,
  model: string | undefined,
) {
  const agentRole = config.trustAgent || !metadata.hasAgentKey ? metadata.agentRole : undefined
  const policy = findPolicy(config.policies, agentRole?.told)
  return { request: applyOverrides(request, config.samplingParams, policy ?? model), line: agentRole, policy }
}

/**
 * Prepares a turn.
 * @param written the serialized request
 * @param allocation the turn's index, and references to the session's config and cache
 */
export function prepareTurn(
  agentRequest: AgentRequest,
  written: RequestTexts,
  allocation: TurnAllocation,
  { model, record, startedAtMs }: TurnSettings,
): PreparedTurn {
  const { dialect, metadata, choice, stream, span, messagesJson } = agentRequest
  const { sessionId, config, memory } = allocation
  const { request: configured, line: agentRole, policy } = applySessionConfig(agentRequest, config, model)
  const { request, recorded } = getChoiceRequest(configured, choice)
  const isTrusted = config.trustAgent || !metadata.hasAgentKey
  const open: OpenTurn = {
    turnId: choice?.index === 0 ? choice.call : newTurnId(sessionId),
    sessionId,
    index: allocation.index,
    dialect,
    startedAtMs,
    ...written,
    // The session's sampling parameters are included, so that the record has what was requested of the engine.
    params: recorded === agentRequest.request ? written.params : toParamsText(recorded),
    retryCount: isTrusted ? metadata.retryCount : 0,
    epoch: allocation.epoch,
  }
  const annotations: Record<string, unknown> = {
    ...agentRequest.annotations,
    line: agentRole,
    choice,
    policy,
    resumed_at: allocation.resumedAt,
    idempotency_key: metadata.idempotencyKey,
    node_message: metadata.nodeMessageId,
    lost_message: metadata.lostMessageId,
  }
  const log = agentRequest.log?.logOpened(open, agentRole?.told)
  const generation: GenerationRequest = {
    ...limitToBudget(request, allocation.budget),
    requestId: open.turnId,
    sessionId,
    stream,
    lastMessage: open.lastMessage,
    subagent: agentRole?.told.startsWith(SUBAGENT) ? agentRole.told.slice(SUBAGENT.length) : undefined,
    // Only an engine that lists the policy may be used.
    mustServe: policy !== undefined || undefined,
    record: omitEmpty(config.record ?? record),
    log,
    spans: span?.startTurn(open),
    choiceOf: choice?.call,
    ...getKnownJson(request, written, memory, messagesJson),
  }
  return { allocation, open, retryInfo: metadata, log, annotations, generation }
}

const SUBAGENT = 'subagent:'

/**
 * Returns the request with the session's sampling parameters, which override the agent's.
 * @param model replaces the requested model; undefined: it stays
 */
export function applyOverrides(
  request: CanonicalRequest,
  samplingParams: Readonly<Record<string, unknown>>,
  model: string | undefined,
): CanonicalRequest {
  if (model === undefined && Object.keys(samplingParams).length === 0) return request
  const limits = 'max_tokens' in samplingParams || 'max_completion_tokens' in samplingParams
  const agentBody = limits ? withoutLimits(request.body) : request.body
  const body = { ...agentBody, ...samplingParams, ...(model !== undefined && { model }) }
  return withBody(request, body)
}

/**
 * Removes the agent's token limits. The limit has two names, and the agent's value must not remain under the other one.
 */
function withoutLimits(body: CanonicalRequest['body']): object {
  const { max_tokens: _old, max_completion_tokens: _new, ...rest } = body
  return rest
}

/**
 * Returns the request to the engine, and the recorded one, which has another `n`. Each choice has a separate seed,
 * since all would be equal otherwise: the sum of the agent's seed and the choice's index, as in vLLM
 * (`_get_child_sampling_params` of `vllm/v1/engine/parallel_sampling.py`).
 */
function getChoiceRequest(
  request: CanonicalRequest,
  choice: Choice | undefined,
): { request: CanonicalRequest; recorded: CanonicalRequest } {
  if (choice === undefined) return { request, recorded: request }
  const seed = readInteger(request.body.seed)
  // Engines treat a negative seed as none.
  const hasSeed = seed !== undefined && seed >= 0n
  const choiceBody = { ...request.body, ...(hasSeed && { seed: toJsonInteger(seed + BigInt(choice.index)) }) }
  return {
    request: withBody(request, { ...choiceBody, n: undefined }),
    recorded: withBody(request, { ...choiceBody, n: choice.of }),
  }
}

function withBody(request: CanonicalRequest, body: object): CanonicalRequest {
  return { ...request, body } as CanonicalRequest
}

/** The serialized parts of a request, as they are recorded. */
export type RequestTexts = Pick<OpenTurn, 'lastMessage' | 'tools' | 'params' | 'promptPieces'>

/**
 * Serializes a request. Parts of the session's earlier requests are not serialized again.
 * @throws ProxyError `invalid_request` for a request that is nested too deeply
 */
export function serializeRequestTexts(
  request: CanonicalRequest,
  { messages, requests }: Pick<SessionMemory, 'messages' | 'requests'>,
): RequestTexts {
  try {
    const params = toParamsText(request)
    if (request.kind === 'completion') {
      const chunks = toPromptChunks(request.body.prompt)
      return { lastMessage: undefined, tools: null, params, promptPieces: chunks }
    }
    const { tools } = request.body
    return {
      lastMessage: messages.addMessages(request.body.messages),
      tools: tools ? requests.computeOnce(formatTools, tools) : null,
      params,
      promptPieces: [],
    }
  } catch (cause) {
    throw new ProxyError('invalid_request', 'The request is nested too deeply', { cause })
  }
}

/** Returns the JSON of the body without the parts that are stored separately. */
export function toParamsText({ body }: CanonicalRequest): string {
  const { messages: _messages, tools: _tools, prompt: _prompt, ...params } = body
  return JSON.stringify(params)
}

/**
 * Returns the parts of a request whose JSON is available, or is serialized once for all requests of the session.
 * @param messagesJson the original bytes of the messages, if they are available
 */
export function getKnownJson(
  request: CanonicalRequest,
  { lastMessage }: RequestTexts,
  { messages, prompts, requests }: SessionMemory,
  messagesJson: readonly Buffer[] | undefined,
): Pick<GenerationRequest, 'messagesJson' | 'toolsJson' | 'promptLists'> {
  const json = messagesJson ?? (lastMessage && messages.getJsonUpTo(lastMessage))
  const tools = (request.kind === 'chat' && request.body.tools) || []
  return {
    promptLists: prompts,
    messagesJson: json,
    // Only the text of the tools is cached, because their bytes would be a third copy of them.
    ...(tools.length > 0 && { toolsJson: encodeElements(requests.computeOnce(formatTools, tools)) }),
  }
}
