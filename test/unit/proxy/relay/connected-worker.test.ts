import t from 'tap'
import type { WorkerHelloV2 } from '../../../../src/protocol/worker/protocol.ts'
import { ConnectedWorker, WORKER_TRANSITIONS } from '../../../../src/proxy/relay/connected-worker.ts'
import { FakeClock } from '../../../helpers/fake-clock.ts'
import { FakeRelaySocket } from '../../../helpers/fake-relay-socket.ts'
import { listTransitions } from '../../../helpers/list-transitions.ts'
import { createListingLogger } from '../../../helpers/listing-logger.ts'

const { allowed, forbidden } = listTransitions(WORKER_TRANSITIONS)
type State = keyof typeof WORKER_TRANSITIONS

const HELLO: WorkerHelloV2 = {
  ...{ type: 'worker_hello', worker_id: 'w', protocol: 2, capabilities: [], models: [] },
  ...{ max_concurrency: 4, weight_version: null, epoch: 1, requests: [] },
}
const STATUS = { type: 'worker_status', healthy: true, load: 0, models: [], weight_version: null }

/** Creates a worker, with the method that leads to each state. */
function setUp() {
  const { logger, lines } = createListingLogger()
  const limits = { heartbeatMs: 1, graceMs: 1, requestTimeoutMs: 1, windowBytes: 1, v1MaxConcurrency: 1 }
  const identity = { workerId: 'w', version: 2, epoch: 1, capabilities: [], maxConcurrency: 4 } as const
  const worker = new ConnectedWorker(identity, { limits, clock: new FakeClock(), logger })
  const connect = () => worker.connectV2(new FakeRelaySocket(), HELLO)
  const report = (draining: boolean) => worker.receive({ ...STATUS, draining }, 100)
  const enter: Record<State, () => void> = {
    handshaking: () => {},
    serving: () => (worker.isConnected ? report(false) : connect()),
    draining: () => (worker.isConnected ? report(true) : connect()),
    disconnected: () => void worker.disconnect(),
    closed: () => worker.lose('has left'),
  }
  return { worker, lines, enter, connect }
}

/** The states that lead to each state of a new worker. */
const PATHS: Record<State, State[]> = {
  handshaking: [],
  serving: ['serving'],
  draining: ['serving', 'draining'],
  disconnected: ['serving', 'disconnected'],
  closed: ['serving', 'disconnected', 'closed'],
}

t.test('each transition of a worker is logged', async (t) => {
  for (const [from, to] of allowed) {
    const { worker, lines, enter } = setUp()
    // Only a worker that drained before its disconnect drains after its reconnect.
    const path: State[] =
      `${from} ${to}` === 'disconnected draining' ? [...PATHS.draining, from] : PATHS[from]
    for (const state of path) enter[state]()
    lines.length = 0
    enter[to]()
    t.strictSame(
      lines.map(({ message, ...line }) => line),
      [{ level: 'debug', event: 'worker_state', worker_id: 'w', previous_state: from, state: to }],
    )
    t.equal(worker.state, to)
    t.equal(worker.isConnected, to === 'serving' || to === 'draining')
  }
})

t.test('a worker that is connected, or was removed, cannot be connected', async (t) => {
  for (const state of ['serving', 'draining', 'closed'] as const) {
    const { worker, enter, connect } = setUp()
    for (const each of PATHS[state]) enter[each]()
    t.throws(connect, { code: 'ERR_ASSERTION' })
    t.equal(worker.state, state)
  }
})

t.test('a worker cannot be removed while it is connected, or twice', async (t) => {
  for (const [from] of forbidden.filter(([, to]) => to === 'closed')) {
    const { enter } = setUp()
    for (const each of PATHS[from]) enter[each]()
    t.throws(enter.closed, { code: 'ERR_ASSERTION' }, from)
  }
  const { enter } = setUp()
  for (const each of PATHS.closed) enter[each]()
  t.throws(enter.closed, { code: 'ERR_ASSERTION' })
})
