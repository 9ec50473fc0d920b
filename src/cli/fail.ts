/** Converts errors to a line on stderr and an exit code. */
import { CommanderError } from 'commander'
import { ProxyError } from '../base/errors.ts'
import { revealInvisible } from '../protocol/transcript/visible.ts'
import { toPrintable } from './table.ts'

/**
 * The exit code if the command line, the environment or a file is invalid, so that the same command would fail again.
 */
const EXIT_USAGE = 2
const EXIT_FAILED = 1

/** The output of a command that failed. */
interface Failure {
  /** The line for stderr; undefined: none. */
  line: string | undefined
  exitCode: number
}

export function describeFailure(error: unknown): Failure {
  if (error instanceof CommanderError) {
    // Commander also throws for help and version, after it has printed their text.
    if (error.exitCode === 0) return { line: undefined, exitCode: 0 }
    if (error.code === 'commander.help') return { line: undefined, exitCode: EXIT_USAGE }
    return { line: toOneLine(formatUsageError(error.message.replace(/^error: /, ''))), exitCode: EXIT_USAGE }
  }
  if (error instanceof ProxyError) {
    return {
      line: toOneLine(withCause(error)),
      exitCode: error.code === 'config_invalid' ? EXIT_USAGE : EXIT_FAILED,
    }
  }
  return { line: describeUnexpected(error), exitCode: EXIT_FAILED }
}

function formatUsageError(message: string): string {
  const [, flag, isOn] = /^unknown option '--([^=']*)=(?:(true)|false)'/.exec(message) ?? []
  if (flag !== undefined)
    return `unknown option '--${flag}' with a value; if it is a switch, write --${isOn ? '' : 'no-'}${flag}`
  if (/got 1: (true|false)\.$/.test(message)) return `${message} A switch has no value: write --x or --no-x`
  // Commander quotes a misspelt flag with its value, which may be a key.
  return message.replace(/^(unknown option '--[^=']*)=.*'/, "$1'")
}

/** Describes an unexpected error. Errors of the operating system need no stack; others are bugs and include it. */
function describeUnexpected(error: unknown): string {
  if (!(error instanceof Error)) return toOneLine(String(error))
  if ('syscall' in error) return toOneLine(error.message)
  return revealInvisible(error.stack ?? error.message)
}

/** Returns an error's message, followed by that of its cause if it adds information. */
export function withCause(error: unknown): string {
  const { message, cause } = error as Error
  const reason = cause instanceof Error ? cause.message : undefined
  return reason === undefined || message.includes(reason) ? message : `${message}: ${reason}`
}

function toOneLine(text: string): string {
  return toPrintable(text.replace(/\s*\n\s*/g, ' '))
}

/** Converts an error of `listen` to one that explains how to fix it. Other errors are returned unchanged. */
export function explainListenFailure(error: unknown, host: string, port: number): unknown {
  const message = formatListenFailure(error, host, port)
  return message === undefined ? error : new ProxyError('start_failed', message)
}

function formatListenFailure(error: unknown, host: string, port: number): string | undefined {
  if (!(error instanceof Error) || !('code' in error)) return undefined
  switch (error.code) {
    case 'EADDRINUSE':
      return `port ${port} on ${host} is in use: stop the program that listens there, or choose another port with --port`
    case 'EACCES':
      return `may not listen on port ${port} of ${host}: choose a port above 1023 with --port`
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
      return `this machine has no address ${host}: choose one with --host`
    default:
      return undefined
  }
}
