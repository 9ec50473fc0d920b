/** The interface through which a request reports its progress to tracing. No object is created without tracing. */
import type { Message } from './conversation.ts'

export interface RequestTracer {
  begin(request: IncomingRequest): RequestSpan
}

/** A request of an agent on arrival. */
export interface IncomingRequest {
  readonly sessionId: string
  readonly dialect: string
  readonly method: string
  /** The route as the API names it: `/:sessionId/v1/chat/completions`. */
  readonly route: string
  /** The requested path, without a query. */
  readonly path: string
  readonly scheme: string
  /** The agent's headers of these names (https://www.w3.org/TR/trace-context/). */
  readonly traceparent: string | undefined
  readonly tracestate: string | undefined
  /** The time since its arrival. */
  readonly ageMs: number
}

/** The span of a request, from its arrival until its last byte was sent. */
export interface RequestSpan {
  /** Reports a turn of the request; a request with several choices has one for each. */
  startTurn(turn: TurnStart): TurnSpans
  /** Reports the turn whose response the request receives: a new one, or that of its original attempt. */
  reportTurn(turnId: string): void
  /** Reports a failure before a response began. @param code of the error catalogue */
  reportFailure(code: string): void
  /** Reports that the last byte was sent, or that the connection closed. */
  reportEnd(response: { status: number; isComplete: boolean }): void
}

/** The start of a turn. */
export interface TurnStart {
  readonly turnId: string
  readonly index: number
  /** The last of its messages; undefined: there are none. */
  readonly lastMessage: Message | undefined
  /** JSON text; null: there are none. */
  readonly tools: string | null
  /** For a completion: the prompt's JSON in chunks, without its last character. */
  readonly promptPieces: readonly string[]
}

/** The spans of a turn. */
export interface TurnSpans {
  /** Begins the wait for a slot of an engine or worker. */
  startWait(): OpenSpan
  /** Begins a request to an engine or worker. */
  startEngineRequest(engine: EngineRequestStart): EngineRequestSpan
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
  /** Ends the span. @param thrown the error that it ended with, if any. A second end has no effect. */
  end(thrown?: unknown): void
}

export interface EngineRequestSpan extends OpenSpan {
  /** The value of the header `traceparent`, which identifies this span to the engine. */
  readonly traceparent: string
}
