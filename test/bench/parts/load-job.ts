/** What the load generator is asked to do, and what it says of it. Both travel between processes. */
import type { Spread } from './statistics.ts'

export interface LoadJob {
  /** `http://127.0.0.1:8080/{session}/v1/chat/completions`; each agent's session takes the place of `{session}`. */
  url: string
  /** Added to each call's; `{session}` as in the URL. */
  headers?: Record<string, string>
  /** Size of a session's first request body, about. */
  bodyBytes: number
  /** The user's part of what the conversation grows by from call to call; 0: only its last message changes. */
  growthBytes: number
  stream: boolean
  /** Tokens of each answer. */
  maxTokens: number
  /** Agents that call at the same time, each one call after the other. */
  concurrency: number
  /** Ends after this long, or after this many calls, whatever comes first. */
  durationMs: number
  maxCalls?: number
  warmUpMs: number
  /** A rollout has this many calls; then the agent begins a new session. */
  callsPerSession: number
  /** To be sent a POST with each session that is over, as a trainer does: `http://…/sessions/{session}/complete`. */
  completeUrl?: string
  /** The process whose CPU time is to be measured. */
  watchPid?: number
}

export interface LoadResult {
  calls: number
  /** Calls that were not answered in full with status 200. */
  failures: number
  firstFailure: string | null
  seconds: number
  callsPerSecond: number
  tokensPerSecond: number
  p50Ms: number
  p99Ms: number
  /** To the first byte of the answer's body. */
  firstByteP50Ms: number
  /** Of the watched process, all its threads. */
  cpuMsPerCall: number
  cpuSeconds: number
}

/** One target, one load, all rounds. */
export type LoadFigures = {
  [F in 'callsPerSecond' | 'tokensPerSecond' | 'p50Ms' | 'p99Ms' | 'firstByteP50Ms' | 'cpuMsPerCall']: Spread
}
