/**
 * A response that is not streamed sends nothing for minutes: meanwhile the worker reports that the request is alive.
 */
import { once } from 'node:events'
import t, { type Test } from 'tap'
import type { RelayBackend } from '../../src/proxy/relay/relay-backend.ts'
import type { ByteCounter } from '../../src/proxy/relay/relay-socket.ts'
import { InferenceWorkerClient } from '../../src/worker/inference-worker-client.ts'
import { pull } from '../helpers/event-stream.ts'
import { FakeClock } from '../helpers/fake-clock.ts'
import { RawConnection } from '../helpers/raw-connection.ts'
import { RawWorker } from '../helpers/raw-worker.ts'
import { chatRequest, getText, readEvents, relayServerFor } from '../helpers/relay-server.ts'
import { completeResponse, ScriptedBackend } from '../helpers/scripted-backend.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

const TIMEOUT_MS = 300_000

/** Starts a relay whose clock the test controls; heartbeats are disabled. */
async function startRelayWithClock(t: Test) {
  const clock = new FakeClock()
  return { clock, ...(await relayServerFor(t, { clock, requestTimeoutMs: TIMEOUT_MS, heartbeatMs: 1e9 })) }
}

/** Reports a healthy engine, since a worker without one gets no requests. */
class HealthyBackend extends ScriptedBackend {
  override getStatus() {
    const member = {
      name: 'e',
      kind: 'vllm',
      healthy: true,
      inFlight: 0,
      models: [],
      capacity: 8,
      takesTokenIds: false,
    }
    return { members: [member], queued: 0 }
  }
}

/** Starts a worker whose engine responds when the test lets it. */
async function startSlowWorker(t: Test, url: string) {
  const clock = new FakeClock()
  let respond = () => {}
  const response = new Promise<void>((resolve) => (respond = resolve))
  const backend = new HealthyBackend(async function* () {
    await response
    yield completeResponse()
  })
  const options = { proxyUrls: [url], workerId: 'w', maxConcurrency: 4, logger: silentLogger }
  const worker = new InferenceWorkerClient({ ...options, backend, clock })
  t.teardown(() => worker.stop(AbortSignal.abort()))
  worker.start()
  await once(worker, 'connected')
  return { clock, backend, respond }
}

/** Waits until everything that the worker has sent was received, since frames are in order. */
async function settle(backend: RelayBackend): Promise<void> {
  await backend.refresh()
}

t.test('a request whose engine is silent for longer than the relay timeout is served', async (t) => {
  const { clock, url, backend } = await startRelayWithClock(t)
  const worker = await startSlowWorker(t, url)
  const text = readEvents(backend, chatRequest('x')).then(getText)
  await until(() => worker.backend.requests.length === 1)
  for (let tenth = 0; tenth < 100; tenth += 1) {
    clock.advance(TIMEOUT_MS / 10)
    worker.clock.advance(TIMEOUT_MS / 10)
    await settle(backend)
  }
  worker.respond()
  t.equal(await text, 'hi there')
})

t.test('a request that the worker no longer reports fails after the relay timeout', async (t) => {
  const { clock, url, backend } = await startRelayWithClock(t)
  const worker = await RawWorker.hello(url, { capabilities: ['alive', 'status'] })
  t.match(await worker.next('worker_hello_ack'), { capabilities: ['alive', 'status'], alive_ms: 100_000 })
  const failing = t.rejects(readEvents(backend, chatRequest('x')), { code: 'engine_timeout' })
  const { request_id: requestId } = await worker.next('completion_request')
  clock.advance(TIMEOUT_MS - 1)
  worker.send({ type: 'calls_alive', request_ids: ['of another life', requestId] })
  const response = settle(backend)
  const { seq } = await worker.next('worker_status_request')
  const status = { healthy: true, load: 1, models: [], weight_version: null, draining: false }
  worker.send({ type: 'worker_status', ...status, answers: seq })
  await response
  clock.advance(TIMEOUT_MS - 1)
  t.equal(backend.getStatus().members[0]?.inFlight, 1, 'the alive frame has extended its timeout')
  clock.advance(1)
  await failing
})

t.test(
  'an alive frame does not extend the timeout of an agent that does not read its response',
  async (t) => {
    const { clock, url, backend } = await startRelayWithClock(t)
    const worker = await RawWorker.hello(url, { capabilities: ['alive'] })
    const events = pull(backend, chatRequest('x'), new AbortController().signal)[Symbol.asyncIterator]()
    const first = events.next()
    const { request_id: requestId } = await worker.next('completion_request')
    worker.chunk(requestId, 1, 'one', { start: { engine: 'e' } })
    await first
    worker.chunk(requestId, 2, 'two')
    worker.send({ type: 'ping' })
    await worker.next('pong')
    clock.advance(TIMEOUT_MS - 1)
    worker.send({ type: 'calls_alive', request_ids: [requestId] })
    worker.send({ type: 'ping' })
    await worker.next('pong')
    clock.advance(1)
    await events.next()
    await t.rejects(events.next(), { code: 'agent_too_slow' })
  },
)

/** Returns a masked text frame of a client, with a mask of zeros. */
function toTextFrame(text: string): Buffer {
  const header = Buffer.alloc(14)
  header.writeUInt16BE(0x81ff)
  header.writeBigUInt64BE(BigInt(text.length), 2)
  return Buffer.concat([header, Buffer.from(text)])
}

t.test('a worker whose frame arrives slowly stays connected, over a real connection', async (t) => {
  const clock = new FakeClock()
  const { backend, port } = await relayServerFor(t, { clock, heartbeatMs: 1_000 })
  const connections: (ByteCounter | undefined)[] = []
  const accept = backend.accept.bind(backend)
  backend.accept = (...accepted) => {
    connections.push(accepted[2])
    accept(...accepted)
  }
  const worker = await RawConnection.open(`http://127.0.0.1:${port}`)
  t.teardown(() => worker.socket.destroy())
  const headers = 'Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13'
  const key = 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=='
  worker.send(`GET /ws/worker HTTP/1.1\r\nHost: x\r\n${headers}\r\n${key}\r\n\r\n`)
  await worker.until('\r\n\r\n')
  worker.send(toTextFrame('{"type":"worker_hello","worker_id":"w"}'))
  await worker.until('worker_hello_ack')
  const frame = toTextFrame('{"type":"ping"}')
  const [connection] = connections
  for (const byte of frame.subarray(0, 12)) {
    const before = connection!.bytesRead
    worker.send(Buffer.of(byte))
    await until(() => connection!.bytesRead > before)
    clock.advance(1_000)
  }
  worker.send(frame.subarray(12))
  await worker.until('{"type":"pong"}')
  clock.advance(4_000)
  await worker.closed
})
