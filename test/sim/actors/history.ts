/** Requests of clients and the responses that they received: the facts against which guarantees are checked. */

import type { Dialect } from './dialects.ts'
import type { Call } from './oracle.ts'

/** One attempt of an agent's request. */
export interface Attempt {
  sessionId: string
  /** The last message of the request's prompt, which is unique. */
  call: string
  /** The turn whose completion is the last one in the prompt; undefined: a conversation begins. */
  goesOnFrom?: string | undefined
  /** Whether the agent has cut part of that turn's prompt or completion. */
  isEdited: boolean
  dialect: Dialect
  /** The attempt count that the client declares. */
  retry: number
  sentAtMs: number
  endedAtMs?: number
  /** `read`: completely. `refused`: with an error status. `broken`: it ended early. `left`: the client disconnected. */
  outcome?: 'read' | 'refused' | 'broken' | 'left'
  status?: number
  /** The turn id in the response's header. */
  turnId?: string | undefined
  text?: string
  calls?: readonly Call[]
  /** The error code of a rejection, or of an error in the stream. */
  code?: string | undefined
}

export type OperationKind = 'create' | 'reward' | 'reset' | 'delete' | 'complete' | 'abort' | 'read'

/** A trainer's operation. */
export interface Operation {
  kind: OperationKind
  sessionId: string
  sentAtMs: number
  endedAtMs?: number
  /** The HTTP status; 0: the outcome is unknown. */
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
