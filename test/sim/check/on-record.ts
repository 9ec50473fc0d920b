/** The recorded turns of a session, and the responses that its clients received. */
import type { Model, SimEngine } from '../actors/engine.ts'
import type { Attempt, History, Operation } from '../actors/history.ts'
import { type Call, type ChatMessage, callIn, contentOf } from '../actors/oracle.ts'
import { CUT_KINDS, type Fault } from '../faults.ts'

export interface Checked {
  history: History
  engines: readonly SimEngine[]
  path: string
  /** The injected faults. */
  faults: readonly Fault[]
  /** The model of the engines. */
  model: Model
  isTokenMode: boolean
  /** Whether responses continue in sessions that do not override it. */
  continues: boolean
}

/** A request of which a turn's response is a part. */
export interface EngineRequest {
  start: number
  end: number
  engine: string | null
  weight_version: string | null
  request_id: string
  end_reason: string
}

export interface TurnOnRecord {
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
  tool_calls: Call[]
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

export interface SessionOnRecord {
  status: string
  reward: number | null
  turns: TurnOnRecord[]
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

  /** Returns whether the response of the attempt certainly continues. @param isDefault in sessions that do not override it */
  continues({ sentAtMs }: Attempt, isDefault: boolean): boolean {
    const creations = this.operations.filter(({ kind }) => kind === 'create')
    const isUnclear = creations.some((creation) => !isDone(creation) || creation.endedAtMs! > sentAtMs)
    if (isUnclear || this.#wipes().length > 0) return false
    return creations[0]?.continueResponses ?? isDefault
  }

  /** Returns whether an operation may have removed what the attempt recorded. */
  mayBeGone({ sentAtMs }: Attempt): boolean {
    return this.#wipes().some((wipe) => !isDone(wipe) || wipe.endedAtMs! > sentAtMs)
  }

  /** Returns whether an operation has certainly removed it. */
  mustBeGone({ endedAtMs }: Attempt): boolean {
    return this.#wipes().some((wipe) => isDone(wipe) && wipe.sentAtMs > endedAtMs!)
  }

  /** Returns whether the session had certainly ended before the attempt. */
  hadEnded({ sentAtMs }: Attempt): boolean {
    const isEnd = ({ kind }: Operation) => kind === 'complete' || kind === 'abort'
    return (
      this.#wipes().length === 0 &&
      this.operations.some((end) => isEnd(end) && isDone(end) && end.endedAtMs! < sentAtMs && end.found)
    )
  }

  #wipes(): Operation[] {
    return this.operations.filter(({ kind }) => kind === 'reset' || kind === 'delete')
  }
}

export function isDone({ status }: Operation): boolean {
  return status === 200
}

export function callOf({ request_messages: messages, params }: TurnOnRecord): string {
  return callIn(messages.length > 0 ? contentOf(messages.at(-1)!) : (params.prompt ?? ''))
}

export function pastAfter({
  prompt_token_ids: prompt,
  completion_token_ids: completion,
}: TurnOnRecord): number[] {
  return [...prompt, ...completion]
}

/**
 * Returns whether a continued response survives all of the faults: a request that engines lose repeatedly before its
 * response fails.
 */
export function areCuts(faults: readonly Fault[]): boolean {
  const losses = faults.filter(({ kind }) => !kind.startsWith('response_'))
  return losses.length <= 1 && faults.every(({ kind }) => (CUT_KINDS as readonly string[]).includes(kind))
}

export function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((value, at) => value === b[at])
}

export function isSameText(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b)
}
