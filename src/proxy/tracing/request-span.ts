import {
  type Attributes,
  type Context,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  type Tracer,
  trace,
} from '@opentelemetry/api'
import { W3CTraceContextPropagator } from '@opentelemetry/core'
import type {
  EngineRequestSpan,
  EngineRequestStart,
  IncomingRequest,
  OpenSpan,
  RequestSpan,
  TurnSpans,
  TurnStart,
} from '../../protocol/canonical/spans.ts'
import type { TurnOutcome } from '../store/port/turn-store.ts'
import {
  getEngineAttributes,
  getErrorType,
  getRequestAttributes,
  getResponseAttributes,
  getSpanName,
  getTurnAttributes,
} from './attributes.ts'
import { buildInputAttributes, buildOutputAttributes } from './content.ts'
import type { TraceIdGenerator } from './trace-ids.ts'

/** The tracer, the id generator and the settings that all request spans share. */
export interface SpanDependencies {
  readonly tracer: Tracer
  readonly ids: TraceIdGenerator
  /** The maximum length of prompt or completion text on a span, in characters; undefined: spans contain no text. */
  readonly contentChars: number | undefined
}

/** Open turns by turn id. */
export type OpenTurns = Map<string, OtlpTurnSpan>

/** Reads the trace context from the headers `traceparent` and `tracestate`; an agent's `baggage` is ignored. */
const propagator = new W3CTraceContextPropagator()
const headerGetter = {
  get: ({ traceparent, tracestate }: IncomingRequest, key: string) =>
    key === 'traceparent' ? traceparent : tracestate,
  keys: () => ['traceparent', 'tracestate'],
}

/** The values that all spans of a request share. */
interface SpanParts {
  readonly call: IncomingRequest
  readonly tracer: Tracer
  readonly contentChars: number | undefined
  /** The context with the request's span, the parent of the others. */
  readonly context: Context
  /** Returns milliseconds since the epoch by a monotonic clock, so that the spans of a request are consistent. */
  nowMs(): number
}

/** The span of an agent's request. */
export class OtlpRequestSpan implements RequestSpan {
  readonly #parts: SpanParts
  readonly #span: Span
  readonly #turns: OpenTurns
  #open = 0
  #endedAtMs: number | undefined

