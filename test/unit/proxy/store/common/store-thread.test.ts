import { EventEmitter } from 'node:events'
import { mock } from 'node:test'
import t from 'tap'
import { StoreThread, type ThreadPort } from '../../../../../src/proxy/store/common/store-thread.ts'

/** A thread that neither replies nor ends, as one whose database is unavailable. */
class StuckThread extends EventEmitter implements ThreadPort {
  readonly received: unknown[] = []

  postMessage(message: unknown): void {
    this.received.push(message)
  }

  terminate(): void {
    this.received.push('terminate')
    this.emit('exit', 1)
  }
}

async function start(closeTimeoutMs?: number) {
  const port = new StuckThread()
  setImmediate(() => port.emit('message', { opened: true }))
  const spawn = () => port
  const options = closeTimeoutMs === undefined ? { spawn } : { spawn, closeTimeoutMs }
  const thread = await StoreThread.start<{ commit(): void }>('writer', {}, options)
  return { port, thread }
}

t.test('closing terminates a thread that does not reply, and rejects its commands', async (t) => {
  t.teardown(() => mock.timers.reset())
  mock.timers.enable({ apis: ['setTimeout'] })
  const { port, thread } = await start(10_000)
  const [first, second] = [thread.execute('commit', []), thread.execute('commit', [])]
  const rejected = t.rejects(second, { code: 'store_failed', message: /closed/ })
  const closed = thread.close()
  mock.timers.tick(9_999)
  port.emit('message', [{ id: 1, value: undefined }])
  await first
  mock.timers.tick(9_999)
  t.equal(port.received.at(-1), 'close', 'each reply extends the time limit')
  mock.timers.tick(1)
  await closed
  await rejected
  t.equal(port.received.at(-1), 'terminate')
})

t.test('closing waits without a limit for a thread that has none', async (t) => {
  t.teardown(() => mock.timers.reset())
  mock.timers.enable({ apis: ['setTimeout'] })
  const { port, thread } = await start()
  const closed = thread.close()
  mock.timers.tick(86_400_000)
  t.strictSame(port.received, ['close'])
  port.emit('exit', 0)
  await closed
})
