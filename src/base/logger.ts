export type LogLevel = 'debug' | 'info' | 'audit' | 'warn' | 'error'

/** Logger of a process, such as a pino logger. Each call writes one line, which must not contain prompts or keys. */
export interface Logger {
  debug(fields: object, message: string): void
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
  error(fields: object, message: string): void
  /** Logs an administrative request. If the logger lacks this level, these lines are logged as `info`. */
  audit?(fields: object, message: string): void
  /** Returns whether lines of this level are written. If absent, all levels but `debug` are written. */
  isLevelEnabled?(level: LogLevel): boolean
}

/** Returns whether lines of this level are written, so that callers need not build others. */
export function isLevelEnabled(logger: Logger, level: LogLevel): boolean {
  return logger.isLevelEnabled?.(level) ?? level !== 'debug'
}

declare const CONTEXT: unique symbol

/** Logger that adds fields to every line. `Context` is the type of these fields, for the compiler only. */
export type ContextLogger<Context extends object> = Logger & { readonly [CONTEXT]?: Context }

/** Returns a logger that adds these fields to every line, such as the session's id. */
export function withContext<Context extends object>(
  logger: Logger,
  context: Context,
): ContextLogger<Context> {
  const at =
    (level: LogLevel): Logger['info'] =>
    (fields, message) =>
      (logger[level] ?? logger.info).call(logger, { ...context, ...fields }, message)
  return {
    debug: at('debug'),
    info: at('info'),
    audit: at('audit'),
    warn: at('warn'),
    error: at('error'),
    isLevelEnabled: (level) => isLevelEnabled(logger, level),
  }
}
