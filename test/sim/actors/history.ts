/** What clients have asked and what they were told: all that a promise can be held against. */

import type { Dialect } from './dialects.ts'
import type { Call } from './oracle.ts'

/** One try of an agent's call. */
export interface Attempt {
  sessionId: string
  /** The last message of the call's prompt: no other call has it. */
  call: string
  /** The turn whose answer is the last one in the prompt; undefined: a conversation begins. */
  goesOnFrom?: string | undefined
  /** Of what that one's prompt or answer says, the agent has cut something. */
  isEdited: boolean
  dialect: Dialect
  /** The client says that it tried this before. */
  retry: number
  sentAtMs: number
  endedAtMs?: number
  /** `read`: to its end. `refused`: with a status that says why. `broken`: it ended early. `left`: the client did. */
  outcome?: 'read' | 'refused' | 'broken' | 'left'
  status?: number
  /** The turn, as the head of the answer names it. */
  turnId?: string | undefined
  text?: string
  calls?: readonly Call[]
  /** Of a refusal, or of an error in the stream. */
  code?: string | undefined
}

export type OperationKind = 'create' | 'reward' | 'reset' | 'delete' | 'complete' | 'abort' | 'read'

/** Something that a trainer asked for. */
export interface Operation {
  kind: OperationKind
  sessionId: string
  sentAtMs: number
  endedAtMs?: number
  /** 0: nobody knows what came of it. */
  status?: number
  reward?: number
  /** There was such a session. */
  found?: boolean
}

export class History {
  readonly attempts: Attempt[] = []
  readonly operations: Operation[] = []
}
