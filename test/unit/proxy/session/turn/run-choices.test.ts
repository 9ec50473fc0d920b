/**
 * One request with several choices is several turns, but still one request: it succeeds or fails as a unit.
 */
import t, { type Test } from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import type { CompletionBody } from '../../../../../src/protocol/canonical/request.ts'
import { Sessions } from '../../../../../src/proxy/session/state/sessions.ts'
import { TrajectoryBuilder } from '../../../../../src/proxy/session/trajectories/trajectories.ts'
import { beginChoices, type ChoicesHandle } from '../../../../../src/proxy/session/turn/run-choices.ts'
import { TurnRunner } from '../../../../../src/proxy/session/turn/run-turn.ts'
import type { OpenTurn, TurnStore } from '../../../../../src/proxy/store/port/turn-store.ts'
import {
  completeResponse,
  respond,
  type Script,
  ScriptedBackend,
  untilAborted,
} from '../../../../helpers/scripted-backend.ts'
import { type SessionRequest, SessionTurnRunner } from '../../../../helpers/session-turn-runner.ts'
import { silentLogger } from '../../../../helpers/silent-logger.ts'
import { openMemoryStore } from '../../../../helpers/store-in-process.ts'

const never = new AbortController().signal

async function setUp(t: Test, script?: Script, existing?: TurnStore) {
  const store = existing ?? (await openMemoryStore())
  const backend = new ScriptedBackend(script)
  const hooks = { onEnded() {}, onSweepFailed() {}, onSweepDeferred() {} }
  const sessions = new Sessions(store, hooks, { strict: false, defaultTtlMs: null, settleMs: 1_000 })
  t.teardown(() => sessions.close())
  const runner = new SessionTurnRunner(
    new TurnRunner({ sessions, backend, store, logger: silentLogger }),
    sessions,
  )
  return { backend, sessions, store, runner }
}

function createRequest(n: number, overrides: object = {}, retryCount = 0): SessionRequest {
  const body = { model: 'm', messages: [{ role: 'user', content: 'hello' }], n, ...overrides }
  const metadata = { retryCount, hasAgentKey: false }
  return {
    sessionId: 's',
    dialect: 'chat',
    request: { kind: 'chat', body },
    stream: true,
    metadata,
  } as SessionRequest
}

async function read(choices: ChoicesHandle): Promise<number[]> {
  const order: number[] = []
  await choices.deliver({ write: ({ choice }) => void order.push(choice) as undefined })
  return order
}

const getTurns = (store: TurnStore) => Array.fromAsync(store.readTurns('s'))

/** The first choice fails once another one is complete; the others run until they are cancelled. */
function failFirst(failure: ProxyError): Script {
  const second = Promise.withResolvers<void>()
  let requestCount = 0
  return async function* (_request, signal) {
    const index = requestCount++
    if (index === 0) {
      await second.promise
      throw failure
    }
    yield* respond(completeResponse().slice(0, -1))
    if (index > 1) await untilAborted(signal)
    yield completeResponse().slice(-1)
    // Events after the last one come after the commit.
    second.resolve()
  }
}

t.test('each choice is a turn: concurrent, requested alone, with its own seed', async (t) => {
  const { runner, store, backend } = await setUp(t)
  await Promise.all([
    runner.beginChoices(createRequest(3, { seed: 7 }), 3, never).then(read),
    runner.beginChoices(createRequest(2), 2, never).then(read),
  ])
  const turns = await getTurns(store)
  t.same(
    turns.map(({ index, status }) => [index, status]),
    [0, 1, 2, 3, 4].map((index) => [index, 'completed']),
  )
  const choices = turns.map(({ annotations }) => JSON.parse(annotations).choice)
  t.same(
    choices.map(({ index, of }) => [index, of]),
    [
      [0, 3],
      [1, 3],
      [2, 3],
      [0, 2],
      [1, 2],
    ],
  )
  t.same(
    choices.map((choice) => choice.call),
    [0, 0, 0, 3, 3].map((first) => turns[first]!.turnId),
  )
  t.same(
    turns.map(({ params }) => JSON.parse(params)),
    [7, 8, 9, undefined, undefined].map((seed, i) => ({
      model: 'm',
      n: i < 3 ? 3 : 2,
      ...(seed !== undefined && { seed }),
    })),
  )
  const bodies = backend.requests.map(({ body }) => JSON.parse(JSON.stringify(body)))
  t.notOk(bodies.some((body: CompletionBody) => 'n' in body))
  t.same(bodies.map(({ seed }) => seed ?? null).sort(), [7, 8, 9, null, null])
})

t.test("a session's own seed is each choice's seed, too", async (t) => {
  const { runner, sessions, backend } = await setUp(t)
  await sessions.create({ sessionId: 's', samplingParams: { seed: 40 } })
  await read(await runner.beginChoices(createRequest(2, { seed: 1 }), 2, never))
  t.same(
    backend.requests.map(({ body }) => body.seed),
    [40, 41],
  )
})

t.test('deltas of the choices are forwarded on arrival', async (t) => {
  const gates = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  let requestCount = 0
  const { runner } = await setUp(t, async function* () {
    const index = requestCount++
    yield [completeResponse()[0]!]
    await gates[index]!.promise
    yield* respond(completeResponse().slice(1))
  })
  const choices = await runner.beginChoices(createRequest(2), 2, never)
  const order: number[] = []
  await choices.deliver({
    write: ({ choice, events }) => {
      order.push(choice)
      // The second runs first, and the first once that one is complete.
      if (order.length === 2) gates[1]!.resolve()
      if (events.some(({ type }) => type === 'end')) gates[0]!.resolve()
      return undefined
    },
  })
  t.same(order.slice(0, 2).sort(), [0, 1])
  t.same(order.slice(2), [1, 1, 1, 0, 0, 0])
  t.ok(choices.isComplete)
})

