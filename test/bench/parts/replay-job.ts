/** What the replaying agents are asked to do, and what they say of it. Both travel between processes. */
export const REPLAY_DIALECTS = ['chat', 'messages', 'responses'] as const
export type ReplayDialect = (typeof REPLAY_DIALECTS)[number]

/** Which sessions are replayed. */
export type Shape =
  /** Those of `data/claude-code.json`, each agent from another place of another session on. */
  | { kind: 'claude-code' }
  /** Prompts of this many tokens that grow by {@link GROWTH_TOKENS} a call, and begin anew after {@link STEPS} calls. */
  | { kind: 'steady'; promptTokens: number }
  /** The same in two conversations of one session, which take turns: a main agent and its sub-agent. */
  | { kind: 'sub-agent'; promptTokens: number }

/** The median of the real sessions. */
export const GROWTH_TOKENS = 650
export const STEPS = 60
/** Each answer is a text and one tool call, in as many chunks as tokens. */
export const ANSWER_TOKENS = 200
/** What tokenizers make of English and code. */
export const BYTES_PER_TOKEN = 4

export interface ReplayJob {
  /** `http://127.0.0.1:8080/{session}`: what stands before the dialect's own path; `{session}` may be absent. */
  baseUrl: string
  /** Instead of the dialect's own path: what passes bytes through knows one path only. */
  path?: string
  /** Added to each call's; `{session}` as in the URL. */
  headers?: Record<string, string>
  dialect: ReplayDialect
  shape: Shape
  /** Agents that call at the same time, each one call after the other. */
  concurrency: number
  durationMs: number
  /** Every agent makes one call first that is not measured, and this time goes by. `crowd`: none does, and all begin at once. */
  warmUpMs: number | 'crowd'
  /** The processes whose CPU time is to be measured. */
  watchPids: number[]
}

export interface ReplayResult {
  turns: number
  failures: number
  firstFailure: string | null
  turnsPerSecond: number
  inputTokensPerSecond: number
  p50Ms: number
  p99Ms: number
  /** Of the first call that each agent made in this job, over a connection that it had to open. */
  firstP50Ms: number
  firstP99Ms: number
  /** One figure for each watched process, all its threads. */
  cpuMsPerTurn: number[]
  /** The same of the first of them, by the names of its threads. */
  threadCpuMsPerTurn: Record<string, number>
}
