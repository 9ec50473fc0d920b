import type { AgentResult } from '../runner.ts'

/** An AgentCore session, which runs the agent of one attempt. */
export interface AgentCoreSession {
  /** 33 to 256 characters, without `_`. */
  readonly id: string
  /** An id unique to the attempt, which identifies its result. */
  readonly inputId: string
  /** The agent's payload, without the fields that the result source adds. */
  readonly payload: Readonly<Record<string, unknown>>
  /** The agent's LLM endpoint, for the payload. */
  readonly model: { base_url: string; api_key: string; model_id: string }
  readonly samplingParams: Readonly<Record<string, unknown>>
  /** Whether the session may have been created; set right before the call that creates it. */
  mayExist: boolean
}

/** A way to start agents and receive their results. */
export interface ResultSource {
  /** Checks that the source of results is accessible. @throws ProxyError `config_invalid` */
  prepare(signal: AbortSignal): Promise<void>
  /** Starts the agent and waits for its result. @throws AgentCoreError; `signal.reason` */
  run(session: AgentCoreSession, signal: AbortSignal): Promise<AgentResult>
  /**
   * Checks once for a result, after the time limit.
   * @returns undefined if there is none
   * @throws Error if that is unknown
   */
  checkOnce(session: AgentCoreSession): Promise<AgentResult | undefined>
  close(): Promise<void>
}
