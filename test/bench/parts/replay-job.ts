/** The job of the replaying agents and its result. Both are sent between processes. */
export const REPLAY_DIALECTS = ['chat', 'messages', 'responses'] as const
export type ReplayDialect = (typeof REPLAY_DIALECTS)[number]

export const REPLAY_PATHS: Readonly<Record<ReplayDialect, string>> = {
  chat: '/v1/chat/completions',
  messages: '/v1/messages',
  responses: '/v1/responses',
}

/** The sessions that are replayed. */
export type Shape =
  /** The sessions of `data/claude-code.json`; each agent begins in a different session, at a different position. */
  | { kind: 'claude-code' }
  /**
   * Prompts of this many tokens that grow by {@link GROWTH_TOKENS} per request, and restart after {@link STEPS}
   * requests.
   */
  | { kind: 'steady'; promptTokens: number }
  /** The same in two alternating conversations of one session: a main agent and its sub-agent. */
  | { kind: 'sub-agent'; promptTokens: number }

/** The median of the real sessions. */
export const GROWTH_TOKENS = 650
export const STEPS = 60
/** The tokens of each completion, a text and one tool call, in as many chunks. */
export const COMPLETION_TOKENS = 200
/** The ratio of tokenizers for English and code. */
export const BYTES_PER_TOKEN = 4

export interface ReplayJob {
  /** The prefix of the dialect's path: `http://127.0.0.1:8080/{session}`; `{session}` may be absent. */
  baseUrl: string
  /** Replaces the dialect's path: pass-throughs have only one. */
  path?: string
  /** Headers of each request; `{session}` as in the URL. */
  headers?: Record<string, string>
  dialect: ReplayDialect
  shape: Shape
  /** Concurrent agents, each with sequential requests. */
  concurrency: number
  durationMs: number
  /**
   * The time to warm up, in which each agent sends at least one request. `crowd`: none, so that all begin at once.
   */
  warmUpMs: number | 'crowd'
  /** The processes whose CPU time is measured. */
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
  /** The first request of each agent in this job, over a new connection. */
  firstP50Ms: number
  firstP99Ms: number
  /** One figure for each watched process, all its threads. */
  cpuMsPerTurn: number[]
  /** The CPU time of the first process, by the names of its threads. */
  threadCpuMsPerTurn: Record<string, number>
}
