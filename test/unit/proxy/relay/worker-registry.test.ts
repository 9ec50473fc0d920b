import t from 'tap'
import type { LogEventName } from '../../../../src/base/log-events.ts'
import type { ConnectedWorker } from '../../../../src/proxy/relay/connected-worker.ts'
import { WorkerRegistry } from '../../../../src/proxy/relay/worker-registry.ts'
import { pullFrom } from '../../../helpers/event-stream.ts'
import { FakeClock } from '../../../helpers/fake-clock.ts'
import { FakeRelaySocket } from '../../../helpers/fake-relay-socket.ts'
import { createListingLogger } from '../../../helpers/listing-logger.ts'
import { chatRequest } from '../../../helpers/relay-server.ts'

const HEARTBEAT_MS = 1_000
const GRACE_MS = 5_000
const REQUEST_TIMEOUT_MS = 20_000
const STATUS = { type: 'worker_status', healthy: true, load: 0, models: [], weight_version: null }

function setUp() {
  const clock = new FakeClock()
  const notices: string[] = []
  const { logger, lines } = createListingLogger()
  const logged = (...events: LogEventName[]) =>
    lines.filter(({ event }) => events.includes(event as LogEventName))
  const defects: Error[] = []
  const addNotice = (event: string) => (worker: ConnectedWorker) => {
    const defect = defects.pop()
    if (defect) throw defect
    notices.push(`${event} ${worker.identity.workerId} ${worker.isConnected ? 'connected' : 'disconnected'}`)
  }
  const limits = {
    heartbeatMs: HEARTBEAT_MS,
    graceMs: GRACE_MS,
    requestTimeoutMs: REQUEST_TIMEOUT_MS,
    windowBytes: 1_000,
    v1MaxConcurrency: 4,
  }
  const registry = new WorkerRegistry(
    { limits, clock, logger },
    { onJoined: addNotice('joined'), onChanged: addNotice('changed'), onLeft: addNotice('left') },
  )
  const connection = { bytesRead: 100 }
  const dial = (hello?: object) => {
    const socket = new FakeRelaySocket()
    registry.accept(socket, () => {}, connection)
    if (hello) socket.emitFrame({ type: 'worker_hello', worker_id: 'w', ...hello })
    return socket
  }
  const dialV2 = (overrides: object = {}) =>
    dial({
      protocol: 2,
      capabilities: ['cancel', 'resume'],
      models: [],
      max_concurrency: 4,
      weight_version: null,
      epoch: 1,
      requests: [],
      ...overrides,
    })
  const start = (requestId = 'r1') => {
    const request = registry.get('w')!.begin(chatRequest('x'), requestId)
    const events = pullFrom((sink, left) => request.pushTo(sink, left))
    const first = events.next()
    first.catch(() => {})
    return first
  }
  return { clock, notices, logged, registry, connection, dial, dialV2, start, defects }
}

t.test('a socket that is silent for ten seconds is closed, and its later frames are ignored', async (t) => {
  const { clock, dial, registry } = setUp()
  const socket = dial()
  clock.advance(9_999)
  t.equal(socket.closedWith, undefined)
  clock.advance(1)
  t.equal(socket.closedWith, 4000)
  socket.emitFrame({ type: 'worker_hello', worker_id: 'w' })
  t.equal(registry.get('w'), undefined)
})

t.test(
  'a worker that responds to pings stays connected; one that is silent for three heartbeats is disconnected',
  async (t) => {
    const { clock, dialV2, notices, logged } = setUp()
    const socket = dialV2()
    for (let beat = 0; beat < 10; beat += 1) {
      clock.advance(HEARTBEAT_MS)
      socket.emit('pong')
    }
    t.equal(socket.pings, 10)
    t.strictSame(notices, ['joined w connected'])
    clock.advance(3 * HEARTBEAT_MS)
    t.strictSame(notices, ['joined w connected', 'changed w disconnected'])
    t.match(logged('worker_cut_off'), [{ level: 'warn', worker_id: 'w', reason: '3 s of silence' }])
  },
)

t.test('a worker that rejects a frame of the proxy keeps its requests for the grace period', async (t) => {
  const { clock, dialV2, notices } = setUp()
  dialV2().emit('close', 4003, 'bad frame')
  clock.advance(GRACE_MS - 1)
  t.strictSame(notices, ['joined w connected', 'changed w disconnected'])
  dialV2()
  t.equal(notices.at(-1), 'changed w connected')
  const socket = dialV2()
  socket.emit('message', Buffer.from('null'), false)
  t.equal(socket.closedWith, 4003)
  t.equal(notices.at(-1), 'left w disconnected', 'a worker that the proxy rejects leaves at once')
})

