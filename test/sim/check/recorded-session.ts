/** A recorded session, and the requests and operations that its clients sent. */
import type { Model, SimEngine } from '../actors/engine.ts'
import type { Attempt, History, Operation } from '../actors/history.ts'
import { type ChatMessage, findRequestKey, getContent, type ToolCall } from '../actors/oracle.ts'
import { CUT_KINDS, type Fault } from '../faults.ts'

/** A completed run, which the checks compare with what the proxy recorded. */
export interface RunFacts {
  history: History
  engines: readonly SimEngine[]
  path: string
  faults: readonly Fault[]
  model: Model
  isTokenMode: boolean
  /** Whether responses continue in sessions that do not override it. */
  continues: boolean
}

/** An engine request that sampled a part of a turn's response. */
export interface EngineRequest {
  start: number
  end: number
  engine: string | null
  weight_version: string | null
  request_id: string
  end_reason: string
}

export interface RecordedTurn {
  turn_id: string
  index: number
  status: string
  dialect: string
  request_messages: ChatMessage[]
  params: { prompt?: string; max_tokens?: number }
  annotations: { engine_requests?: EngineRequest[] }
  prompt_token_ids: number[]
  completion_token_ids: number[]
  completion_logprobs: number[]
  completion_text: string
  tool_calls: ToolCall[]
  exact: boolean
  weight_version_start: string | null
  weight_version_end: string | null
  retry_count: number
}

export interface Row {
  prompt_ids: number[]
  response_ids: number[]
  response_mask: number[]
  response_logprobs: number[]
  exact: boolean
  turns: { turn_id: string; index: number; start: number; end: number; trained: boolean }[]
}

export interface RecordedSession {
  status: string
  reward: number | null
  turns: RecordedTurn[]
}

/** The requests and operations in one session. */
export class SessionHistory {
  readonly sessionId: string
  readonly attempts: readonly Attempt[]
  readonly operations: readonly Operation[]

  constructor(sessionId: string, { attempts, operations }: History) {
    this.sessionId = sessionId
    this.attempts = attempts.filter((attempt) => attempt.sessionId === sessionId)
    this.operations = operations.filter((operation) => operation.sessionId === sessionId)
  }

  /**
   * Returns whether the response of the attempt certainly continues after a cut.
   * @param isDefault whether responses continue in sessions that do not override it
   */
  mustContinue({ sentAtMs }: Attempt, isDefault: boolean): boolean {
    const creations = this.operations.filter(({ kind }) => kind === 'create')
    const isUnknown = creations.some((creation) => !isDone(creation) || creation.endedAtMs! > sentAtMs)
    if (isUnknown || this.#removals().length > 0) return false
    return creations[0]?.continueResponses ?? isDefault
  }

  /** Returns whether an operation may have removed the turn of the attempt. */
  mayBeRemoved({ sentAtMs }: Attempt): boolean {
    return this.#removals().some((removal) => !isDone(removal) || removal.endedAtMs! > sentAtMs)
  }

  /** Returns whether an operation has certainly removed the turn of the attempt. */
  mustBeRemoved({ endedAtMs }: Attempt): boolean {
    return this.#removals().some((removal) => isDone(removal) && removal.sentAtMs > endedAtMs!)
  }

  /** Returns whether the session had certainly ended before the attempt. */
  hadEnded({ sentAtMs }: Attempt): boolean {
    const isEnd = ({ kind }: Operation) => kind === 'complete' || kind === 'abort'
    return (
      this.#removals().length === 0 &&
      this.operations.some((end) => isEnd(end) && isDone(end) && end.endedAtMs! < sentAtMs && end.found)
    )
  }

  #removals(): Operation[] {
    return this.operations.filter(({ kind }) => kind === 'reset' || kind === 'delete')
  }
}

export function isDone({ status }: Operation): boolean {
  return status === 200
}

export function getRequestKey({ request_messages: messages, params }: RecordedTurn): string {
  return findRequestKey(messages.length > 0 ? getContent(messages.at(-1)!) : (params.prompt ?? ''))
}

export function getTokenIds({
  prompt_token_ids: prompt,
  completion_token_ids: completion,
}: RecordedTurn): number[] {
  return [...prompt, ...completion]
}

/**
 * Returns whether a continued response survives all of the faults. It may fail if engines or connections crash
 * repeatedly before it starts.
 */
export function mustSurvive(faults: readonly Fault[]): boolean {
  const crashes = faults.filter(({ kind }) => !kind.startsWith('response_'))
  return crashes.length <= 1 && faults.every(({ kind }) => (CUT_KINDS as readonly string[]).includes(kind))
}

export function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((value, index) => value === b[index])
}

export function isSameText(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b)
}
