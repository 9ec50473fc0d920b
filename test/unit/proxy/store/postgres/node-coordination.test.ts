import { setImmediate } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { assertTransition } from '../../../../../src/base/transitions.ts'
import type { ControlSetting } from '../../../../../src/proxy/store/port/node-coordination.ts'
import {
  NODE_TRANSITIONS,
  PostgresNodeCoordination,
} from '../../../../../src/proxy/store/postgres/node-coordination.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'
import { listTransitions } from '../../../../helpers/list-transitions.ts'
import { createListingLogger } from '../../../../helpers/listing-logger.ts'

/**
 * Creates a node, and the database's reply to each renewal of its lease. The last reply repeats.
 */
function startNode(t: Test, ...renewals: { lease?: number; others?: object[]; freed?: number }[]) {
  const { logger, lines } = createListingLogger()
  let renewalCount = 0
  const execute = async () => {
    const { lease = 1, others = [], freed = 0 } = renewals[Math.min(renewalCount++, renewals.length - 1)]!
    const proxies = [{ id: lease, name: 'self', url: undefined, isDraining: false }, ...others]
    return { lease, proxies, over: [], freed, controls: [] }
  }
  const shared = new PostgresNodeCoordination(
    { execute } as unknown as ConstructorParameters<typeof PostgresNodeCoordination>[0],
    logger,
  )
  t.teardown(() => shared.close())
  /** Returns the lines since it was last called, without those of states. */
  const show = () => lines.splice(0).filter(({ level }) => level !== 'debug')
  return { shared, show }
}

const other = { id: 2, name: 'b', url: 'http://b', isDraining: false }

t.test('joining nodes, crashed ones and drained ones are distinguished', async (t) => {
  const draining = { id: 3, name: 'c', url: 'http://c', isDraining: true }
  const { shared, show } = startNode(t, {}, { others: [other, draining] }, { freed: 7 })
  await shared.start()
  t.strictSame(show(), [])
  await shared.publish({})
  t.match(show(), [
    { event: 'node_joined', level: 'info', node: 'b', url: 'http://b' },
    { event: 'node_joined', node: 'c' },
  ])
  await shared.publish({})
  const last = show()
  t.match(last, [
    { event: 'sessions_freed', level: 'info', sessions: 7 },
    { event: 'node_lost', level: 'warn', node: 'b', url: 'http://b' },
    { event: 'node_left', level: 'info', node: 'c' },
  ])
  t.equal(last.length, 3)
})

t.test('a node whose lease was ended logs this instead of its own loss', async (t) => {
  const { shared, show } = startNode(t, { others: [other] }, { lease: 4, others: [other] })
  await shared.start()
  await shared.publish({})
  const last = show()
  t.match(last, [{ event: 'node_fenced', level: 'warn' }])
  t.equal(last.length, 1)
})

const { allowed, forbidden } = listTransitions(NODE_TRANSITIONS)
type State = keyof typeof NODE_TRANSITIONS

/** The lines for operators that a transition logs beside `node_state`. */
const OPERATOR_EVENTS: Record<string, string> = {
  'serving expired': 'node_expired',
  'draining expired': 'node_expired',
  'expired serving': 'node_renewed',
  'expired draining': 'node_renewed',
}

/** Creates a node with the actions that lead to each state. */
function setUp() {
  const { logger, lines } = createListingLogger()
  const clock = new FakeClock()
  let database: 'up' | 'down' | 'lease ended' = 'up'
  let response = Promise.resolve()
  let controls: ControlSetting[] = []
  const execute = async (method: string, [argument, value]: [unknown?, unknown?] = []) => {
    const found = database
    await response
    if (method === 'setControl') {
      controls.push({ name: String(argument), value, change: controls.length + 1 })
      return controls.length
    }
    const self = { id: 1, name: 'self', isDraining: false, ...(argument as { seen: number }) }
    if (found === 'up') return { lease: 1, proxies: [self], over: [], freed: 0, controls }
    if (found === 'down' || method === 'renew') throw new Error('connection lost')
    return undefined
  }
  const writer = { execute } as unknown as ConstructorParameters<typeof PostgresNodeCoordination>[0]
  const shared = new PostgresNodeCoordination(writer, logger, clock)
  let isStarted = false
  const renew = async (found: typeof database, isDraining = false) => {
    database = found
    const renewed = isStarted ? shared.publish(isDraining ? { isDraining } : {}) : shared.start()
    isStarted = true
    await renewed.catch(() => {})
  }
  const enter: Record<State, () => void | Promise<void>> = {
    joining: () => {},
    serving: () => renew('up'),
    draining: () => renew('up', true),
    expired: () => {
      database = 'down'
      clock.advance(10_000)
    },
    fenced: () => renew('lease ended'),
    closed: () => shared.close(),
  }
  const delayResponses = () => {
    const { promise, resolve } = Promise.withResolvers<void>()
    response = promise
    return resolve
  }
  const setControls = (...settings: ControlSetting[]) => {
    controls = settings
  }
  return { shared, clock, lines, enter, delayResponses, setControls }
}

