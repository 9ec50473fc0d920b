import { type ExportResult, ExportResultCode } from '@opentelemetry/core'
import type { ReadableSpan, SpanExporter } from '@opentelemetry/sdk-trace-base'
import type { Logger } from '../../base/logger.ts'

/** An exporter whose failures are in the log: once when they begin and once when they are over. */
export class LoggedExporter implements SpanExporter {
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
      // What a receiver answers may repeat what it was sent: its headers, and a key among them.
      if (this.#lost === 0)
        this.#logger.warn({ host, reason: error?.name ?? 'unknown' }, 'spans cannot be exported; calls go on')
      this.#lost += spans
    } else if (this.#lost > 0) {
      this.#logger.info({ host, lost_spans: this.#lost }, 'spans are exported again')
      this.#lost = 0
    }
  }
}