t.test('a frame that is still arriving is a sign of life, until no more of it arrives', async (t) => {
  const { clock, dialV2, notices, connection, logged } = setUp()
  const socket = dialV2()
  // A pong arrives in full; it counts as a frame, not as a part of one.
  clock.advance(HEARTBEAT_MS)
  connection.bytesRead += 6
  socket.emit('pong')
  for (let second = 0; second < 20; second += 1) {
    clock.advance(HEARTBEAT_MS)
    connection.bytesRead += 1_000_000
  }
  t.strictSame(notices, ['joined w connected'])
  clock.advance(6 * HEARTBEAT_MS)
  t.strictSame(notices, ['joined w connected', 'changed w disconnected'])
  t.match(logged('worker_cut_off'), [{ reason: '3 s of silence' }])
})

t.test('a worker that sends but does not read costs bounded memory, and is disconnected', async (t) => {
  const { clock, dialV2, notices, logged } = setUp()
  const socket = dialV2()
  const count = () => socket.sent.filter(({ type }) => type === 'pong').length
  const flood = (pings: number) => {
    for (let ping = 0; ping < pings; ping += 1) socket.emitFrame({ type: 'ping' })
  }
  flood(100)
  t.equal(count(), 100, 'a worker that reads receives every pong')
  socket.stopReading()
  flood(1_000)
  t.equal(count(), 160)
  socket.resumeReading()
  flood(1)
  t.equal(count(), 161)
  socket.stopReading()
  for (let elapsedMs = 0; elapsedMs < REQUEST_TIMEOUT_MS; elapsedMs += HEARTBEAT_MS) {
    clock.advance(HEARTBEAT_MS)
    flood(100)
  }
  t.equal(count(), 221)
  t.equal(socket.pings, 1, 'a ping waits, so no other is sent')
  t.strictSame(notices, ['joined w connected'])
  clock.advance(HEARTBEAT_MS)
  t.strictSame(notices, ['joined w connected', 'changed w disconnected'])
  t.match(logged('worker_cut_off'), [{ level: 'warn', worker_id: 'w', reason: '20 s without reading' }])
  const other = dialV2()
  other.emitFrame({ type: 'ping' })
  t.equal(other.sent.at(-1)?.type, 'pong', 'its next connection starts anew')
})

t.test('a silent worker of version 1 keeps its requests up to the time limit of each', async (t) => {
  const { clock, dial, notices, logged, start } = setUp()
  const socket = dial({})
  const request = start()
  clock.advance(REQUEST_TIMEOUT_MS - 1)
  t.strictSame(notices, ['joined w connected'])
  socket.emitFrame({
    type: 'completion_response',
    request_id: 'r1',
    response: { choices: [{ message: { content: 'late' }, finish_reason: 'stop' }] },
  })
  t.equal((await request).done, false, 'the response arrives late and is accepted')
  t.strictSame(logged('worker_cut_off'), [])
})

t.test(
  'a silent worker of version 1 without requests is cut off after three heartbeats, with a warning',
  async (t) => {
    const { clock, dial, notices, logged } = setUp()
    dial({})
    clock.advance(3 * HEARTBEAT_MS)
    t.strictSame(notices, ['joined w connected', 'left w disconnected'])
    t.match(logged('worker_cut_off'), [{ level: 'warn', worker_id: 'w', reason: '3 s of silence' }])
  },
)

t.test('a worker of version 1 that stays silent is cut off in spite of new requests', async (t) => {
  const { clock, dial, notices, start } = setUp()
  dial({})
  const request = start()
  clock.advance(REQUEST_TIMEOUT_MS - HEARTBEAT_MS)
  const later = start('r2')
  clock.advance(2 * HEARTBEAT_MS)
  t.strictSame(notices, ['joined w connected', 'left w disconnected'])
  await t.rejects(request, { code: 'engine_timeout' })
  await t.rejects(later, { code: 'worker_lost' })
})

t.test('any frame is a sign of life', async (t) => {
  const { clock, dialV2, notices } = setUp()
  const socket = dialV2()
  for (let beat = 0; beat < 10; beat += 1) {
    clock.advance(HEARTBEAT_MS)
    socket.emitFrame({ type: 'pong' })
  }
  t.strictSame(notices, ['joined w connected'])
})

