import type { Clock } from '../../base/clock.ts'
import { logEvent } from '../../base/log-events.ts'
import type { Logger } from '../../base/logger.ts'

const MINUTE_MS = 60_000

/** Counts of turns and sampled tokens since the start of the process. */
interface Totals {
  requests: number
  failed: number
  sampled_tokens: number
}

interface ThroughputOptions {
  logger: Logger
  clock: Clock
  readTotals(): Totals
  readLoad(): { in_flight: number; waiting: number }
}

/** Logs the throughput of each minute with traffic. @returns a function that stops it */
export function logThroughput({ logger, clock, readTotals, readLoad }: ThroughputOptions): () => void {
  let before = readTotals()
  let cancel = clock.after(MINUTE_MS, logMinute)
  function logMinute(): void {
    const now = readTotals()
    const fields = {
      requests: now.requests - before.requests,
      failed: now.failed - before.failed,
      sampled_tokens: now.sampled_tokens - before.sampled_tokens,
      ...readLoad(),
    }
    before = now
    if (fields.requests + fields.in_flight + fields.waiting > 0) logEvent(logger, 'throughput', fields)
    cancel = clock.after(MINUTE_MS, logMinute)
  }
  return () => cancel()
}
