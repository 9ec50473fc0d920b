import { EventEmitter } from 'node:events'
import type { ServerResponse } from 'node:http'
import { setImmediate } from 'node:timers/promises'
import t from 'tap'
import {
  DELIVERY_HEADER,
  Deliveries,
  type DeliveryOutcome,
} from '../../../../../src/proxy/http/nodes/deliveries.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'
import { createFakeNodeCoordination } from '../../../../helpers/fake-node-coordination.ts'

/** A response that a test writes and closes. */
class FakeResponse extends EventEmitter {
  readonly headers: Record<string, string> = {}
  headersSent = false
  closed = false
  writableFinished = false

  setHeader(name: string, value: string): void {
    this.headers[name] = value
  }

  end(isComplete: boolean): void {
    this.writableFinished = isComplete
    this.closed = true
    this.emit('close')
  }
}

function setUp() {
  const clock = new FakeClock()
  const shared = createFakeNodeCoordination({ lease: 1 })
  const deliveries = new Deliveries(shared, clock)
  const outcomes: DeliveryOutcome[] = []
  const watch = (id: string | undefined, sessionId?: string) => {
    const response = new FakeResponse()
    const message = id === undefined ? undefined : { from: 2, id }
    deliveries.watch(response as unknown as ServerResponse, message, sessionId, (outcome) =>
      outcomes.push(outcome),
    )
    return response
  }
  return { clock, shared, deliveries, outcomes, watch }
}

t.test('a response to a client is delivered when all of it was written', async (t) => {
  const { outcomes, watch, deliveries } = setUp()
  const response = watch(undefined)
  t.strictSame(response.headers, {}, 'no report is requested from a client')
  response.end(true)
  watch(undefined).end(false)
  t.strictSame(outcomes, ['delivered', 'cut'])
  t.equal(deliveries.count, 0)
})

t.test('a response to a node is delivered when the node reports it', async (t) => {
  const { outcomes, watch, deliveries } = setUp()
  const response = watch('a', 's')
  t.ok(response.headers[DELIVERY_HEADER], 'the header requests a report from the node')
  response.end(true)
  t.strictSame(outcomes, [], 'a response that reached the node may not have reached the client')
  deliveries.acknowledge(3, 'a', false)
  deliveries.acknowledge(2, 'b', false)
  t.strictSame(outcomes, [], 'only from the node that forwarded the request, under its id')
  deliveries.acknowledge(2, 'a', true)
  deliveries.acknowledge(2, 'a', false)
  t.strictSame(outcomes, ['delivered'], 'once')
  watch('c', 's').end(true)
  deliveries.acknowledge(2, 'c', false)
  t.strictSame(outcomes, ['delivered', 'lost'])
  t.equal(deliveries.count, 0)
})

t.test('a report may arrive before the response is known to be written', async (t) => {
  const { outcomes, watch, deliveries } = setUp()
  const response = watch('a', 's')
  deliveries.acknowledge(2, 'a', true)
  response.end(true)
  t.strictSame(outcomes, ['delivered'])
  t.equal(deliveries.count, 0)
})

t.test('a response that the node did not receive completely is truncated', async (t) => {
  const { outcomes, watch, deliveries } = setUp()
  watch('a', 's').end(false)
  deliveries.acknowledge(2, 'a', true)
  t.strictSame(outcomes, ['cut'])
  t.equal(deliveries.count, 0)
})

t.test("a response without an acknowledgement at the end of a node's lease is lost", async (t) => {
  const { outcomes, watch, deliveries, shared } = setUp()
  watch('a', 's').end(true)
  watch('b', 's')
  shared.end(2)
  t.strictSame(outcomes, ['lost', 'lost'])
  t.equal(deliveries.count, 0)
})

t.test(
  'the next request of a session waits up to a second for the reports on written responses',
  async (t) => {
    const { outcomes, watch, deliveries, clock } = setUp()
    await deliveries.settle('s')
    const running = watch('running', 's')
    await deliveries.settle('s')
    t.strictSame(outcomes, [], 'a response in flight is not waited for')
    watch('a', 's').end(true)
    watch('b', 'another').end(true)
    let isSettled = false
    const settled = deliveries.settle('s').then(() => {
      isSettled = true
    })
    clock.advance(900)
    await setImmediate()
    t.notOk(isSettled)
    deliveries.acknowledge(2, 'a', true)
    await settled
    t.strictSame(outcomes, ['delivered'])
    watch('c', 's').end(true)
    const timedOut = deliveries.settle('s')
    clock.advance(1_000)
    await timedOut
    t.strictSame(outcomes, ['delivered', 'lost'], 'without a report it counts as lost')
    deliveries.acknowledge(2, 'c', true)
    running.end(true)
    t.equal(
      deliveries.count,
      2,
      "other sessions' responses, and those in flight, are waited for no longer than that",
    )
  },
)
