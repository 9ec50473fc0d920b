import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'

/** The parts of a response, beyond the text, that an agent requested. The recorded turn does not depend on them. */
export interface ResponseOptions {
  logprobs: boolean
  tokenIds: boolean
  /** Whether the response shows the model's reasoning. */
  reasoning: boolean
  /**
   * Whether reasoning that is not shown is sent in sealed form (`sealed-reasoning.ts`), so that the next request can
   * return it.
   */
  sealedReasoning?: boolean
  /** Whether a stream ends with a usage chunk. */
  streamUsage: boolean
}

/** An agent's request in canonical form. */
export type DialectRequest = CanonicalRequest & {
  stream: boolean
  responseOptions: ResponseOptions
  /** The number of requested completions, if more than one. */
  choices?: number
  /** The parts of the request that no engine receives, to be recorded with the turn. */
  annotations?: Record<string, unknown>
}

/** The fields that identify a response on the wire. */
export interface ResponseIdentity {
  /** The turn's id; each dialect adds its prefix. */
  turnId: string
  /** The start of the turn, in seconds since the epoch. */
  createdS: number
  /** The end of the turn, in seconds since the epoch; undefined until it is committed. */
  readonly endedS?: number | undefined
  /** The model that the agent requested. Responses contain the engine's name of the model instead, once it is known. */
  model: string
  /** The index of the choice, from 0. If absent, the choice is the only one, and the stream ends with it. */
  choice?: number
}
