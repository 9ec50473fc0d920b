import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { GenerationEvent } from '../../../../src/protocol/canonical/events.ts'
import { MAX_FRAME_BYTES } from '../../../../src/protocol/worker/protocol.ts'
import { FrameBuffer } from '../../../../src/proxy/relay/frame-buffer.ts'
import { ResendBuffer } from '../../../../src/worker/resend-buffer.ts'
import { limitRuns } from '../../../helpers/tier.ts'

const WINDOW_BYTES = 30

/** Serializes a frame of this test: its number and one part of a text. */
const write = (content: string) => (seq: number) => JSON.stringify([seq, content])

function deliver(incoming: FrameBuffer, text: string): string {
  const [seq, content] = JSON.parse(text) as [number, string]
  const verdict = incoming.judge(seq)
  if (verdict === 'new') incoming.receive([{ type: 'delta', content }], Buffer.byteLength(text))
  return verdict
}

const contents = (events: readonly GenerationEvent[]) =>
  events.map((event) => (event.type === 'delta' ? event.content : event.type))

/** Two state machines and a connection between them that the test can break. */
class Exchange {
  readonly outgoing = new ResendBuffer()
  readonly incoming: FrameBuffer
  readonly #windowBytes: number
  readonly sent: string[] = []
  readonly consumed: unknown[] = []
  readonly verdicts = new Set<string>()
  /** Frames in flight on the connection, and on connections that were cut. */
  wire: string[] = []
  late: string[] = []
  acks: number[] = []

  constructor(windowBytes = WINDOW_BYTES) {
    this.#windowBytes = windowBytes
    this.incoming = new FrameBuffer(windowBytes)
  }

  produce(): void {
    if (!this.outgoing.hasRoom(this.#windowBytes)) return
    const content = `chunk ${this.sent.length}`
    this.sent.push(content)
    this.wire.push(this.outgoing.add(write(content)))
  }

  arrive(): void {
    const text = this.wire.shift()
    if (text !== undefined) this.verdicts.add(deliver(this.incoming, text))
  }

  arriveLate(): void {
    const text = this.late.shift()
    if (text !== undefined) this.verdicts.add(deliver(this.incoming, text))
  }

  take(): void {
    const { events, acknowledge } = this.incoming.take()
    this.consumed.push(...contents(events))
    this.#notify(acknowledge)
  }

  /** Each frame contains one part. The worker may drop only frames that the proxy has consumed. */
  #notify(seq: number | undefined): void {
    if (seq === undefined) return
    assert.ok(seq <= this.consumed.length, `${seq} acknowledged, ${this.consumed.length} consumed`)
    this.acks.push(seq)
  }

  acknowledge(): void {
    const seq = this.acks.shift()
    if (seq !== undefined) this.outgoing.acknowledge(seq)
  }

  cut(): void {
    this.late.push(...this.wire)
    this.wire = []
    this.acks = []
  }

  reconnect(): void {
    this.cut()
    this.wire = this.outgoing.listAfter(this.incoming.received)
    this.#notify(this.incoming.acknowledge())
  }

  finish(): void {
    this.reconnect()
    while (this.wire.length > 0) this.arrive()
    this.take()
  }
}

/** A large window does not acknowledge consumed frames immediately. */
const WINDOWS = fc.constantFrom(WINDOW_BYTES, 20 * WINDOW_BYTES)
const STEPS = ['produce', 'arrive', 'arriveLate', 'take', 'acknowledge', 'reconnect'] as const

t.test('for any cuts, duplicates and delays, each part is delivered once, in order', async (t) => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...STEPS), { maxLength: 200 }), WINDOWS, (steps, windowBytes) => {
      const exchange = new Exchange(windowBytes)
      for (const step of steps) exchange[step]()
      exchange.finish()
      assert.deepEqual(exchange.consumed, exchange.sent)
      assert.ok(!exchange.verdicts.has('gap') && !exchange.verdicts.has('overflow'))
    }),
    { numRuns: limitRuns(1_000) },
  )
  t.pass('in a thousand random exchanges')
})

