/** An agent's request, converted from its dialect to canonical form. */
import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'
import type { RequestSpan } from '../../../protocol/canonical/spans.ts'
import type { AgentRoleAnnotation } from '../roles/declared-role.ts'
import type { SessionReference } from '../state/live-sessions.ts'
import type { RetryInfo } from '../state/live-turn.ts'
import type { RequestLog } from './request-log.ts'

export interface AgentRequest {
  /** The session, whose reference the caller releases when the response is over. */
  session: SessionReference
  /** The name of the agent-facing route in the store. */
  dialect: string
  request: CanonicalRequest
  /** The request's messages as JSON, if their bytes are available: see {@link GenerationRequest}. */
  messagesJson?: readonly Buffer[] | undefined
  stream: boolean
  /** The request metadata that the agent declares. */
  metadata: RequestMetadata
  /** Annotations of the dialect, which are stored together with the engine's. */
  annotations?: Record<string, unknown> | undefined
  /** The choice that this turn generates; absent: the request has one choice. */
  choice?: Choice
  /** The log of the request; absent: it is not logged. */
  log?: RequestLog | undefined
  /** The span of the request, to which its turn is added; absent: it is not traced. */
  span?: RequestSpan | undefined
}

export interface RequestMetadata extends RetryInfo {
  /** The agent role, declared by a header or by the conventions of a known agent. */
  agentRole?: AgentRoleAnnotation | undefined
  /**
   * Whether the request has only a session's key. Its metadata is then ignored unless the session trusts its agents.
   */
  hasAgentKey: boolean
  /** The tag of that key; null: the key has none. Absent: the request came without a key. */
  keyTag?: string | null | undefined
}

/**
 * One of the choices of a request with `n` above 1, each of which is a separate turn. It is stored in the turn's
 * annotations.
 */
export interface Choice {
  /** The index, from 0, as on the wire. */
  readonly index: number
  /** The number of choices. */
  readonly of: number
  /** The id of the request: that of the first choice's turn, which the response also has. */
  readonly call: string
}
