/** The request of an agent, converted from its dialect to canonical form. */
import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'
import type { RequestSpan } from '../../../protocol/canonical/spans.ts'
import type { AgentRoleAnnotation } from '../roles/declared-role.ts'
import type { SessionReference } from '../state/live-sessions.ts'
import type { RetryInfo } from '../state/live-turn.ts'
import type { RequestLog } from './request-log.ts'

/** The canonical request with its session and metadata. */
export interface AgentRequest {
  /** A reference to the session, which the caller disposes when the response has ended. */
  session: SessionReference
  /** The name of the agent-facing route, as it is recorded. */
  dialect: string
  request: CanonicalRequest
  /** The JSON of the messages, if their original bytes are available: see {@link GenerationRequest}. */
  messagesJson?: readonly Buffer[] | undefined
  stream: boolean
  /** The request metadata that the agent declares. */
  metadata: RequestMetadata
  /** The annotations of the dialect, which are recorded with the turn. */
  annotations?: Record<string, unknown> | undefined
  /** The choice that the turn generates. Absent: the request has one choice. */
  choice?: Choice
  /** The log of the request. Absent: it is not logged. */
  log?: RequestLog | undefined
  /** The trace span of the request, to which the turn is added. Absent: the request is not traced. */
  span?: RequestSpan | undefined
}

/** The declarations of a client about its request. */
export interface RequestMetadata extends RetryInfo {
  /** The agent role that a header or the convention of a known agent declares. */
  agentRole?: AgentRoleAnnotation | undefined
  /**
   * Whether the request has the key of a session, and no other. Its metadata is then ignored unless the session trusts
   * its agents.
   */
  hasAgentKey: boolean
  /** The tag of the session key; null: the key has none. Absent: the request has no session key. */
  keyTag?: string | null | undefined
}

/**
 * One of the choices of a request with `n` above 1. Each choice is a separate turn, in whose annotations this is
 * recorded.
 */
export interface Choice {
  /** The index of the choice, from 0, as on the wire. */
  readonly index: number
  /** The number of choices. */
  readonly of: number
  /** The id of the request, which is the turn id of the first choice and the id of the response. */
  readonly call: string
}
