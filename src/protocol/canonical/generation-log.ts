/**
 * The interface that logs the steps of a request on its way to an engine. No object is created if the log level
 * excludes such lines.
 */
export interface GenerationLog {
  /** Logs how the prompt is related to the session's turns. */
  logMatch(match: PromptMatch): void
  /** Logs that the request waits for a slot. */
  logQueued(): void
  /** Logs that the request is sent to an engine or worker. */
  logDispatched(member: string): void
  /** Logs that an engine or worker failed the request, and that another one will serve it. */
  logFailover(member: string, error: unknown): void
  /** Logs that the response continues after its engine request was cut. @param sampledTokens number of its tokens so far */
  logContinuation(error: unknown, sampledTokens: number): void
}

/** The relation of a prompt to the turns of its session. */
export interface PromptMatch {
  /** The reason in the turn's annotation `prompt`. */
  readonly reason: string
  /** The id of the turn that the request continues. */
  readonly parent: string | undefined
  /** The number of recorded tokens with which the prompt begins. */
  readonly reusedTokens: number
  /** The number of leading messages that a completed turn with the same tools also has. */
  readonly knownMessages: number
}
