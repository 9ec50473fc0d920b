/** Reports to other nodes whether the responses that they sent through this node reached the clients. */
import { type Clock, systemClock } from '../../../base/clock.ts'
import { type DeliveryReport, MAX_REPORTS } from './routes.ts'

/** The node that waits for a report. */
export interface ReportTarget {
  /** The lease of the node. */
  readonly id: number
  readonly url: string
}

interface ReportsOptions {
  /** Sends one batch. @returns false if sending must be retried; true if the node accepted it or never will */
  send(target: ReportTarget, reports: readonly DeliveryReport[], signal: AbortSignal): Promise<boolean>
  /** Returns a signal that aborts when the lease of a node has ended; its reports are discarded then. */
  getLossSignal(id: number): AbortSignal
  /** Default: the system clock. */
  clock?: Clock
}

const RETRY_MS = 200

/** A sender of delivery reports, with a queue for each node. */
export class DeliveryReports {
  readonly #options: ReportsOptions
  readonly #clock: Clock
  readonly #queues = new Map<number, DeliveryReport[]>()
  readonly #senders = new Set<Promise<void>>()

  constructor(options: ReportsOptions) {
    this.#options = options
    this.#clock = options.clock ?? systemClock
  }

  /** Queues a report. Reports for one node that are queued while a batch is in flight form the next batch. */
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

  /** Waits until all reports have been sent, at most `timeoutMs`. */
  async flush(timeoutMs: number): Promise<void> {
    const { promise: timedOut, resolve } = Promise.withResolvers<void>()
    const cancelTimer = this.#clock.after(timeoutMs, resolve)
    await Promise.race([Promise.all(this.#senders), timedOut])
    cancelTimer()
  }

  /** Sends the queue of a node until it is empty. Never rejects. */
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
