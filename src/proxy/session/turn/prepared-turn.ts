/** Serializes a request and applies its session's config: what is requested of an engine, and what is recorded. */
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

/** A turn that is ready for dispatch; passed down as it is. */
export interface PreparedTurn {
  /** The turn's index and state in the session. */
  readonly allocation: TurnAllocation
  /** The turn as it is recorded at its start. */
  readonly open: OpenTurn
  readonly retryInfo: RetryInfo
  /** The log of the turn; undefined: it is not logged. */
  readonly log: TurnLog | undefined
  /** Annotations for the store, written when the turn is closed. */
  readonly annotations: Record<string, unknown>
  /** The request to the engine. */
  readonly generation: GenerationRequest
}

/** The settings of the proxy that apply to all turns. */
interface TurnSettings {
  /** A model name that replaces the requested one, if the session declares none. */
  readonly model: string | undefined
  /** The captured data besides ids and logprobs, unless the session configures it. */
  readonly record: CaptureOptions
  readonly startedAtMs: number
}

/**
 * Applies a session's config to a request.
 * @param model replaces the requested model, if the session declares none
 * @returns the request, the agent role that the agent declares if it is trusted, and the session's model for that role
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
 * Prepares a turn: its record, and its request to the engine.
 * @param written the serialized request
 * @param allocation the turn's index and state in the session
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
    // The session's sampling parameters are included: the store keeps what was requested of the engine.
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
    // The session determines the model, so only engines that serve it may be used.
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
 * @param model replaces the requested model
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
function getChoiceRequest(
  request: CanonicalRequest,
  choice: Choice | undefined,
): { request: CanonicalRequest; recorded: CanonicalRequest } {
  if (choice === undefined) return { request, recorded: request }
  const seed = readInteger(request.body.seed)
  // Engines treat -1 as no seed.
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

export type RequestTexts = Pick<OpenTurn, 'lastMessage' | 'tools' | 'params' | 'promptPieces'>

/**
 * Serializes a request. Only the parts that the session's earlier requests did not contain are converted to JSON.
 * @throws ProxyError `invalid_request` for nesting that JSON cannot represent
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

/** Returns the body without the parts that are stored separately. */
export function toParamsText({ body }: CanonicalRequest): string {
  const { messages: _messages, tools: _tools, prompt: _prompt, ...params } = body
  return JSON.stringify(params)
}

/**
 * Returns the parts of a request that exist as JSON, or are serialized once for all requests of the session.
 * @param messagesJson the original bytes of the messages
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
    // The bytes are encoded again each time, because caching them would keep a third copy of the tools.
    ...(tools.length > 0 && { toolsJson: encodeElements(requests.computeOnce(formatTools, tools)) }),
  }
}
