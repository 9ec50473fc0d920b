import { writeSync } from 'node:fs'
import { type EventFields, logEvent } from '../base/log-events.ts'
import type { Logger } from '../base/logger.ts'
import { VERSION } from '../base/version.ts'
import {
  exitOnUnexpectedErrors,
  logWarnings,
  type RunningService,
  serveUntilSignal,
} from './process-lifecycle.ts'

interface Announcement {
  /** The line on stdout from which scripts read the URL. */
  readyLine: string
  /** Lines for the user, printed on a terminal only. */
  hints?: readonly string[]
  /** The fields of the log event. */
  started: Omit<EventFields<'server_started'>, 'version'>
}

/**
 * Serves until a signal, and announces on stdout that the service is ready. Signals are handled before that, because a
 * process that waits for the line may send one immediately.
 * @returns the exit code
 */
export function serveAnnounced(
  service: RunningService,
  graceMs: number,
  logger: Logger,
  { readyLine, hints = [], started }: Announcement,
): Promise<number> {
  exitOnUnexpectedErrors(logger)
  logWarnings(logger)
  const served = serveUntilSignal(service, graceMs, logger)
  const isTerminal = process.stdout.isTTY
  // If stdout and stderr are both a terminal, the line on stdout suffices.
  if (!(isTerminal && process.stderr.isTTY))
    logEvent(logger, 'server_started', { ...started, version: VERSION })
  announce(isTerminal ? [readyLine, ...hints] : [readyLine])
  return served
}

/**
 * Writes lines to the file descriptor of stdout. The process exits if `process.stdout` has no reader, but a service
 * must outlive the reader of its first line.
 */
function announce(lines: readonly string[]): void {
  try {
    writeSync(process.stdout.fd, `${lines.join('\n')}\n`)
  } catch {
    // No process reads stdout; the log has the address, too.
  }
}
