/** A session as it is on record, without its turns. */
import type { SessionMarks } from './marks.ts'

/**
 * Of a call that an agent sends back otherwise than it was sampled. `keep`: it is that call all the same; `branch`: it is
 * another one; `auto`: it is the same, unless most of it was cut away.
 */
export type EditedCalls = 'auto' | 'keep' | 'branch'

export type SessionStatus = 'active' | 'completed' | 'aborted'

export interface Reward {
  reward: number
  components: Record<string, number>
  /** Rewards of single lines, which their rows have instead. Absent: none has one. */
  lines?: Record<string, number>
  /** Rewards of single turns, by their index. Absent: none has one. */
  turns?: Record<string, number>
}

/** Budgets of a session, under the names that they have on the wire; see docs/http-api.md. */
export interface SessionLimits {
  turns?: number
  sampled_tokens?: number
  prompt_tokens?: number
  seconds?: number
  /** Prompt and completion of one chat together, in token mode. */
  context_tokens?: number
  /** What the agent gets at a limit. Default: `stop`, an ordinary end. */
  at_limit?: 'stop' | 'error'
}

export interface SessionRecord {
  sessionId: string
  status: SessionStatus
  /** Milliseconds since the epoch, like every time in this file. */
  createdAtMs: number
  updatedAtMs: number
  endedAtMs: number | null
  /** Swept this long after its last change; null: never. */
  ttlMs: number | null
  metadata: Record<string, unknown>
  /** Override what the agent asks for. */
  samplingParams: Record<string, unknown>
  /** Whether an agent that has no more than the session's key is heard on its own record. */
  trustAgent: boolean
  /** What its turns are recorded with, by the names of `parseCaptureOptions`; null: what the proxy records of any. */
  record: readonly string[] | null
  /** Names of models by line, which override what the agent asks for; empty: none does. */
  policies: Record<string, string>
  /** What becomes of calls that its agent edits; null: as the proxy has it. */
  editedCalls: EditedCalls | null
  /** null: there are none. */
  limits: SessionLimits | null
  /** What its agent's key must have in it, so that the key ends with the session; null: any key of its name is good. */
  keyTag: string | null
  reward: Reward | null
  marks: SessionMarks
  /** Turns on record, whatever their status. */
  turnCount: number
  /** One more than the highest index on record. */
  nextIndex: number
  /** In flight. */
  openTurns: number
  /** `failed` or `interrupted`. */
  failedTurns: number
  /** Completed ones that cannot be trained on. */
  inexactTurns: number
  /** Of all turns together. */
  sampledTokens: number
}
