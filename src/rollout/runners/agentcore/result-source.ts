import type { AgentResult } from '../runner.ts'

/** One session of AgentCore, which runs the agent of one try. */
export interface AgentCoreSession {
  /** 33 to 256 characters, without `_`. */
  readonly id: string
  /** The try's own, by which its result is known again. */
  readonly inputId: string
  /** What the agent is given, but for what the way of its result adds. */
  readonly payload: Readonly<Record<string, unknown>>
  /** Where the agent's LLM is, for the payload. */
  readonly model: { base_url: string; api_key: string; model_id: string }
  readonly samplingParams: Readonly<Record<string, unknown>>
  /** Whether the session may have come to be; set right before it may. */
  isBegun: boolean
}

/** One way in which results come back. */
export interface ResultSource {
  /** Whether what it reads from is there. @throws ProxyError `config_invalid` */
  prepare(signal: AbortSignal): Promise<void>
  /** Starts the agent and waits for its result. @throws Refusal; `signal.reason` */
  run(session: AgentCoreSession, signal: AbortSignal): Promise<AgentResult>
  /** One look for a result when the time is up. @throws Error, also when it cannot be known */
  lastLook(session: AgentCoreSession): Promise<AgentResult | undefined>
  close(): Promise<void>
}
