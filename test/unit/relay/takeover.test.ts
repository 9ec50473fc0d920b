import t, { type Test } from 'tap'
import type { GenerationRequest } from '../../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../../src/protocol/token-ids/prompt-ids.ts'
import { packTokenIds } from '../../../src/protocol/worker/token-ids.ts'
import { createRelayBackend } from '../../../src/proxy/relay/relay-backend.ts'
import { ServedCall } from '../../../src/worker/served-call.ts'
import { FakeClock } from '../../helpers/fake-clock.ts'
import { FakeRelaySocket } from '../../helpers/fake-relay-socket.ts'
import { chatRequest, eventsOf, textOf } from '../../helpers/relay-server.ts'
import { silentLogger } from '../../helpers/silent-logger.ts'

const GRACE_MS = 5_000
const KEEP_MS = 2_000

const TURN = 'turn-1'
const OFFER = { request_id: TURN, by_ids: false }

/** A proxy that has just been started. */
function setUp(t: Test) {
  const clock = new FakeClock()
  let takeovers = 0
  const tookOver = () => {
    takeovers += 1
  }
  const watch = { waited() {}, failedOver() {}, refused() {}, tookOver }
  const limits = { graceMs: GRACE_MS, keepMs: KEEP_MS, windowBytes: 10_000 }
  const backend = createRelayBackend({ ...limits, clock, watch, logger: silentLogger })
  t.teardown(() => backend.close())
  const dial = (worker_id: string, offers: (typeof OFFER)[], more: object = {}) => {
    const socket = new FakeRelaySocket()
    backend.accept(socket)
    const capabilities = ['cancel', 'offer', 'resume', 'token_ids']
    const self = { protocol: 2, capabilities, models: [], max_concurrency: 4, weight_version: '8', epoch: 1 }
    const requests = offers.map(({ request_id }) => request_id)
    socket.says({ type: 'worker_hello', worker_id, ...self, requests, offers, ...more })
    return socket
  }
  return { backend, clock, dial, tookOver: () => takeovers }
}

const retry = (more: Partial<GenerationRequest> = {}) =>
  ({ ...chatRequest('x'), takesOver: TURN, ...more }) as GenerationRequest

const sentTo = (socket: FakeRelaySocket, type: string) => socket.sent.filter((frame) => frame.type === type)

/** The proxy acts on what it has heard in steps of promises alone. */
const settled = () => new Promise(setImmediate)

function answer(socket: FakeRelaySocket, requestId: string, text: string, start: object = {}): void {
  const call = { request_id: requestId }
  socket.says({
    ...{ type: 'completion_chunk', ...call, seq: 1 },
    ...{ start: { engine: 'e', ...start }, deltas: [{ content: text }] },
  })
  socket.says({ type: 'completion_response', ...call, seq: 2, finish_reason: 'stop', error: null })
}

/** Answers what the proxy has asked of the worker itself. */
async function answerAnew(t: Test, socket: FakeRelaySocket): Promise<void> {
  await settled()
  const [asked] = sentTo(socket, 'completion_request')
  t.ok(asked, 'it is asked anew')
  answer(socket, `${asked?.request_id}`, 'anew')
}

t.test('what a worker offers is kept, and given to the retry that asks for it, once', async (t) => {
  const { backend, dial, tookOver } = setUp(t)
  const socket = dial('w', [OFFER])
  t.match(sentTo(socket, 'worker_hello_ack'), [{ requests: [], kept: [TURN] }])
  answer(socket, TURN, 'of before')
  t.equal(textOf(await eventsOf(backend, retry())), 'of before')
  t.equal(tookOver(), 1)
  t.strictSame(sentTo(socket, 'completion_request'), [])
  const second = eventsOf(backend, retry())
  await settled()
  t.strictSame(sentTo(socket, 'completion_request'), [], 'another worker may have it')
  backend.pause()
  const resumed = backend.resume()
  await resumed
  await answerAnew(t, socket)
  t.equal(textOf(await second), 'anew')
  t.equal(tookOver(), 1)
})

t.test(
  'an answer that is still under way goes on to the retry, and is acknowledged by its old name',
  async (t) => {
    const { backend, dial } = setUp(t)
    const socket = dial('w', [OFFER])
    const text = eventsOf(backend, retry()).then(textOf)
    await settled()
    answer(socket, TURN, 'of before')
    t.equal(await text, 'of before')
    t.match(sentTo(socket, 'completion_ack'), [{ request_id: TURN, seq: 2 }])
  },
)

t.test('the number of an attempt is no part of the name of its turn', async (t) => {
  const { backend, dial } = setUp(t)
  const socket = dial('w', [{ request_id: `${TURN}.2`, by_ids: false }])
  answer(socket, `${TURN}.2`, 'of before')
  t.equal(textOf(await eventsOf(backend, retry())), 'of before')
})

t.test('the call goes to the worker that began it, whoever has less to do', async (t) => {
  const { backend, dial } = setUp(t)
  const idle = dial('idle', [], { models: [{ id: 'b' }] })
  const socket = dial('w', [OFFER], { models: [{ id: 'a' }, { id: 'b' }], max_concurrency: 8 })
  const gone = new AbortController()
  const others = [1, 2, 3, 4].map((n) =>
    eventsOf(backend, chatRequest(`${n}`, { model: 'a' }), gone.signal).catch(() => {}),
  )
  await settled()
  t.equal(sentTo(socket, 'completion_request').length, 4)
  answer(socket, TURN, 'of before')
  const asked = { ...retry(), body: { messages: [{ role: 'user', content: 'x' }], model: 'b' } }
  t.equal(textOf(await eventsOf(backend, asked as GenerationRequest)), 'of before')
  t.strictSame(sentTo(idle, 'completion_request'), [])
  gone.abort(new Error('gone'))
  await Promise.all(others)
})

