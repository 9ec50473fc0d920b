import { EventEmitter } from 'node:events'
import t from 'tap'
import type { ThreadCommand } from '../../../../../src/proxy/store/common/calls.ts'
import type { ThreadPort, ThreadSpawner } from '../../../../../src/proxy/store/common/store-thread.ts'
import { openPostgresStore } from '../../../../../src/proxy/store/postgres/open.ts'
import { createListingLogger } from '../../../../helpers/listing-logger.ts'

/** A thread that opens with `report` and replies to every command with `value`. */
class FakeThread extends EventEmitter implements ThreadPort {
  readonly #value: unknown

  constructor(report: object, value?: unknown) {
    super()
    this.#value = value
    setImmediate(() => this.emit('message', report))
  }

  postMessage(message: ThreadCommand[] | 'close'): void {
    if (message === 'close') this.emit('exit', 0)
    else
      this.emit(
        'message',
        message.map(({ id }) => ({ id, value: this.#value })),
      )
  }

  terminate(): void {
    this.emit('exit', 1)
  }
}

t.test('a node whose reader fails to open stops renewing its lease', async (t) => {
  const { logger, lines } = createListingLogger()
  const renewal = { lease: 1, proxies: [], over: [], freed: 0, controls: [] }
  const failure = { code: 'start_failed', message: 'no connection left', param: undefined, cause: undefined }
  const spawn: ThreadSpawner = (role) =>
    role === 'writer'
      ? new FakeThread({ opened: true }, renewal)
      : new FakeThread({ opened: false, error: failure })
  const opened = openPostgresStore({ url: 'postgres://h/d', durability: 'power', logger, spawn })
  await t.rejects(opened, { code: 'start_failed', message: 'no connection left' })
  const states = lines.filter(({ event }) => event === 'node_state').map(({ state }) => state)
  t.strictSame(states, ['serving', 'closed'])
})