t.test('when one choice fails, the request fails, and the others are not trained', async (t) => {
  const failure = new ProxyError('engine_failed', 'out of memory')
  const { runner, store } = await setUp(t, failFirst(failure))
  const choices = await runner.beginChoices(createRequest(3), 3, never)
  await t.rejects(read(choices), failure)
  const turns = await getTurns(store)
  t.same(
    turns.map(({ status, error }) => [status, error?.code]),
    [
      ['failed', 'engine_failed'],
      ['aborted', 'turn_cancelled'],
      ['aborted', 'turn_cancelled'],
    ],
  )
  t.match(turns[1]?.error?.message, /Another choice of this request failed: out of memory/)
})

t.test('an agent that disconnects aborts every choice, also complete ones', async (t) => {
  const agent = new AbortController()
  let requestCount = 0
  const { runner, store } = await setUp(t, async function* (_request, signal) {
    const index = requestCount++
    yield* respond(completeResponse().slice(0, -1))
    if (index > 0) await untilAborted(signal)
    yield completeResponse().slice(-1)
  })
  const choices = await runner.beginChoices(createRequest(2), 2, agent.signal)
  const agentGone = new ProxyError('agent_gone', 'gone')
  const write = ({ events }: { events: readonly GenerationEvent[] }): undefined => {
    if (events.some(({ type }) => type === 'end')) agent.abort(agentGone)
  }
  await t.rejects(choices.deliver({ write }), agentGone)
  t.same(
    (await getTurns(store)).map(({ status, error }) => [status, error?.code]),
    [
      ['aborted', 'agent_gone'],
      ['aborted', 'agent_gone'],
    ],
  )
})

t.test('a sink that fails ends every choice', async (t) => {
  const { runner, store } = await setUp(t)
  const choices = await runner.beginChoices(createRequest(2), 2, never)
  const write = () => {
    throw new ProxyError('engine_failed', 'it cannot be written')
  }
  await t.rejects(choices.deliver({ write }), { code: 'engine_failed' })
  t.same(
    (await getTurns(store)).map(({ status, error }) => [status, error?.code]),
    [
      ['failed', 'engine_failed'],
      ['failed', 'engine_failed'],
    ],
  )
})

t.test('when the store rejects one turn, none is left open and no engine receives a request', async (t) => {
  const store = await openMemoryStore()
  const { runner, backend, sessions } = await setUp(t, undefined, store)
  let opened = 0
  const begin = async (...[request, signal]: Parameters<TurnRunner['begin']>) => {
    opened += 1
    if (opened === 2) throw new ProxyError('store_failed', 'full')
    return runner.turnRunner.begin(request, signal)
  }
  const { sessionId, ...rest } = createRequest(3)
  const session = sessions.acquire(sessionId)
  await t.rejects(beginChoices({ begin }, { ...rest, session }, 3, never), { code: 'store_failed' })
  t.same(
    (await getTurns(store)).map(({ status, error }) => [status, error?.code]),
    [
      ['aborted', 'turn_cancelled'],
      ['aborted', 'turn_cancelled'],
    ],
  )
  t.same(backend.requests, [])
  await sessions.complete('s')
})

t.test('equal choices are never superseded; a retry of the request supersedes each once', async (t) => {
  const { runner, store } = await setUp(t)
  const getRows = async () => {
    const builder = new TrajectoryBuilder()
    for (const turn of await getTurns(store)) builder.add(turn)
    return { superseded: builder.countExcluded().superseded, rows: [...builder.assembleRows({}, null)] }
  }
  await read(await runner.beginChoices(createRequest(3), 3, never))
  const first = await getRows()
  t.equal(first.superseded, 0)
  t.same(
    first.rows.map(({ response_mask }) => [...response_mask]),
    Array.from({ length: 3 }, () => [1, 1, 1]),
  )
  // The agent never received those, because its client declares a retry.
  await read(await runner.beginChoices(createRequest(3, {}, 1), 3, never))
  const then = await getRows()
  t.equal(then.superseded, 3)
  t.same(
    then.rows.map(({ turns }) => turns.map(({ index }) => index)),
    [[3], [4], [5]],
  )
})

t.test(
  'a retry of a request with a failed choice repeats its failures, and no delivered sample',
  async (t) => {
    let fails = true
    const failing = failFirst(new ProxyError('engine_failed', 'out of memory'))
    const { runner, store } = await setUp(t, (...args) =>
      fails ? failing(...args) : respond(completeResponse()),
    )
    await t.rejects(runner.beginChoices(createRequest(2), 2, never).then(read))
    fails = false
    await read(await runner.beginChoices(createRequest(2), 2, never))
    await read(await runner.beginChoices(createRequest(2, {}, 1), 2, never))
    const builder = new TrajectoryBuilder()
    for (const turn of await getTurns(store)) builder.add(turn)
    t.match(builder.countExcluded(), { superseded: 0, failed: 1, aborted: 1 })
    t.equal([...builder.assembleRows({}, null)].length, 4)
  },
)

t.test('the turns of a session that ends during its choices are all closed', async (t) => {
  const { runner, store, sessions } = await setUp(t, async function* (_request, signal) {
    await untilAborted(signal)
    yield []
  })
  const choices = await runner.beginChoices(createRequest(2), 2, never)
  const reading = read(choices)
  await Promise.all([t.rejects(reading, { code: 'turn_cancelled' }), sessions.complete('s')])
  t.ok(choices.signal.aborted)
  t.same(
    (await getTurns(store)).map(({ status }: Pick<OpenTurn, 'turnId'> & { status: string }) => status),
    ['aborted', 'aborted'],
  )
})
