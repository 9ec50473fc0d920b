/** The requests of clients and the responses that they received, against which guarantees are checked. */
import type { Dialect } from './dialects.ts'
import type { ToolCall } from './oracle.ts'

/** One attempt of an agent's request. */
export interface Attempt {
  sessionId: string
  /** Identifies the request: a unique text in the last message of its prompt. */
  requestKey: string
  /** The turn whose completion is the last one in the prompt; undefined at the start of a conversation. */
  continuedTurnId?: string | undefined
  /** Whether the agent has cut part of that turn's prompt or completion. */
  isEdited: boolean
  dialect: Dialect
  /** The attempt count that the client declares. */
  retry: number
  sentAtMs: number
  endedAtMs?: number
  /**
   * `read`: the client received a complete response. `rejected`: an error status. `broken`: the response ended early.
   * `disconnected`: the client disconnected.
   */
  outcome?: 'read' | 'rejected' | 'broken' | 'disconnected'
  status?: number
  /** The turn id in the response's header. */
  turnId?: string | undefined
  text?: string
  toolCalls?: readonly ToolCall[]
  /** The error code of a rejected request, or of an error in the stream. */
  code?: string | undefined
}

export type OperationKind = 'create' | 'reward' | 'reset' | 'delete' | 'complete' | 'abort' | 'read'

/** A trainer's operation. */
export interface Operation {
  kind: OperationKind
  sessionId: string
  sentAtMs: number
  endedAtMs?: number
  /** The HTTP status; 0 if the outcome is unknown. */
  status?: number
  reward?: number
  /** The value of `continue_responses` that a session is created with. */
  continueResponses?: boolean | undefined
  /** Whether the session existed. */
  found?: boolean
}

export class History {
  readonly attempts: Attempt[] = []
  readonly operations: Operation[] = []
}
