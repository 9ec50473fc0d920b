import { EventEmitter } from 'node:events'
import t from 'tap'
import type WebSocket from 'ws'
import { ProxyError } from '../../../src/base/errors.ts'
import { withContext } from '../../../src/base/logger.ts'
import { assertTransition } from '../../../src/base/transitions.ts'
import { MAX_FRAME_BYTES } from '../../../src/protocol/worker/protocol.ts'
import { Dispatcher } from '../../../src/proxy/engines/dispatch/dispatcher.ts'
import { PROXY_LINK_TRANSITIONS, ProxyLink } from '../../../src/worker/proxy-link.ts'
import { WorkerCache } from '../../../src/worker/worker-cache.ts'
import { FakeClock } from '../../helpers/fake-clock.ts'
import { listTransitions } from '../../helpers/list-transitions.ts'
import { createListingLogger } from '../../helpers/listing-logger.ts'
import { type Script, ScriptedBackend, untilAborted } from '../../helpers/scripted-backend.ts'
import { until } from '../../helpers/until.ts'

const { allowed, forbidden } = listTransitions(PROXY_LINK_TRANSITIONS)
type State = keyof typeof PROXY_LINK_TRANSITIONS

const GRACE_MS = 5_000
const ACK = {
  ...{ type: 'worker_hello_ack', worker_id: 'w', status: 'connected', protocol: 2, capabilities: [] },
  ...{ heartbeat_ms: 1_000_000, grace_ms: GRACE_MS, window_bytes: 1_000, requests: [] },
}
const REQUEST = {
  ...{ type: 'completion_request', request_id: 'r1', session_id: 's', kind: 'chat', stream: true },
  ...{ messages: [{ role: 'user', content: 'hi' }], temperature: 1, top_p: 1, max_tokens: 8 },
  ...{ stop: null, tools: null, repetition_penalty: null, body: { max_tokens: 8 } },
}

/** A socket to a fake proxy. */
class FakeSocket extends EventEmitter {
  readonly sent: { type: string; [field: string]: unknown }[] = []

  send(text: string): void {
    this.sent.push(JSON.parse(text))
  }

  receive(frame: object): void {
    this.emit('message', Buffer.from(JSON.stringify(frame)), false)
  }

  close(code = 1006): void {
    this.emit('close', code, '')
  }

  terminate(): void {
    this.close()
  }
}

const settle = () => new Promise((resolve) => setImmediate(resolve))

const awaitAbort: Script = async function* (_request, signal) {
  await untilAborted(signal)
  yield []
}

/** Starts a link whose engine never responds by default; `enter` has the actions that lead to each state. */
function setUp(script = awaitAbort) {
  const { logger, lines } = createListingLogger()
  const clock = new FakeClock()
  const sockets: FakeSocket[] = []
  const slots = new Dispatcher({
    ...{ queueLimit: 1, waitMs: 1, clock },
    createAbsentError: () => ({ code: 'internal', message: 'no slots' }),
  })
  slots.addMember({ id: 'slots', maxConcurrency: 4, healthy: true, draining: false, models: [] })
  const defects: Error[] = []
  const link = new ProxyLink({
    ...{ url: 'ws://proxy/ws/worker', address: undefined, ca: undefined, apiKeys: [], workerId: 'w' },
    ...{ epoch: 1, maxConcurrency: 4, slots, clock, memory: new WorkerCache(() => 0), random: () => 0.5 },
    backend: new ScriptedBackend(script),
    logger: withContext(logger, { worker_id: 'w', proxy: 'http://proxy', address: undefined }),
    dial: () => {
      const socket = new FakeSocket()
      sockets.push(socket)
      return socket as unknown as WebSocket
    },
    getStatus: () => ({
      ...{ type: 'worker_status', healthy: true, load: 0, models: [], weight_version: null },
      draining: false,
      capabilities: [],
    }),
    onConnected: () => {
      const defect = defects.pop()
      if (defect) throw defect
    },
    onDisconnected: () => {},
  })
  const run = link.run()
  const socket = () => sockets.at(-1)!
  const enter: Record<State, () => void | Promise<void>> = {
    connecting: async () => {
      if (link.isConnected || socket().sent.length > 0) socket().close()
      await settle()
      clock.advance(60_000)
      await settle()
    },
    handshaking: () => void socket().emit('open'),
    serving: () => (link.isConnected ? link.resumeServing() : socket().receive(ACK)),
    draining: () => void (link.isConnected ? link.drain() : socket().receive(ACK)),
    closed: () => link.stop(),
  }
  const transitions = () =>
    lines
      .filter(({ event }) => event === 'proxy_link_state')
      .map(({ level, worker_id, proxy, previous_state, state }) =>
        [level, worker_id, proxy, previous_state, state].join(' '),
      )
  return { link, run, clock, socket, sockets, lines, enter, transitions, defects }
}

/** The states that lead to each state of a new link. */
const PATHS: Record<State, State[]> = {
  connecting: [],
  handshaking: ['handshaking'],
  serving: ['handshaking', 'serving'],
  draining: ['handshaking', 'serving', 'draining'],
  closed: ['closed'],
}

t.test('each transition of a link is logged with its proxy', async (t) => {
  for (const [from, to] of allowed) {
    const { link, lines, enter, transitions } = setUp()
    for (const state of PATHS[from]) await enter[state]()
    // A link that starts to drain without a connection drains once it is connected.
    if (from === 'handshaking' && to === 'draining') void link.drain()
    lines.length = 0
    await enter[to]()
    t.strictSame(transitions(), [`debug w http://proxy ${from} ${to}`])
    t.equal(link.isConnected, to === 'serving' || to === 'draining')
    link.stop()
  }
})

