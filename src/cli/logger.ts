import { pino } from 'pino'
import type { Logger } from '../base/logger.ts'
import type { ServeConfig } from '../proxy/config/options/serve.ts'

/** JSON lines on stderr: stdout belongs to what a command was asked for. */
export function createLogger(level: ServeConfig['logLevel']): Logger {
  return pino(
    {
      level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
    },
    // Not synchronous: a slow reader of stderr must not stop the proxy. pino writes out what is left at exit.
    pino.destination({ fd: process.stderr.fd, sync: false }),
  )
}