/** The states that lead to each state of a new node. */
const PATHS: Record<State, State[]> = {
  joining: [],
  serving: ['serving'],
  draining: ['serving', 'draining'],
  expired: ['serving', 'expired'],
  fenced: ['serving', 'fenced'],
  closed: ['serving', 'closed'],
}

t.test('each transition of a node is logged, with the facts that an operator needs', async (t) => {
  for (const [from, to] of allowed) {
    const { shared, lines, enter } = setUp()
    for (const state of PATHS[from]) await enter[state]()
    lines.length = 0
    await enter[to]()
    const event = OPERATOR_EVENTS[`${from} ${to}`]
    t.match(lines, [
      { event: 'node_state', level: 'debug', previous_state: from, state: to },
      ...(event === undefined ? [] : [{ event }]),
    ])
    t.equal(lines.length, event === undefined ? 1 : 2, `${from} to ${to}`)
    shared.close()
  }
})

t.test('no other transition of a node is allowed', async (t) => {
  for (const [from, to] of forbidden)
    t.throws(() => assertTransition(NODE_TRANSITIONS, from, to), { code: 'ERR_ASSERTION' })
})

t.test('a reply to a renewal after the node was closed does not reopen it', async (t) => {
  const { shared, clock, lines, enter, delayResponses } = setUp()
  await enter.serving()
  const respond = delayResponses()
  const renewed = shared.publish({})
  shared.close()
  lines.length = 0
  respond()
  await renewed
  shared.close()
  t.strictSame([lines, clock.pending], [[], 0])
})

t.test(
  'a control change that takes long to apply delays neither renewals nor what a node publishes',
  async (t) => {
    const { shared, clock, lines, enter, setControls } = setUp()
    const { promise, resolve } = Promise.withResolvers<void>()
    const followed: unknown[] = []
    await enter.serving()
    shared.followControls(async ({ value }) => {
      followed.push(value)
      await promise
    })
    const changed = shared.setControl('weight_version', 'a')
    while (followed.length === 0) await setImmediate()
    for (let seconds = 0; seconds < 12; seconds += 1) {
      clock.advance(1_000)
      await setImmediate()
    }
    await shared.publish({ isDrained: true })
    t.strictSame(
      lines.filter(({ level }) => level !== 'debug'),
      [],
    )
    t.notOk(lines.some(({ state }) => state === 'expired'))
    setControls({ name: 'weight_version', value: 'b', change: 2 }, { name: 'paused', value: true, change: 3 })
    await shared.publish({})
    t.strictSame(followed, ['a'], 'changes are applied one at a time')
    resolve()
    await changed
    await shared.waitForControls()
    t.strictSame(followed, ['a', 'b', true])
    while (shared.self?.seen !== 3) await setImmediate()
    shared.close()
  },
)

t.test('a control change that fails is applied again after the next renewal', async (t) => {
  const { shared, enter, setControls } = setUp()
  let isFailing = true
  const followed: unknown[] = []
  shared.followControls(async ({ value }) => {
    if (isFailing) throw new Error('no engine responds')
    followed.push(value)
  })
  await enter.serving()
  setControls({ name: 'a', value: 1, change: 1 }, { name: 'b', value: 2, change: 2 })
  await t.rejects(shared.waitForControls(), { message: 'no engine responds' })
  isFailing = false
  await shared.waitForControls()
  t.strictSame(followed, [1, 2])
  shared.close()
})
