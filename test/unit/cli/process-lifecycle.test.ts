import { EventEmitter } from 'node:events'
import t from 'tap'
import { ProxyError } from '../../../src/base/errors.ts'
import {
  exitOnSignals,
  exitOnStoreLoss,
  exitOnUnexpectedErrors,
  logWarnings,
  serveUntilSignal,
} from '../../../src/cli/process-lifecycle.ts'
import { createListingLogger } from '../../helpers/listing-logger.ts'

/** A fake `process` that records the codes of its exits. */
function fakeProcess() {
  const exits: number[] = []
  return Object.assign(new EventEmitter(), { exits, exit: (code: number) => void exits.push(code) })
}

/** Records the levels of logged lines. */
function fakeLogger() {
  const levels: string[] = []
  const record = (level: string) => () => void levels.push(level)
  return {
    levels,
    debug: record('debug'),
    info: record('info'),
    warn: record('warn'),
    error: record('error'),
  }
}

t.test('no process stops before a signal; the first signal drains with the grace period', async (t) => {
  for (const signal of ['SIGTERM', 'SIGINT']) {
    const port = fakeProcess()
    const graces: number[] = []
    const stop = async (graceMs: number) => {
      graces.push(graceMs)
      return { drained: true }
    }
    const served = serveUntilSignal({ stop }, 1234, fakeLogger(), port)
    t.strictSame(graces, [], 'still serving')
    port.emit(signal)
    t.equal(await served, 0, signal)
    t.strictSame(graces, [1234])
    t.strictSame(port.exits, [])
  }
})

t.test('the first process of a container ends at a signal that arrives before it serves', async (t) => {
  for (const [signal, code] of [
    ['SIGTERM', 143],
    ['SIGINT', 130],
  ] as const) {
    const port = fakeProcess()
    exitOnSignals(port, 1)
    port.emit(signal)
    t.strictSame(port.exits, [code], signal)
  }
})

t.test('the first process of a container drains at a signal like any other once it serves', async (t) => {
  const port = fakeProcess()
  exitOnSignals(port, 1)
  const served = serveUntilSignal({ stop: async () => ({ drained: true }) }, 0, fakeLogger(), port)
  port.emit('SIGTERM')
  t.equal(await served, 0)
  t.strictSame(port.exits, [])
})

t.test('any other process leaves a signal before it serves to the system', async (t) => {
  const port = fakeProcess()
  exitOnSignals(port, 2)
  t.strictSame(port.eventNames(), [])
})

t.test('a process that loses its store reports this and ends', async (t) => {
  const port = fakeProcess()
  const logger = fakeLogger()
  const { promise, resolve } = Promise.withResolvers<ProxyError>()
  exitOnStoreLoss(promise, logger, port)
  resolve(new ProxyError('store_failed', "the store's writer thread has ended"))
  await promise
  t.strictSame(port.exits, [1])
  t.strictSame(logger.levels, ['error'])
})

t.test('a second signal ends the process at once, with the exit code of that signal', async (t) => {
  const port = fakeProcess()
  const service = { stop: () => new Promise<never>(() => {}) }
  void serveUntilSignal(service, 1000, fakeLogger(), port)
  port.emit('SIGTERM')
  t.strictSame(port.exits, [])
  port.emit('SIGINT')
  t.strictSame(port.exits, [130])
  port.emit('SIGTERM')
  t.strictSame(port.exits, [130, 143])
})

t.test('requests that were cut off, and a shutdown that fails, are exit code 1', async (t) => {
  for (const stop of [
    async () => ({ drained: false }),
    async () => {
      throw new Error('the disk is full')
    },
  ]) {
    const port = fakeProcess()
    const served = serveUntilSignal({ stop }, 0, fakeLogger(), port)
    port.emit('SIGTERM')
    t.equal(await served, 1)
  }
})

t.test('an unforeseen error is logged and ends the process', async (t) => {
  for (const event of ['uncaughtException', 'unhandledRejection']) {
    for (const error of [new TypeError('x'), 'text', undefined, new ProxyError('internal', 'x')]) {
      const port = fakeProcess()
      const logger = fakeLogger()
      exitOnUnexpectedErrors(logger, port)
      port.emit(event, error)
      t.strictSame({ exits: port.exits, levels: logger.levels }, { exits: [1], levels: ['error'] })
    }
  }
})

t.test('a known error that was not handled is logged, and the process continues', async (t) => {
  const aborted = new DOMException('aborted', 'AbortError')
  const reset = Object.assign(new Error('reset'), { code: 'ECONNRESET' })
  for (const error of [new ProxyError('store_failed', 'disk full'), aborted, reset]) {
    const port = fakeProcess()
    const logger = fakeLogger()
    exitOnUnexpectedErrors(logger, port)
    port.emit('unhandledRejection', error)
    t.strictSame({ exits: port.exits, levels: logger.levels }, { exits: [], levels: ['warn'] })
  }
})

t.test('a warning of a library is one line of the log, and is not printed elsewhere', async (t) => {
  const port = new EventEmitter()
  const printed: unknown[] = []
  port.on('warning', (warning) => printed.push(warning))
  const { logger, lines } = createListingLogger()
  logWarnings(logger, port)
  port.emit('warning', Object.assign(new Error('query() is deprecated'), { name: 'DeprecationWarning' }))
  t.match(lines, [{ event: 'process_warning', warning: 'DeprecationWarning: query() is deprecated' }])
  t.strictSame(printed, [])
})
