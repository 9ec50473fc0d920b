/**
 * Exports the spans of requests over OTLP. This file and all OpenTelemetry libraries are loaded only if the environment
 * specifies an endpoint. No tracer provider is registered globally, because a program that embeds the proxy may have
 * its own.
 */
import { randomUUID } from 'node:crypto'
import { type ExportResult, ExportResultCode } from '@opentelemetry/core'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto'
import {
  defaultResource,
  detectResources,
  envDetector,
  resourceFromAttributes,
} from '@opentelemetry/resources'
import {
  BasicTracerProvider,
  BatchSpanProcessor,
  type ReadableSpan,
  type SpanExporter,
} from '@opentelemetry/sdk-trace-base'
import { intercept } from '../../base/interceptor.ts'
import { logEvent } from '../../base/log-events.ts'
import type { Logger } from '../../base/logger.ts'
import { VERSION } from '../../base/version.ts'
import type { IncomingRequest, RequestSpan } from '../../protocol/canonical/spans.ts'
import type { TurnOutcome, TurnStore } from '../store/port/turn-store.ts'
import { type OpenTurns, OtlpRequestSpan, type SpanDependencies } from './request-span.ts'
import { TraceIdGenerator } from './trace-ids.ts'
import type { Tracing, TracingTarget } from './tracing.ts'

/** The maximum time that a slow or unavailable collector may delay the end of the process. */
const FLUSH_MS = 3_000

export class OtlpTracing implements Tracing {
  readonly #provider: BasicTracerProvider
  readonly #tracers: SpanDependencies
  readonly #turns: OpenTurns = new Map()

  constructor({ endpoint, contentChars }: TracingTarget, logger: Logger) {
    const ids = new TraceIdGenerator()
    this.#provider = new BasicTracerProvider({
      idGenerator: ids,
      resource: createResource(),
      spanProcessors: [
        new BatchSpanProcessor(new LoggingExporter(new OTLPTraceExporter(), endpoint, logger)),
      ],
    })
    this.#tracers = { tracer: this.#provider.getTracer('llm-proxy', VERSION), ids, contentChars }
  }

  begin(call: IncomingRequest): RequestSpan {
    return new OtlpRequestSpan(call, this.#tracers, this.#turns)
  }

  watchStore(store: TurnStore): TurnStore {
    return intercept(store, { closeTurn: (call, outcome) => this.#close(call, outcome) })
  }

  async close(): Promise<void> {
    const { promise: late, resolve } = Promise.withResolvers<void>()
    const timer = setTimeout(resolve, FLUSH_MS)
    const flushed = this.#provider.shutdown().catch(() => {})
    await Promise.race([flushed, late])
    clearTimeout(timer)
  }

  /** Closes a turn. The outcome is read before the store takes ownership of its arrays. */
  #close(call: () => Promise<void>, outcome: TurnOutcome): Promise<void> {
    const turn = this.#turns.get(outcome.turnId)
    if (turn === undefined) return call()
    this.#turns.delete(outcome.turnId)
    const commit = turn.startCommit(outcome)
    const closed = call()
    closed.then(
      () => commit.end(),
      (error) => commit.end(error),
    )
    return closed
  }
}

/** Returns the resource. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence over the values set here. */
function createResource() {
  const own = resourceFromAttributes({
    'service.name': 'llm-proxy',
    'service.version': VERSION,
    'service.instance.id': randomUUID(),
  })
  return defaultResource()
    .merge(own)
    .merge(detectResources({ detectors: [envDetector] }))
}

/** An exporter that logs once when exports begin to fail, and once when they succeed again. */
class LoggingExporter implements SpanExporter {
  readonly #exporter: SpanExporter
  readonly #endpoint: string
  readonly #logger: Logger
  #lost = 0

  constructor(exporter: SpanExporter, endpoint: string, logger: Logger) {
    this.#exporter = exporter
    this.#endpoint = endpoint
    this.#logger = logger
  }

  export(spans: ReadableSpan[], done: (result: ExportResult) => void): void {
    this.#exporter.export(spans, (result) => {
      this.#log(result, spans.length)
      done(result)
    })
  }

  async forceFlush(): Promise<void> {
    await this.#exporter.forceFlush?.()
  }

  async shutdown(): Promise<void> {
    await this.#exporter.shutdown()
  }

  #log({ code, error }: ExportResult, spans: number): void {
    const { host } = new URL(this.#endpoint)
    if (code !== ExportResultCode.SUCCESS) {
      // Only the error's name is logged: its message may repeat headers of the request, which may contain a key.
      if (this.#lost === 0)
        logEvent(this.#logger, 'span_export_failed', { host, reason: error?.name ?? 'unknown' })
      this.#lost += spans
    } else if (this.#lost > 0) {
      logEvent(this.#logger, 'span_export_resumed', { host, lost_spans: this.#lost })
      this.#lost = 0
    }
  }
}
