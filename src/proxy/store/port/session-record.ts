/** A stored session without its turns. */
import type { SessionMarks } from './marks.ts'

/**
 * The policy for a tool call that an agent echoes in altered form. `keep`: it counts as the same tool call; `branch`:
 * as another one; `auto`: as the same one, unless most of it was removed.
 */
export type ToolCallRewritePolicy = 'auto' | 'keep' | 'branch'

export type SessionStatus = 'active' | 'completed' | 'aborted'

/** A reward with its components. */
export interface Reward {
  reward: number
  components: Record<string, number>
  /**
   * The rewards of agent roles, which replace the reward of the session in rows of the role. Absent: no role has one.
   */
  lines?: Record<string, number>
  /** The rewards of turns, by turn index. Absent: no turn has one. */
  turns?: Record<string, number>
}

/** The budgets of a session, with the names of the wire; see docs/http-api.md. */
export interface SessionLimits {
  turns?: number
  sampled_tokens?: number
  prompt_tokens?: number
  seconds?: number
  /** The limit on prompt and completion of one chat request together, in token mode. */
  context_tokens?: number
  /** The response to the agent at a limit. Default: `stop`, an ordinary end. */
  at_limit?: 'stop' | 'error'
}

export interface SessionRecord {
  sessionId: string
  status: SessionStatus
  /** Milliseconds since the epoch, like every time in this file. */
  createdAtMs: number
  updatedAtMs: number
  endedAtMs: number | null
  /** The session is removed this long after its last change; null: never. */
  ttlMs: number | null
  metadata: Record<string, unknown>
  /** Parameters that override those of the agent: a JSON object, with numbers in the notation of the trainer. */
  samplingParams: string
  /** Whether request metadata sent with the session key (agent role, retry count) is trusted. */
  trustAgent: boolean
  /** The capture options of its turns, by the names of `parseCaptureOptions`; null: those of the proxy. */
  record: readonly string[] | null
  /** Model names by agent role, which override the model that the agent requests; empty: none. */
  policies: Record<string, string>
  /** The policy for altered tool calls; null: that of the proxy. */
  editedCalls: ToolCallRewritePolicy | null
  /** Whether a response continues after its engine request was interrupted; null: as the proxy is configured. */
  continueResponses: boolean | null
  /** null: none. */
  limits: SessionLimits | null
  /**
   * A tag that the agent's key must contain, so that the key expires with the session; null: any key for the session's
   * id is valid.
   */
  keyTag: string | null
  reward: Reward | null
  marks: SessionMarks
  /** The number of stored turns of any status. */
  turnCount: number
  /** One more than the highest stored turn index. */
  nextIndex: number
  /** The number of turns in flight. */
  openTurns: number
  /** The number of turns that are `failed` or `interrupted`. */
  failedTurns: number
  /** The number of completed turns that cannot be trained on. */
  inexactTurns: number
  /** The total number of sampled tokens of all turns. */
  sampledTokens: number
}
