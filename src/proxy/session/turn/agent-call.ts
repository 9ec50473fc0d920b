/** An agent's call, and the turn that it becomes. */

import { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationStream } from '../../../protocol/canonical/events.ts'
import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'
import type { CallSpan } from '../../../protocol/canonical/spans.ts'
import type { LineOnRecord } from '../roles/stated-line.ts'
import type { Choice } from './choice.ts'
import type { TryWord } from './retries/first-try.ts'

/** An agent's call, lowered from its dialect. */
export interface AgentCall {
  sessionId: string
  /** The agent-facing route, for the record. */
  dialect: string
  request: CanonicalRequest
  /** The request's messages as JSON, where their bytes are at hand: see {@link GenerationRequest}. */
  messagesJson?: readonly Buffer[]
  stream: boolean
  /** What the agent says of its own record. */
  word: AgentWord
  /** What else its dialect has to say for the record; the engine's own annotations are put beside it. */
  annotations?: Record<string, unknown>
  /** Which of the answers to one request this is; absent: the only one. */
  choice?: Choice
  /** Is told of the turn that the call becomes; absent: nobody traces it. */
  span?: CallSpan
}

export interface AgentWord extends TryWord {
  /** What the call is for, as it says by a header or in the words of an agent that is known. */
  line?: LineOnRecord
  /** Whoever has no more than the session's key is heard only where the session's creator trusts it. */
  hasAgentKey: boolean
  /** The tag of that key; null: it has none. Absent: the call came without one. */
  keyTag?: string | null
}

export interface Turn {
  readonly turnId: string
  readonly startedAtMs: number
  /** As it is on record; undefined until then. */
  readonly endedAtMs?: number | undefined
  /** To be read once, to its end or to its error; leaving early aborts the turn. `end` comes after the commit. */
  readonly events: GenerationStream
  /** What `events` has brought so far. */
  readonly completion: Completion
  /** Aborts when the turn is cancelled, so that whoever hands `events` on stops waiting and pulls once more. */
  readonly signal: AbortSignal
  /** The end of the answer may leave: it is on disk. */
  readonly isWhole: boolean
  /**
   * The answer was committed, and then could not be handed to the agent: it must not be trained on. Of a turn that is
   * not `completed` nothing changes, and a second time nothing either.
   * @param why default: the agent left
   */
  undelivered(why?: ProxyError): Promise<void>
}

/** Why a turn ends whose reader left before the end. */
export function agentLeft(): ProxyError {
  return new ProxyError('agent_gone', 'The agent left before its answer was whole')
}
