import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { assertTransition } from '../../../../../src/base/transitions.ts'
import {
  ENGINE_HEALTH_TRANSITIONS,
  type EngineHealthReport,
  EngineHealthWatch,
} from '../../../../../src/proxy/engines/dispatch/engine-health.ts'
import type { EngineClient } from '../../../../../src/proxy/engines/port/engine-client.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'
import { listTransitions } from '../../../../helpers/list-transitions.ts'
import { createListingLogger } from '../../../../helpers/listing-logger.ts'

const { allowed, forbidden } = listTransitions(ENGINE_HEALTH_TRANSITIONS)
type State = keyof typeof ENGINE_HEALTH_TRANSITIONS

/** The events for operators that a transition logs in addition to `engine_health`. */
const OPERATOR_EVENTS: Record<string, string[]> = {
  'unchecked asleep': ['engine_unavailable'],
  'unchecked paused': ['engine_unavailable'],
  'unchecked down': ['engine_down'],
  'serving asleep': ['engine_unavailable'],
  'serving paused': ['engine_unavailable'],
  'serving down': ['engine_down'],
  'asleep serving': ['engine_available'],
  'asleep paused': ['engine_unavailable'],
  'asleep down': ['engine_down'],
  'paused serving': ['engine_available'],
  'paused asleep': ['engine_unavailable'],
  'paused down': ['engine_down'],
  'down serving': ['engine_up'],
  'down asleep': ['engine_up', 'engine_unavailable'],
  'down paused': ['engine_up', 'engine_unavailable'],
}

/** Watches an engine whose checks find the state that `enter` sets; the first check waits for it. */
function setUp() {
  const { logger, lines } = createListingLogger()
  const reports: EngineHealthReport[] = []
  const clock = new FakeClock()
  const { promise: firstEntered, resolve: check } = Promise.withResolvers<void>()
  let found: State = 'unchecked'
  const client = {
    name: 'http://e',
    checkHealth: async () => {
      await firstEntered
      if (found === 'down') throw new ProxyError('engine_unreachable', 'connection refused')
      return { models: [{ id: 'm' }], ...(found !== 'serving' && { unavailable: found }) }
    },
  } as unknown as EngineClient
  const onHealth = (report: EngineHealthReport) => void reports.push(report)
  const watch = new EngineHealthWatch({ client, intervalMs: 1_000, onHealth, logger, clock })
  const enter = async (state: State) => {
    if (state === 'unchecked') return
    if (state === 'closed') return watch.stop()
    found = state
    check()
    await watch.refresh()
  }
  return { watch, lines, reports, clock, enter }
}

t.test(
  'each transition of the health of an engine is logged, with the facts that an operator needs',
  async (t) => {
    for (const [from, to] of allowed) {
      const { lines, enter } = setUp()
      await enter(from)
      lines.length = 0
      await enter(to)
      t.match(
        lines.map(({ event, level, previous_state, state }) => ({ event, level, previous_state, state })),
        [
          { event: 'engine_health', level: 'debug', previous_state: from, state: to },
          ...(OPERATOR_EVENTS[`${from} ${to}`] ?? []).map((event) => ({ event })),
        ],
      )
      t.equal(lines.length, 1 + (OPERATOR_EVENTS[`${from} ${to}`]?.length ?? 0), `${from} to ${to}`)
    }
  },
)

t.test(
  'an engine that serves, sleeps or is paused is healthy; one that is down or closed is not',
  async (t) => {
    const seen: Record<string, unknown> = {}
    for (const state of Object.keys(ENGINE_HEALTH_TRANSITIONS) as State[]) {
      const { watch, enter } = setUp()
      await enter(state)
      seen[state] = [watch.healthy, watch.unavailable]
    }
    t.strictSame(seen, {
      unchecked: [true, undefined],
      serving: [true, undefined],
      asleep: [true, 'asleep'],
      paused: [true, 'paused'],
      down: [false, undefined],
      closed: [false, undefined],
    })
  },
)

t.test('no other transition is allowed', async (t) => {
  for (const [from, to] of forbidden)
    t.throws(() => assertTransition(ENGINE_HEALTH_TRANSITIONS, from, to), { code: 'ERR_ASSERTION' })
})

t.test(
  'a check with a forbidden result makes the engine unhealthy, and the next check still runs',
  async (t) => {
    const { watch, clock, enter } = setUp()
    await enter('rebooting' as State)
    t.match(watch, { healthy: false, error: /the state down must not become rebooting/ })
    await enter('serving')
    t.match(watch, { healthy: true, error: undefined })
    t.equal(clock.pending, 1, 'the next check is due')
  },
)

t.test('neither a check nor a request changes the health of a closed engine', async (t) => {
  const { watch, lines, reports, clock, enter } = setUp()
  await enter('closed')
  lines.length = 0
  await enter('serving')
  watch.markUnhealthy(new ProxyError('engine_unreachable', 'connection refused'))
  watch.stop()
  t.strictSame([watch.healthy, lines, reports, clock.pending], [false, [], [], 0])
})
