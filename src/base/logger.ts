/** What the parts of the proxy log with; pino satisfies it. One event, one line; never a prompt or a key. */
export interface Logger {
  debug(fields: object, message: string): void
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
  error(fields: object, message: string): void
}
