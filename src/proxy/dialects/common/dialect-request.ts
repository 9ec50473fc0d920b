import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'

/** What an agent asked to see beyond the text. The recording never depends on it. */
export interface ResponseOptions {
  logprobs: boolean
  tokenIds: boolean
  /** Whether the model's reasoning is shown beside its answer. */
  reasoning: boolean
  /** Whether reasoning that is not shown goes out sealed, so that it can come back with the next call. */
  sealedReasoning?: boolean
  /** Whether a stream ends with a usage chunk. */
  streamUsage: boolean
}

/** An agent's request in canonical form. */
export type DialectRequest = CanonicalRequest & {
  stream: boolean
  answerOptions: ResponseOptions
  /** How many answers it wants, where that is more than one. */
  choices?: number
  /** What of the agent's request no engine gets, for the record of the turn. */
  annotations?: Record<string, unknown>
}

/** What names an answer on the wire. */
export interface ResponseIdentity {
  /** The turn's id; each dialect puts its own prefix before it. */
  turnId: string
  /** Seconds since the epoch. */
  createdS: number
  /** Likewise; undefined until the end is on record. */
  readonly endedS?: number | undefined
  /** As the agent asked for it; the engine's own name replaces it once known. */
  model: string
  /** Which of the call's answers, from 0. Absent: it is the only one, and the stream ends with it. */
  choice?: number
}
