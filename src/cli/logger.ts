import { styleText } from 'node:util'
import { pino } from 'pino'
import { logEvent } from '../base/log-events.ts'
import type { Logger } from '../base/logger.ts'
import { escapeInvisible } from '../protocol/transcript/visible.ts'
import type { EngineConfig } from '../proxy/config/options/engine.ts'
import { LogWriter } from './log-writer.ts'
import { toPrintable } from './table.ts'

/** The level between pino's `info` (30) and `warn` (40). */
const AUDIT_LEVEL = 35

/** Creates the logger of a command. It writes to stderr, because stdout carries the result of the command. */
export function createLogger(
  level: EngineConfig['logLevel'],
  format: EngineConfig['logFormat'] = 'auto',
): Logger {
  const stderr = new LogWriter(process.stderr.fd, (lines) => logEvent(logger, 'log_lines_lost', { lines }))
  const isText = format === 'text' || (format === 'auto' && process.stderr.isTTY)
  const logger = pino(
    {
      level,
      customLevels: { audit: AUDIT_LEVEL },
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
    },
    // JSON escapes only the control characters below U+0020; a terminal interprets others, too.
    { write: (line: string) => stderr.write(isText ? formatLine(line) : escapeInvisible(line)) },
  )
  return logger
}

const STYLES: Readonly<Record<string, Parameters<typeof styleText>[0]>> = {
  debug: 'dim',
  audit: 'cyan',
  warn: 'yellow',
  error: 'red',
}

/** The fields whose values follow the message, without the field's name. */
const EXPLANATIONS = new Set(['reason', 'warning', 'note'])

/**
 * Returns a JSON line of pino as text: the time, the level, the message, then the fields. Control characters become
 * spaces, because fields may contain text of engines and agents.
 */
export function formatLine(line: string): string {
  const { time, level, msg, event: _, err, ...fields }: Record<string, unknown> = JSON.parse(line)
  const { message = err, stack } = (err ?? {}) as { message?: unknown; stack?: string }
  const entries = Object.entries(fields)
  const reason = [
    ...entries.flatMap(([name, value]) => (EXPLANATIONS.has(name) ? [value] : [])),
    message ?? [],
  ]
  const facts = entries.filter(([name]) => !EXPLANATIONS.has(name))
  const label = String(level).toUpperCase().padEnd(5)
  const style = STYLES[String(level)]
  const text = [
    String(time).slice(11, 19),
    style === undefined ? label : styleText(style, label, { stream: process.stderr }),
    toPrintable([msg, ...reason.flat()].join(': ')),
    ...facts.map(([name, value]) => `${name}=${formatValue(value)}`),
  ]
  const trace = level === 'error' && stack !== undefined ? stack.split('\n').slice(1) : []
  return [text.join(' '), ...trace.map((frame) => `    ${toPrintable(frame)}`), ''].join('\n')
}

function formatValue(value: unknown): string {
  const isPlain = typeof value === 'string' && !/[\s"=]/.test(value)
  return toPrintable(isPlain ? value : JSON.stringify(value))
}