t.test('a retry that comes before its worker waits for it', async (t) => {
  const { backend, clock, dial, tookOver } = setUp(t)
  const other = dial('other', [])
  const text = eventsOf(backend, retry()).then(textOf)
  await settled()
  clock.advance(KEEP_MS - 1)
  const socket = dial('w', [OFFER])
  answer(socket, TURN, 'of before')
  t.equal(await text, 'of before')
  t.strictSame(sentTo(other, 'completion_request'), [])
  t.equal(tookOver(), 1)
})

t.test('it does not wait for longer than calls are kept, nor when its agent has gone', async (t) => {
  const { backend, clock, dial } = setUp(t)
  const socket = dial('w', [])
  const gone = new AbortController()
  const left = eventsOf(backend, retry(), gone.signal)
  const text = eventsOf(backend, retry()).then(textOf)
  await settled()
  gone.abort(new Error('gone'))
  await t.rejects(left, { message: 'gone' })
  clock.advance(KEEP_MS)
  await answerAnew(t, socket)
  t.equal(await text, 'anew')
})

t.test('what nobody asks for is cancelled after a while, and no timer is left', async (t) => {
  const { clock, dial } = setUp(t)
  const socket = dial('w', [OFFER])
  const pending = clock.pending
  clock.advance(KEEP_MS - 1)
  t.strictSame(sentTo(socket, 'completion_cancel'), [])
  clock.advance(1)
  t.match(sentTo(socket, 'completion_cancel'), [{ request_id: TURN }])
  t.equal(clock.pending, pending - 2, 'its own and that of its silence')
})

t.test('a pause cancels it at once, and what is offered after one is not kept', async (t) => {
  const { backend, dial } = setUp(t)
  const socket = dial('w', [OFFER])
  backend.pause()
  t.match(sentTo(socket, 'completion_cancel'), [{ request_id: TURN }])
  const late = dial('late', [OFFER])
  t.notOk(sentTo(late, 'worker_hello_ack')[0]?.kept)
})

t.test('nothing is kept from a worker that does not say it can, nor long after the start', async (t) => {
  const { clock, dial } = setUp(t)
  const old = dial('old', [OFFER], { capabilities: ['cancel', 'resume'] })
  t.notOk(sentTo(old, 'worker_hello_ack')[0]?.kept)
  clock.advance(GRACE_MS)
  const late = dial('late', [OFFER])
  t.notOk(sentTo(late, 'worker_hello_ack')[0]?.kept)
})

t.test('an answer that failed is no answer: the call is made anew', async (t) => {
  const { backend, dial, tookOver } = setUp(t)
  const socket = dial('w', [OFFER])
  const error = { code: 'engine_failed', message: 'out of memory', status: 500 }
  socket.says({ type: 'completion_response', request_id: TURN, seq: 1, finish_reason: null, error })
  const text = eventsOf(backend, retry()).then(textOf)
  await answerAnew(t, socket)
  t.equal(await text, 'anew')
  t.equal(tookOver(), 0)
})

t.test('token mode: only the answer to the very same ids is taken', async (t) => {
  const asked = PromptIds.of(1, 2, 3)
  const byIds = (ids: PromptIds) => retry({ kind: 'chat', promptTokenIds: ids } as Partial<GenerationRequest>)
  for (const [told, offer, text] of [
    [[1, 2, 3], { ...OFFER, by_ids: true }, 'of before'],
    [[1, 2, 4], { ...OFFER, by_ids: true }, 'anew'],
    [[1, 2, 3], OFFER, 'anew'],
  ] as const) {
    const { backend, dial } = setUp(t)
    const socket = dial('w', [offer])
    answer(socket, TURN, 'of before', { prompt_token_ids: packTokenIds(told) })
    const given = eventsOf(backend, byIds(asked)).then(textOf)
    if (text === 'anew') await answerAnew(t, socket)
    t.equal(await given, text)
  }
})

/** A frame of so many bytes. */
const frame = (bytes: number) => (seq: number) => `${seq}`.padEnd(bytes, '.')

t.test('a worker has an answer from its first frame on, acknowledged or not, up to the window', async (t) => {
  const call = new ServedCall(TURN, 100)
  t.ok(call.makeWhole(), 'one that has not begun')
  call.add(frame(40))
  call.add(frame(40))
  call.acknowledge(1)
  t.ok(call.makeWhole())
  t.strictSame(
    call.fromTheBeginning().map((text) => text.slice(0, 1)),
    ['1', '2'],
  )
  t.strictSame(call.after(0).length, 2, 'nothing of it counts as acknowledged any more')
  call.acknowledge(2)
  call.add(frame(40))
  t.notOk(call.makeWhole(), 'it is more than a proxy takes before it is asked for it')
  t.strictSame(call.after(0), [frame(40)(3)], 'and goes on for the proxy that asked for it')
})

t.test('the first frame is written anew, without what the proxy that asked knew', async (t) => {
  const call = new ServedCall(TURN, 100)
  call.writesFirst(() => 'long'.padEnd(60, '.'))
  t.ok(call.makeWhole(), 'there is none yet')
  call.add(() => 'short')
  t.ok(call.makeWhole())
  t.strictSame(call.after(0), ['short'], 'the one that asked gets what it was sent')
  t.strictSame(call.fromTheBeginning(), ['long'.padEnd(60, '.')])
  call.add(frame(40))
  t.notOk(call.makeWhole(), 'its length counts')
})
