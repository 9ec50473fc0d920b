/**
 * What is told of a call while it runs, for whoever writes spans of it. Without tracing there is nobody, and none of
 * these is ever made.
 */
import type { Message } from './conversation.ts'

export interface RequestTracer {
  begin(call: IncomingRequest): RequestSpan
}

/** A call of an agent, before anything has become of it. */
export interface IncomingRequest {
  readonly sessionId: string
  readonly dialect: string
  readonly method: string
  /** As the API names it: `/:sessionId/v1/chat/completions`. */
  readonly route: string
  /** As the agent asked for it, without a query. */
  readonly path: string
  readonly scheme: string
  /** The agent's headers of these names (https://www.w3.org/TR/trace-context/). */
  readonly traceparent: string | undefined
  readonly tracestate: string | undefined
  /** How long it has been here. */
  readonly ageMs: number
}

/** A call as its agent sees it. */
export interface RequestSpan {
  /** It becomes a turn, of several choices more than one. */
  turn(turn: TurnStart): TurnSpans
  /** Whose answer it gets: of its own turn, or of its first try's. */
  answeredBy(turnId: string): void
  /** It failed before an answer began. @param code of the catalogue */
  failed(code: string): void
  /** The last byte has left, or the connection is gone. */
  over(answer: { status: number; isWhole: boolean }): void
}

/** A turn as it begins. */
export interface TurnStart {
  readonly turnId: string
  readonly index: number
  /** The last of its messages; undefined: it has none. */
  readonly lastMessage: Message | undefined
  /** JSON text; null: it has none. */
  readonly tools: string | null
  /** Of a completion: texts that are its prompt's JSON when joined, but for the last character. */
  readonly promptPieces: readonly string[]
}

/** What a turn consists of. */
export interface TurnSpans {
  /** It waits for a slot of an engine or worker. */
  queued(): OpenSpan
  /** An engine or worker is asked. */
  asked(engine: EngineRequestStart): EngineRequestSpan
}

export interface EngineRequestStart {
  readonly member: string
  /** `vllm`, `sglang`, …, or `worker`. */
  readonly memberKind: string
  readonly kind: 'chat' | 'completion'
  readonly stream: boolean
  readonly body: Readonly<Record<string, unknown>>
}

export interface OpenSpan {
  /** @param thrown what it ended with, if not well. A second end changes nothing. */
  end(thrown?: unknown): void
}

export interface EngineRequestSpan extends OpenSpan {
  /** Names this span to the engine, in the header of this name. */
  readonly traceparent: string
}
