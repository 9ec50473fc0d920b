/**
 * The interface through which a request's way to an engine is logged. If no such line is written, none of these objects
 * exists.
 */
export interface GenerationLog {
  /** Logs how the prompt is related to the session's turns. */
  logMatch(match: PromptMatch): void
  /** Logs that the request waits for a slot. */
  logQueued(): void
  /** Logs that the request is sent to an engine or worker. */
  logDispatched(member: string): void
  /** Logs that an engine or worker failed the request, which another one serves. */
  logFailover(member: string, error: unknown): void
  /** Logs that the response continues after its engine request was cut. @param sampledTokens number of its tokens so far */
  logContinuation(error: unknown, sampledTokens: number): void
}

export interface PromptMatch {
  /** The reason in the turn's annotation `prompt`. */
  readonly reason: string
  /** The turn that the request continues. */
  readonly parent: string | undefined
  /** The number of recorded tokens that the prompt begins with. */
  readonly reusedTokens: number
  /** The number of leading messages that a completed turn with the same tools also has. */
  readonly knownMessages: number
}