t.test('a sender stops at the window, and continues when its frames were acknowledged', async (t) => {
  const exchange = new Exchange()
  for (let i = 0; i < 10; i += 1) exchange.produce()
  t.equal(exchange.sent.length, 3, 'the frame that crosses the limit is the last')
  for (let i = 0; i < 10; i += 1) exchange.arrive()
  exchange.produce()
  t.equal(exchange.sent.length, 3, 'frames that were received but not consumed still count')
  exchange.take()
  exchange.acknowledge()
  exchange.produce()
  t.equal(exchange.sent.length, 4)
})

t.test('received frames still fill the window after a reconnect', async (t) => {
  const exchange = new Exchange()
  for (let i = 0; i < 3; i += 1) exchange.produce()
  for (let i = 0; i < 3; i += 1) exchange.arrive()
  exchange.reconnect()
  t.strictSame(exchange.wire, [], 'nothing is sent again')
  t.notOk(exchange.outgoing.hasRoom(WINDOW_BYTES))
})

t.test('a full window is released after a reconnect if its acknowledgement was lost', async (t) => {
  const exchange = new Exchange()
  for (let i = 0; i < 3; i += 1) exchange.produce()
  for (let i = 0; i < 3; i += 1) exchange.arrive()
  exchange.take()
  t.strictSame(exchange.acks, [3])
  exchange.reconnect()
  exchange.acknowledge()
  t.ok(exchange.outgoing.hasRoom(WINDOW_BYTES), 'the worker continues')
})

t.test('a reconnecting worker gets acknowledgements of consumed frames only', async (t) => {
  const incoming = new FrameBuffer(1_000)
  incoming.receive([], 10)
  t.equal(incoming.take().acknowledge, undefined, 'too little for an immediate acknowledgement')
  incoming.receive([], 10)
  t.equal(incoming.acknowledge(), 1)
  t.equal(incoming.received, 2)
  t.equal(new FrameBuffer(1_000).acknowledge(), undefined, 'nothing was consumed')
})

t.test('a frame after a missing one is a gap; one beyond the window is an overflow', async (t) => {
  const incoming = new FrameBuffer(10)
  t.equal(incoming.judge(2), 'gap')
  t.equal(incoming.judge(1), 'new')
  incoming.receive([], 10)
  t.equal(incoming.judge(1), 'duplicate')
  t.equal(incoming.judge(2), 'overflow')
  incoming.take()
  t.equal(incoming.judge(2), 'new')
})

t.test('acknowledgements are rare: one for each quarter of the window', async (t) => {
  const incoming = new FrameBuffer(1_000)
  const acks = []
  for (let i = 0; i < 100; i += 1) {
    incoming.receive([], 10)
    const { acknowledge } = incoming.take()
    if (acknowledge !== undefined) acks.push(acknowledge)
  }
  t.strictSame(acks, [25, 50, 75, 100])
  incoming.receive([], 240)
  incoming.take()
  t.equal(incoming.acknowledge(), 101)
  incoming.receive([], 249)
  t.equal(incoming.take().acknowledge, undefined, 'the count restarts')
  incoming.receive([], 1)
  t.equal(incoming.take().acknowledge, 103)
})

t.test('a text beyond the frame limit is rejected, and the next one has its number', async (t) => {
  const outgoing = new ResendBuffer()
  const longest = 'x'.repeat(MAX_FRAME_BYTES)
  t.throws(() => outgoing.add(() => `${longest}x`), { code: 'engine_failed' })
  t.ok(outgoing.hasRoom(1), 'no part of it is stored')
  t.equal(
    outgoing.add(() => longest),
    longest,
  )
  t.equal(outgoing.add(write('a')), '[2,"a"]')
})

t.test('a request is delivered once its last frame was acknowledged', async (t) => {
  const outgoing = new ResendBuffer()
  outgoing.add(write('a'))
  outgoing.acknowledge(1)
  t.notOk(outgoing.isDelivered, 'more frames may follow')
  outgoing.end(write('b'))
  t.notOk(outgoing.isDelivered)
  outgoing.acknowledge(2)
  t.ok(outgoing.isDelivered)
})
