/** Acknowledges to other nodes whether the responses that they sent through this node reached their clients. */
import { type Clock, systemClock } from '../../../base/clock.ts'
import { type DeliveryReport, MAX_REPORTS } from './routes.ts'

/** The node that waits for a report. */
export interface ReportTarget {
  /** The lease of the node. */
  readonly id: number
  readonly url: string
}

interface ReportsOptions {
  /** Sends one batch. @returns whether the owner has taken it, or never will; false: retry */
  send(target: ReportTarget, reports: readonly DeliveryReport[], signal: AbortSignal): Promise<boolean>
  /** Returns a signal that aborts when the lease of the node has ended, after which nothing is reported to it. */
  getLossSignal(id: number): AbortSignal
  /** Default: the system's. */
  clock?: Clock
}

const RETRY_MS = 200

export class DeliveryReports {
  readonly #options: ReportsOptions
  readonly #clock: Clock
  readonly #queues = new Map<number, DeliveryReport[]>()
  readonly #senders = new Set<Promise<void>>()

  constructor(options: ReportsOptions) {
    this.#options = options
    this.#clock = options.clock ?? systemClock
  }

  /** Sends the report, together with others that are due for the same node while one batch is in flight. */
  add(target: ReportTarget, report: DeliveryReport): void {
    const queue = this.#queues.get(target.id)
    if (queue) {
      queue.push(report)
      return
    }
    const started = [report]
    this.#queues.set(target.id, started)
    const sender = this.#drain(target, started)
    this.#senders.add(sender)
    void sender.finally(() => this.#senders.delete(sender))
  }

  /** Resolves when everything has been sent, or after `timeoutMs`. */
  async flush(timeoutMs: number): Promise<void> {
    const { promise: timedOut, resolve } = Promise.withResolvers<void>()
    const cancelTimer = this.#clock.after(timeoutMs, resolve)
    await Promise.race([Promise.all(this.#senders), timedOut])
    cancelTimer()
  }

  /** Never rejects. */
  async #drain(target: ReportTarget, queue: DeliveryReport[]): Promise<void> {
    const gone = this.#options.getLossSignal(target.id)
    while (queue.length > 0 && !gone.aborted) {
      const batch = queue.slice(0, MAX_REPORTS)
      const isDone = await this.#options.send(target, batch, gone).catch(() => false)
      if (isDone) queue.splice(0, batch.length)
      else await new Promise<void>((resolve) => this.#clock.after(RETRY_MS, resolve))
    }
    this.#queues.delete(target.id)
  }
}
