/** The load generator's job and its result. Both are sent between processes. */
import type { Spread } from './statistics.ts'

export interface LoadJob {
  /** `http://127.0.0.1:8080/{session}/v1/chat/completions`; `{session}` is replaced by each agent's session. */
  url: string
  /** Headers of each request; `{session}` as in the URL. */
  headers?: Record<string, string>
  /** The approximate size of a session's first request body. */
  bodyBytes: number
  /** The user's part of the conversation's growth per request; 0: only its last message changes. */
  growthBytes: number
  stream: boolean
  /** Tokens of each completion. */
  maxTokens: number
  /** Concurrent agents, each with sequential requests. */
  concurrency: number
  /** The load ends after this time or this many requests, whichever comes first. */
  durationMs: number
  maxRequests?: number
  warmUpMs: number
  /** Requests of a rollout; then the agent begins a new session. */
  requestsPerSession: number
  /** Receives a POST for each completed session, as a trainer sends it: `http://…/sessions/{session}/complete`. */
  completeUrl?: string
  /** The process whose CPU time is measured. */
  watchPid?: number
}

export interface LoadResult {
  /** Requests. `--json` files have these names. */
  requests: number
  /** Requests without a complete response with status 200. */
  failures: number
  firstFailure: string | null
  seconds: number
  requestsPerSecond: number
  tokensPerSecond: number
  p50Ms: number
  p99Ms: number
  /** The time to the first byte of the response's body. */
  firstByteP50Ms: number
  /** CPU time of the watched process, all its threads. */
  cpuMsPerRequest: number
  cpuSeconds: number
}

/** The figures of one target and one load, over all rounds. */
export type LoadFigures = {
  [F in
    | 'requestsPerSecond'
    | 'tokensPerSecond'
    | 'p50Ms'
    | 'p99Ms'
    | 'firstByteP50Ms'
    | 'cpuMsPerRequest']: Spread
}
