import type { Logger, LogLevel } from '../../src/base/logger.ts'

export interface LogLine {
  level: LogLevel
  message: string
  event: string
  [field: string]: unknown
}

/** Returns a logger that lists its lines. */
export function createListingLogger(): {
  logger: Required<Omit<Logger, 'isLevelEnabled'>>
  lines: LogLine[]
} {
  const lines: LogLine[] = []
  const logAt =
    (level: LogLevel): Logger['info'] =>
    (fields, message) =>
      void lines.push({ level, message, ...(fields as { event: string }) })
  const logger = {
    debug: logAt('debug'),
    info: logAt('info'),
    audit: logAt('audit'),
    warn: logAt('warn'),
    error: logAt('error'),
  }
  return { lines, logger }
}