t.test('no other transition is allowed', async (t) => {
  for (const [from, to] of forbidden)
    t.throws(() => assertTransition(PROXY_LINK_TRANSITIONS, from, to), { code: 'ERR_ASSERTION' })
})

t.test('a stopped link ignores a late ack, and stays closed', async (t) => {
  const { link, run, clock, socket, sockets, enter, transitions } = setUp()
  await enter.handshaking()
  socket().removeAllListeners('close')
  socket().on('close', () => {})
  link.stop()
  socket().receive(ACK)
  link.resumeServing()
  link.stop()
  t.notOk(link.isConnected)
  t.equal(transitions().at(-1), 'debug w http://proxy handshaking closed')
  t.equal(sockets.length, 1)
  t.equal(clock.pending, 1, 'only the timer of the socket is left, which has not closed')
  void run
})

t.test('a defect while a frame is handled ends the connection, and the link dials again', async (t) => {
  const { link, sockets, lines, enter, defects, clock } = setUp()
  await enter.handshaking()
  const defect = new Error('assertion failed')
  defects.push(defect)
  await enter.serving()
  t.match(
    lines.filter(({ event }) => event === 'proxy_connection_failed'),
    [{ level: 'error', worker_id: 'w', proxy: 'http://proxy', err: defect }],
  )
  await settle()
  clock.advance(60_000)
  await settle()
  t.equal(sockets.length, 2)
  await enter.handshaking()
  await enter.serving()
  t.ok(link.isConnected)
  link.stop()
})

t.test('a request whose last frame exceeds the limit ends with a short error', async (t) => {
  const text = 'x'.repeat(MAX_FRAME_BYTES)
  const rejection = new ProxyError('engine_rejected', text, {
    ...{ status: 422, retryAfterS: 2, param: text, logMessage: 'rejected', engineBody: { message: text } },
  })
  const scripts: [Script, object][] = [
    [
      async function* () {
        yield []
        throw rejection
      },
      {
        ...{ code: 'engine_rejected', status: 422, retry_after_s: 2, log_message: 'rejected' },
        message: 'x'.repeat(2_000),
      },
    ],
    [
      async function* () {
        yield [{ type: 'end', finishReason: 'stop', stopReason: text }]
      },
      { code: 'engine_failed', message: 'one batch of the engine exceeds the frame limit' },
    ],
  ]
  for (const [script, error] of scripts) {
    const { link, socket, enter } = setUp(script)
    for (const state of PATHS.serving) await enter[state]()
    socket().receive(REQUEST)
    const response = await until(() => socket().sent.find(({ type }) => type === 'completion_response'))
    t.match(response, { request_id: 'r1', seq: 1, finish_reason: null, error })
    t.notMatch(response, { error: { engine_body: {} } })
    socket().receive({ type: 'completion_ack', request_id: 'r1', seq: 1 })
    t.equal(await link.drain(), true)
    link.stop()
  }
})

t.test('pongs that the proxy does not read cost bounded memory', async (t) => {
  const { link, socket, enter } = setUp()
  for (const state of PATHS.serving) await enter[state]()
  // The socket never reports that it has written a pong.
  for (let ping = 0; ping < 1_000; ping += 1) socket().receive({ type: 'ping' })
  t.equal(socket().sent.filter(({ type }) => type === 'pong').length, 60)
  link.stop()
})

t.test('a frame that is still arriving is a sign of life, until no more of it arrives', async (t) => {
  const { link, socket, clock, enter } = setUp()
  const connection = { bytesRead: 200 }
  await enter.handshaking()
  socket().emit('upgrade', { socket: connection })
  socket().receive({ ...ACK, heartbeat_ms: 1_000 })
  socket().emit('ping')
  for (let second = 0; second < 20; second += 1) {
    connection.bytesRead += 1_000_000
    clock.advance(1_000)
  }
  await settle()
  t.ok(link.isConnected)
  clock.advance(6_000)
  await settle()
  t.notOk(link.isConnected)
  link.stop()
})

t.test('a link drains while it is disconnected, too, and rejects new requests afterwards', async (t) => {
  const { link, clock, socket, enter } = setUp()
  for (const state of PATHS.serving) await enter[state]()
  socket().receive(REQUEST)
  socket().close()
  await settle()
  clock.advance(1_000)
  await settle()
  void link.drain()
  await enter.handshaking()
  socket().receive({ ...ACK, requests: [{ request_id: 'r1', received: 0 }] })
  t.match(socket().sent, [
    { type: 'worker_hello', requests: ['r1'] },
    { type: 'worker_status', draining: true },
  ])
  socket().receive({ ...REQUEST, request_id: 'r2' })
  t.match(socket().sent.at(-1), { request_id: 'r2', error: { code: 'shutting_down' } })
  link.stop()
})

t.test('a drain reports whether requests were dropped because the proxy did not return', async (t) => {
  for (const isDropped of [true, false]) {
    const { link, socket, clock, enter } = setUp()
    for (const state of PATHS.serving) await enter[state]()
    socket().receive(REQUEST)
    const drained = link.drain()
    if (isDropped) {
      socket().close()
      await settle()
      clock.advance(GRACE_MS)
    } else socket().receive({ type: 'completion_cancel', request_id: 'r1' })
    t.equal(await drained, !isDropped)
    link.stop()
  }
})