t.test('requests of a disconnected worker wait for the grace period, to the millisecond', async (t) => {
  const { clock, dialV2, notices, start } = setUp()
  const socket = dialV2()
  const request = start()
  socket.emit('close', 1006, '')
  clock.advance(GRACE_MS - 1)
  t.strictSame(notices, ['joined w connected', 'changed w disconnected'])
  clock.advance(1)
  t.strictSame(notices, ['joined w connected', 'changed w disconnected', 'left w disconnected'])
  await t.rejects(request, { code: 'worker_lost' })
  t.equal(clock.pending, 0, 'no timer is left')
})

t.test('a worker that reconnects in time keeps its requests', async (t) => {
  const { clock, dialV2, notices, start } = setUp()
  const socket = dialV2()
  const request = start()
  socket.emit('close', 1006, '')
  clock.advance(GRACE_MS - 1)
  const reconnected = dialV2({ requests: ['r1'] })
  reconnected.emitFrame({ type: 'completion_chunk', request_id: 'r1', seq: 1, deltas: [{ content: 'a' }] })
  for (let beat = 0; beat < 10; beat += 1) {
    clock.advance(HEARTBEAT_MS)
    reconnected.emit('pong')
  }
  t.strictSame(notices, ['joined w connected', 'changed w disconnected', 'changed w connected'])
  t.same((await request).value, [{ type: 'delta', content: 'a' }])
})

t.test('a worker that closes with 1000 has left, and has no grace period', async (t) => {
  const { dialV2, notices, start } = setUp()
  const socket = dialV2()
  const request = start()
  socket.emit('close', 1000, '')
  t.strictSame(notices, ['joined w connected', 'left w disconnected'])
  await t.rejects(request, { code: 'worker_lost' })
})

t.test('a worker of version 1 has no grace period', async (t) => {
  const { dial, notices, start } = setUp()
  const socket = dial({})
  const request = start()
  socket.emit('close', 1006, '')
  t.strictSame(notices, ['joined w connected', 'left w disconnected'])
  await t.rejects(request, { code: 'worker_lost' })
})

t.test('the late close of a replaced socket has no effect', async (t) => {
  const { dialV2, notices } = setUp()
  const old = dialV2()
  dialV2()
  t.equal(old.closedWith, 4004)
  old.emit('close', 4004, '')
  old.emitFrame({ type: 'worker_status' })
  t.strictSame(notices, ['joined w connected', 'changed w connected'])
})

t.test('a request without a frame for the relay timeout fails, and is cancelled at the worker', async (t) => {
  const { clock, dialV2, start } = setUp()
  const socket = dialV2()
  const request = start()
  const sendHeartbeat = () => {
    clock.advance(HEARTBEAT_MS)
    socket.emit('pong')
  }
  for (let elapsedMs = 0; elapsedMs < REQUEST_TIMEOUT_MS; elapsedMs += HEARTBEAT_MS) sendHeartbeat()
  await t.rejects(request, { code: 'engine_timeout', status: 504 })
  t.match(socket.sent.at(-1), { type: 'completion_cancel', request_id: 'r1' })
})

t.test('closing disconnects every worker with 1001 and fails running requests', async (t) => {
  const { registry, dialV2, start, clock } = setUp()
  const socket = dialV2()
  const request = start()
  registry.close()
  t.equal(socket.closedWith, 1001)
  await t.rejects(request, { code: 'worker_lost' })
  socket.emit('close', 1001, '')
  t.equal(clock.pending, 0)
})

t.test('a defect while a frame is handled ends the connection of that worker only', async (t) => {
  const { registry, dialV2, notices, logged, defects, start } = setUp()
  const other = dialV2({ worker_id: 'other' })
  const socket = dialV2()
  const request = start()
  const defect = new Error('assertion failed')
  defects.push(defect)
  socket.emitFrame({ ...STATUS, draining: false })
  t.match(logged('worker_connection_failed'), [{ level: 'error', worker_id: 'w', err: defect }])
  t.strictSame(notices.slice(2), ['changed w disconnected'])
  t.ok(registry.get('other')!.isConnected && other.closedWith === undefined)
  const reconnected = dialV2({ requests: ['r1'] })
  reconnected.emitFrame({ type: 'completion_chunk', request_id: 'r1', seq: 1, deltas: [{ content: 'a' }] })
  t.same((await request).value, [{ type: 'delta', content: 'a' }], 'its requests continue when it reconnects')
})