  constructor(call: IncomingRequest, { tracer, ids, contentChars }: SpanDependencies, turns: OpenTurns) {
    const offsetMs = Date.now() - performance.now()
    const nowMs = () => offsetMs + performance.now()
    const parent = propagator.extract(ROOT_CONTEXT, call, headerGetter)
    const options = {
      kind: SpanKind.SERVER,
      startTime: nowMs() - call.ageMs,
      attributes: getRequestAttributes(call),
    }
    this.#span = ids.runInTrace(call.sessionId, () =>
      tracer.startSpan(`${call.method} ${call.route}`, options, parent),
    )
    this.#parts = { call, tracer, contentChars, nowMs, context: trace.setSpan(parent, this.#span) }
    this.#turns = turns
  }

  startTurn(begun: TurnStart): TurnSpans {
    const { turnId, index } = begun
    this.#open += 1
    const closed = (outcome: TurnOutcome) => {
      this.#open -= 1
      // The request's span has the attributes of the choice that ends last; those of each choice are on its engine
      // span.
      if (this.#open === 0) this.#span.setAttributes(getTurnAttributes(outcome, index))
      if (outcome.status === 'failed') this.#span.setStatus({ code: SpanStatusCode.ERROR })
      this.#end()
    }
    const turn = new OtlpTurnSpan(this.#parts, begun, closed)
    this.#turns.set(turnId, turn)
    return turn
  }

  reportTurn(turnId: string): void {
    this.#span.setAttribute('llm_proxy.turn.id', turnId)
  }

  reportFailure(code: string): void {
    this.#span.setAttribute('error.type', code)
  }

  reportEnd({ status, isComplete }: { status: number; isComplete: boolean }): void {
    this.#endedAtMs ??= this.#parts.nowMs()
    this.#span.setAttribute('http.response.status_code', status)
    if (!isComplete) this.#span.setAttribute('error.type', 'agent_gone')
    if (status >= 500) this.#span.setStatus({ code: SpanStatusCode.ERROR })
    this.#end()
  }

  /**
   * Ends the span once all turns have closed: a turn may continue, and set attributes, after its agent disconnected.
   */
  #end(): void {
    if (this.#endedAtMs !== undefined && this.#open === 0) this.#span.end(this.#endedAtMs)
  }
}

/** The spans of one turn. */
class OtlpTurnSpan implements TurnSpans {
  readonly #parts: SpanParts
  readonly #begun: TurnStart
  readonly #closed: (outcome: TurnOutcome) => void
  /** The spans of engine requests, which end with the turn, because their attributes include its outcome. */
  readonly #engineSpans: OtlpEngineSpan[] = []

  constructor(parts: SpanParts, begun: TurnStart, closed: (outcome: TurnOutcome) => void) {
    this.#parts = parts
    this.#begun = begun
    this.#closed = closed
  }

  startWait(): OpenSpan {
    return new OtlpStepSpan(this.#parts, 'queue')
  }

  startEngineRequest(engine: EngineRequestStart): EngineRequestSpan {
    const span = new OtlpEngineSpan(this.#parts, engine)
    this.#engineSpans.push(span)
    return span
  }

  /** Ends the spans of engine requests, and starts the span of the commit. */
  startCommit(outcome: TurnOutcome): OpenSpan {
    const turn = getTurnAttributes(outcome, this.#begun.index)
    const content = this.#content(outcome)
    for (const span of this.#engineSpans) span.close(outcome, turn, content)
    this.#closed(outcome)
    return new OtlpStepSpan(this.#parts, 'commit')
  }

  #content(outcome: TurnOutcome): Attributes {
    const { contentChars } = this.#parts
    if (contentChars === undefined) return {}
    return {
      ...buildInputAttributes(this.#begun, contentChars),
      ...buildOutputAttributes(outcome, contentChars),
    }
  }
}

/** The span of a step inside the proxy: the queue wait or the commit. */
class OtlpStepSpan implements OpenSpan {
  readonly #span: Span
  readonly #nowMs: () => number

  constructor({ tracer, context, nowMs }: SpanParts, name: string) {
    this.#nowMs = nowMs
    this.#span = tracer.startSpan(name, { startTime: nowMs() }, context)
  }

  end(thrown?: unknown): void {
    if (thrown !== undefined) markFailed(this.#span, thrown)
    this.#span.end(this.#nowMs())
  }
}

/** The span of one engine request. */
class OtlpEngineSpan implements EngineRequestSpan {
  readonly traceparent: string
  readonly #span: Span
  readonly #nowMs: () => number
  readonly #requestedAtMs: number
  #endedAtMs: number | undefined
  #hasFailed = false

  constructor({ call, tracer, context, nowMs }: SpanParts, engine: EngineRequestStart) {
    this.#nowMs = nowMs
    this.#requestedAtMs = nowMs()
    this.#span = tracer.startSpan(
      getSpanName(engine),
      {
        kind: SpanKind.CLIENT,
        startTime: this.#requestedAtMs,
        attributes: getEngineAttributes(call.sessionId, engine),
      },
      context,
    )
    const { traceId, spanId, traceFlags } = this.#span.spanContext()
    this.traceparent = `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`
  }

  end(thrown?: unknown): void {
    if (this.#endedAtMs !== undefined) return
    this.#endedAtMs = this.#nowMs()
    if (thrown === undefined) return
    this.#hasFailed = true
    markFailed(this.#span, thrown)
  }

  /** Ends the span with the response attributes, or, if the engine request failed, with its own error. */
  close(outcome: TurnOutcome, turn: Attributes, content: Attributes): void {
    const { 'error.type': _ofTurn, ...others } = turn
    if (this.#hasFailed) this.#span.setAttributes(others)
    else
      this.#span.setAttributes({
        ...turn,
        ...content,
        ...getResponseAttributes(outcome, this.#requestedAtMs),
      })
    this.#span.end(this.#endedAtMs ?? this.#nowMs())
  }
}

function markFailed(span: Span, thrown: unknown): void {
  span.setAttribute('error.type', getErrorType(thrown))
  span.setStatus({ code: SpanStatusCode.ERROR })
}
