/** An agent's call, lowered from its dialect. */
import { ProxyError } from '../../../base/errors.ts'
import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'
import type { RequestSpan } from '../../../protocol/canonical/spans.ts'
import type { AgentRoleAnnotation } from '../roles/declared-role.ts'
import type { TryWord } from '../state/live-turn.ts'

export interface AgentCall {
  sessionId: string
  /** The agent-facing route, for the record. */
  dialect: string
  request: CanonicalRequest
  /** The request's messages as JSON, where their bytes are at hand: see {@link GenerationRequest}. */
  messagesJson?: readonly Buffer[] | undefined
  stream: boolean
  /** What the agent says of its own record. */
  word: AgentWord
  /** What else its dialect has to say for the record; the engine's own annotations are put beside it. */
  annotations?: Record<string, unknown> | undefined
  /** Which of the answers to one request this is; absent: the only one. */
  choice?: Choice
  /** Is told of the turn that the call becomes; absent: nobody traces it. */
  span?: RequestSpan | undefined
}

export interface AgentWord extends TryWord {
  /** What the call is for, as it says by a header or in the words of an agent that is known. */
  line?: AgentRoleAnnotation | undefined
  /** Whoever has no more than the session's key is heard only where the session's creator trusts it. */
  hasAgentKey: boolean
  /** The tag of that key; null: it has none. Absent: the call came without one. */
  keyTag?: string | null | undefined
}

/**
 * One of the answers to a request that asks for several (`n` above 1): a turn of its own. As it stands in the turn's
 * annotations.
 */
export interface Choice {
  /** From 0, as on the wire. */
  readonly index: number
  /** How many there are. */
  readonly of: number
  /** Names the call: the id of the turn of the first choice, which the answer has as its own. */
  readonly call: string
}

/** Why a turn ends whose reader left before the end. */
export function agentLeft(): ProxyError {
  return new ProxyError('agent_gone', 'The agent left before its answer was whole')
}
