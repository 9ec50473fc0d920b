import { writeSync } from 'node:fs'
import type { Logger } from '../base/logger.ts'
import { exitOnUnexpectedErrors, type Stoppable, serveUntilSignal } from './process-lifecycle.ts'

/**
 * Serves until a signal, and says on stdout that it is ready, where a script finds the URL. Whoever waits for that may send a
 * signal at once.
 * @param hints for people: they follow on a terminal only
 * @returns the exit code
 */
export function serveAnnounced(
  service: Stoppable,
  graceMs: number,
  logger: Logger,
  readyLine: string,
  hints: readonly string[] = [],
): Promise<number> {
  exitOnUnexpectedErrors(logger)
  const served = serveUntilSignal(service, graceMs, logger)
  announce(process.stdout.isTTY ? [readyLine, ...hints] : [readyLine])
  return served
}

/** Written past the stream: a service must outlive whoever read its first line. */
function announce(lines: readonly string[]): void {
  try {
    writeSync(process.stdout.fd, `${lines.join('\n')}\n`)
  } catch {
    // Nobody reads stdout; the log has the address too.
  }
}
