/** The queue of Python jobs when a thread or process cannot be started. */
import { EventEmitter } from 'node:events'
import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import {
  type PythonHost,
  PythonThread,
} from '../../../../../src/proxy/tokens/templates/python/python-thread.ts'

/** A thread that keeps the process running as a real one does, and replies to each job with the job, and never to `hang`. */
class FakeHost extends EventEmitter implements PythonHost {
  readonly #running = setInterval(() => {}, 1_000)

  constructor() {
    super()
    setImmediate(() => {
      this.emit('message', { works: 'python' })
      this.emit('message', { works: 'template' })
    })
  }

  postMessage(job: unknown): void {
    if (job !== 'hang') setImmediate(() => this.emit('message', { answer: job }))
  }

  ref(): void {}
  unref(): void {}
  terminate(): void {
    clearInterval(this.#running)
  }
}

t.test('a replacement that cannot be started fails one job, and the next one starts another', async (t) => {
  let starts = 0
  const thread = new PythonThread<string, string>({
    start: () => {
      starts += 1
      if (starts === 2 || starts === 3) throw new Error('EMFILE')
      return new FakeHost()
    },
    name: 'test',
    data: {},
    limits: { timeLimitMs: 20 },
    task: 'runs tests',
    createLimitError: (reason) => new ProxyError('invalid_request', reason),
  })
  t.teardown(() => thread.close())
  t.equal(await thread.execute('a'), 'a')
  const jobs = ['hang', 'b', 'c', 'd'].map((job) => thread.execute(job))
  const settled = await Promise.allSettled(jobs)
  t.match(settled, [
    { reason: { code: 'invalid_request' } },
    { reason: { code: 'start_failed', cause: { message: 'EMFILE' } } },
    { reason: { code: 'start_failed' } },
    { value: 'd' },
  ])
  t.equal(starts, 4)
})
