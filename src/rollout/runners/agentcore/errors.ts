/**
 * Classifies AgentCore's errors:
 * https://docs.aws.amazon.com/bedrock-agentcore/latest/APIReference/API_InvokeAgentRuntime.html
 */
import type { AgentResult } from '../runner.ts'
import { quote } from './result.ts'

/**
 * The kind of an error:
 * - `throttled`, `quota`, `conflict`: nothing was started; a retry may succeed.
 * - `agent`: the container, or the program in it, failed.
 * - `gone`: the session or the runtime does not exist.
 * - `refused`: nothing was started, and a retry cannot succeed: the key, the role or the request is invalid.
 * - `lost`: it is unknown whether the call arrived.
 */
export type AgentCoreErrorKind = 'throttled' | 'quota' | 'conflict' | 'agent' | 'gone' | 'refused' | 'lost'

const KINDS: Readonly<Record<string, AgentCoreErrorKind>> = {
  ThrottlingException: 'throttled',
  ThrottledException: 'throttled',
  TooManyRequestsException: 'throttled',
  ServiceQuotaExceededException: 'quota',
  RetryableConflictException: 'conflict',
  ConflictException: 'conflict',
  RuntimeClientError: 'agent',
  ResourceNotFoundException: 'gone',
}

const MESSAGES: Readonly<Record<AgentCoreErrorKind, string>> = {
  throttled: 'AgentCore throttled every attempt to invoke the session',
  quota: 'the quota of the account allows no further AgentCore session',
  conflict: 'the AgentCore session was busy with another invocation',
  agent: 'the AgentCore container failed',
  gone: 'the AgentCore runtime or session does not exist',
  refused: 'AgentCore rejected the call',
  lost: 'it is unknown whether the AgentCore session was started',
}

export class AgentCoreError extends Error {
  override readonly name = 'AgentCoreError'
  readonly kind: AgentCoreErrorKind

  constructor(kind: AgentCoreErrorKind, detail: string, options: ErrorOptions = {}) {
    super(`${MESSAGES[kind]}: ${quote(detail)}`, options)
    this.kind = kind
  }

  /** Whether a call that starts a session failed without starting anything. */
  get isBeforeStart(): boolean {
    return this.kind !== 'agent' && this.kind !== 'lost'
  }

  /** The outcome of a sample whose session failed with this error. */
  get result(): AgentResult {
    const status = this.kind === 'agent' ? 'failed' : 'error'
    return { status, rewards: {}, error: this.message }
  }
}

interface ServiceError {
  name: string
  message: string
  $fault?: 'client' | 'server'
  $metadata?: { httpStatusCode?: number }
}

/** Classifies an error. @param error an error thrown by a client of the SDK */
export function toAgentCoreError(error: unknown): AgentCoreError {
  if (error instanceof AgentCoreError) return error
  const { name, message, $fault, $metadata } = error as ServiceError
  const detail = `${name}: ${message}`
  return new AgentCoreError(KINDS[name] ?? getErrorKind($fault, $metadata?.httpStatusCode), detail, {
    cause: error,
  })
}

function getErrorKind(fault: ServiceError['$fault'], status: number | undefined): AgentCoreErrorKind {
  if (status === 429) return 'throttled'
  return fault === 'client' && status !== undefined && status >= 400 && status < 500 ? 'refused' : 'lost'
}
