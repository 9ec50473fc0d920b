/** The lifecycle of a serving process: signals, draining, and uncaught errors. */
import type { EventEmitter } from 'node:events'
import { ProxyError } from '../base/errors.ts'
import { logEvent } from '../base/log-events.ts'
import type { Logger } from '../base/logger.ts'

/** A service that runs until it is stopped. */
export interface RunningService {
  /**
   * Rejects new requests, waits up to `graceMs` for running ones, then cancels them.
   * @returns whether all of them completed
   */
  stop(graceMs: number): Promise<{ drained: boolean }>
}

/** The members of `process` that tests replace by a fake. */
interface ProcessPort extends EventEmitter {
  exit(code: number): void
}

/** The exit codes after signals: 128 plus the number of the signal, as in shells. */
export const SIGNAL_EXIT_CODES = { SIGINT: 130, SIGTERM: 143 } as const

type Signal = keyof typeof SIGNAL_EXIT_CODES

/**
 * Ends the process on signals if it is the first process of a container. The kernel does not deliver signals without a
 * handler to that process, so a signal that arrives before the command handles signals would be lost. Applies while no
 * other listener handles the signal.
 */
export function exitOnSignals(port: ProcessPort = process, pid: number = process.pid): void {
  if (pid !== 1) return
  for (const [name, code] of Object.entries(SIGNAL_EXIT_CODES)) {
    port.on(name, () => {
      if (port.listenerCount(name) === 1) port.exit(code)
    })
  }
}

/** The maximum delay of the exit by remaining work, such as a library that retries an export. */
const MAX_EXIT_DELAY_MS = 1_000

/**
 * Serves until SIGTERM or SIGINT, then drains. A second signal ends the process immediately.
 * @returns the exit code: 0 if every request completed, 1 if some were cancelled
 */
export async function serveUntilSignal(
  service: RunningService,
  graceMs: number,
  logger: Logger,
  port: ProcessPort = process,
): Promise<number> {
  const signal = await waitForSignal(port)
  logEvent(logger, 'drain_started', { signal, grace_ms: graceMs })
  const code = await stop(service, graceMs, logger)
  setTimeout(() => port.exit(code), MAX_EXIT_DELAY_MS).unref()
  return code
}

async function stop(service: RunningService, graceMs: number, logger: Logger): Promise<number> {
  try {
    const { drained } = await service.stop(graceMs)
    if (drained) logEvent(logger, 'server_stopped', {})
    else logEvent(logger, 'drain_timed_out', { grace_ms: graceMs })
    return drained ? 0 : 1
  } catch (error) {
    logEvent(logger, 'shutdown_failed', { err: error })
    return 1
  }
}

function waitForSignal(port: ProcessPort): Promise<Signal> {
  return new Promise((resolve) => {
    let signalled = false
    for (const name of Object.keys(SIGNAL_EXIT_CODES) as Signal[]) {
      port.on(name, () => {
        if (signalled) port.exit(SIGNAL_EXIT_CODES[name])
        signalled = true
        resolve(name)
      })
    }
  })
}

/**
 * Handles uncaught errors. An error that requests are expected to cause (a rejection, a closed connection) is logged
 * and ignored; after any other error the state of the process is unknown, and it exits. Acknowledged turns are durable
 * already.
 */
export function exitOnUnexpectedErrors(logger: Logger, port: ProcessPort = process): void {
  const handleError = (error: unknown) => {
    if (isKnownCondition(error)) {
      logEvent(logger, 'unhandled_error', { err: error })
      return
    }
    logEvent(logger, 'unexpected_error', { err: error })
    port.exit(1)
  }
  port.on('uncaughtException', handleError)
  port.on('unhandledRejection', handleError)
}

/**
 * Logs the warnings of Node.js and of libraries, which Node.js would otherwise print to stderr between the lines of the
 * log.
 */
export function logWarnings(logger: Logger, port: EventEmitter = process): void {
  port.removeAllListeners('warning')
  port.on('warning', ({ name, message }: Error) =>
    logEvent(logger, 'process_warning', { warning: `${name}: ${message}` }),
  )
}

/**
 * Exits if the store is lost. Without its store a proxy fails every request permanently; the supervisor restarts the
 * process.
 */
export function exitOnStoreLoss(
  lost: Promise<ProxyError>,
  logger: Logger,
  port: ProcessPort = process,
): void {
  void lost.then((error) => {
    logEvent(logger, 'database_lost', { err: error })
    port.exit(1)
  })
}

const CLOSED_BY_PEER = ['EPIPE', 'ECONNRESET', 'ERR_STREAM_PREMATURE_CLOSE']

function isKnownCondition(error: unknown): boolean {
  if (error instanceof ProxyError) return error.code !== 'internal'
  if (!(error instanceof Error)) return false
  return error.name === 'AbortError' || ('code' in error && CLOSED_BY_PEER.includes(String(error.code)))
}
