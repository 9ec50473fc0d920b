/**
 * The conformance suite of every {@link TurnStore} for reading sessions without their turns, and turns without their
 * tokens.
 */
import fc from 'fast-check'
import type { Test } from 'tap'
import { TrajectoryBuilder } from '../../src/proxy/session/trajectories/trajectories.ts'
import type {
  SessionQuery,
  TurnOutline,
  TurnRecord,
  TurnSearch,
  TurnStep,
  TurnStore,
} from '../../src/proxy/store/port/turn-store.ts'
import { withTexts } from '../helpers/messages.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { anOutcome, aTurn, createSession, createStoreTest, record } from './turn-store.ts'

const COUNTS = { turnCount: 0, openTurns: 0, failedTurns: 0, inexactTurns: 0, sampledTokens: 0 }

export function sessionReadsConformance(t: Test, open: (t: Test) => Promise<TurnStore>): void {
  const test = createStoreTest(t, open)

  test('a session counts its turns as they open, close, fail and are reset', async (t, store) => {
    const counts = async () => {
      const { turnCount, openTurns, failedTurns, inexactTurns, sampledTokens } = (await store.getSession(
        's',
      ))!
      return { turnCount, openTurns, failedTurns, inexactTurns, sampledTokens }
    }
    await store.createSession(createSession('s'))
    t.strictSame(await counts(), COUNTS)
    await store.openTurn(aTurn('a'))
    t.strictSame(await counts(), { ...COUNTS, turnCount: 1, openTurns: 1 })
    await store.closeTurn(anOutcome('a'))
    t.strictSame(await counts(), { ...COUNTS, turnCount: 1, sampledTokens: 2 })
    await record(store, aTurn('b', { index: 1 }), { status: 'failed', exact: false })
    await record(store, aTurn('c', { index: 2 }), { exact: false })
    await record(store, aTurn('d', { index: 3 }), { status: 'aborted', exact: false })
    t.strictSame(await counts(), {
      turnCount: 4,
      openTurns: 0,
      failedTurns: 1,
      inexactTurns: 1,
      sampledTokens: 8,
    })
    await store.closeTurn(anOutcome('c', { status: 'failed' }))
    t.match(await counts(), { failedTurns: 1 }, 'a turn that is closed again counts once')
    await store.markUndelivered('s', 'c', { code: 'agent_gone', message: 'gone' })
    await store.markUndelivered('s', 'c', { code: 'agent_gone', message: 'gone' })
    t.match(await counts(), { inexactTurns: 0 }, 'an undelivered turn is aborted instead of inexact')
    await store.resetSession('s', 9_000)
    t.strictSame(await counts(), COUNTS)
  })

  test('turns are found by their messages and completions, latest first', async (t, store) => {
    await recordSearchSessions(store)
    const find = async (wanted: string, search: Partial<TurnSearch> = {}) => {
      const { hits } = await store.searchTurns({ wanted, limit: 10, perSession: 10, ...search })
      return hits.map(
        ({ session, index, foundIn, match }) => `${session.sessionId}#${index} ${foundIn} ${match}`,
      )
    }
    t.strictSame(await find('ASSERT true'), ['b#1 completion assert True', 'a#0 completion assert True'])
    t.strictSame(
      await find("'s/x/\\n/'"),
      ["b#1 completion 's/x/\\n/'"],
      'arguments are searched as decoded text',
    )
    t.strictSame(await find('two\nlines'), ['a#1 request two\nlines'], 'only in the request that adds it')
    t.strictSame(await find('100%_'), ['a#1 request 100%_'], 'no character is a wildcard')
    t.strictSame(await find('海是什'), ['b#0 request 海是什'])
    t.strictSame(await find('because'), ['a#0 completion Because'], 'reasoning')
    t.strictSame(await find('a prompt'), ['b#2 request a prompt'])
    t.strictSame(await find('call_1'), [], 'ids are not searched')
    t.strictSame(await find('not here'), [])
    t.strictSame(await find('still open'), [])
    t.strictSame(await find('assert', { idPrefix: 'a' }), ['a#0 completion assert'])
    t.strictSame(await find('assert', { rewardMin: 1 }), ['b#1 completion assert'])
    t.strictSame(await find('e', { perSession: 1 }), ['b#2 completion e', 'a#1 completion e'])
    await store.resetSession('a', 9_000)
    t.strictSame(await find('assert'), ['b#1 completion assert'])
    await store.deleteSession('b')
    t.strictSame(await find('assert'), [])
  })

  test('a search continues where its page ended', async (t, store) => {
    await recordSearchSessions(store)
    const found: string[] = []
    let cursor: string | undefined
    do {
      const page = await store.searchTurns({
        wanted: 'e',
        limit: 2,
        perSession: 10,
        ...(cursor && { cursor }),
      })
      t.ok(page.hits.length <= 2)
      found.push(...page.hits.map(({ turnId }) => turnId))
      cursor = page.nextCursor
    } while (cursor !== undefined)
    t.strictSame(found, ['b2', 'b1', 'b0', 'a1', 'a0'])
    const wrong = { wanted: 'e', limit: 2, perSession: 1, cursor: 'bm8' }
    await t.rejects(store.searchTurns(wrong), { code: 'invalid_request', param: 'cursor' })
  })

  test('sessions are sorted by any of five values, up or down, in pages', async (t, store) => {
    await createFourSessions(store)
    const sorted = async (sort: SessionQuery['sort'], order: SessionQuery['order']) => {
      const ids: string[] = []
      let cursor: string | undefined
      do {
        const page = await store.listSessions({
          limit: 1,
          sort: sort!,
          order: order!,
          ...(cursor && { cursor }),
        })
        ids.push(...page.sessions.map(({ sessionId }) => sessionId))
        cursor = page.nextCursor
      } while (cursor !== undefined)
      return ids.join(' ')
    }
    t.equal(await sorted('created', 'desc'), 'd c b a')
    t.equal(await sorted('created', 'asc'), 'a b c d')
    t.equal(await sorted('reward', 'desc'), 'b a d c')
    t.equal(await sorted('reward', 'asc'), 'a b c d', 'those without a reward are last')
    t.equal(await sorted('turns', 'desc'), 'c d a b', 'equal values are sorted latest first')
    t.equal(await sorted('tokens', 'desc'), 'c a d b')
    t.equal(await sorted('changed', 'desc'), 'b a c d')
  })

  test('a cursor is valid only for the order of its page', async (t, store) => {
    await createFourSessions(store)
    const { nextCursor: cursor } = await store.listSessions({ limit: 1, sort: 'turns' })
    await t.rejects(store.listSessions({ limit: 1, sort: 'tokens', cursor: cursor! }), {
      code: 'invalid_request',
      param: 'cursor',
    })
    await t.rejects(store.listSessions({ limit: 1, sort: 'turns', order: 'asc', cursor: cursor! }), {
      code: 'invalid_request',
    })
  })

  test('sessions are found by text, reward, failed and inexact turns', async (t, store) => {
    await createFourSessions(store)
    const found = async (filter: Omit<SessionQuery, 'limit'>) => {
      const { sessions } = await store.listSessions({ ...filter, limit: 10, order: 'asc' })
      t.equal((await store.totalSessions(filter)).sessions, sessions.length, 'totals count the same')
      return sessions.map(({ sessionId }) => sessionId).join(' ')
    }
    t.equal(await found({ text: 'DJANGO' }), 'a b', 'in metadata, case-insensitively')
    t.equal(await found({ text: 'deep' }), 'c', 'at any depth')
    t.equal(await found({ text: 'd' }), 'a b c d', 'in the id too')
    t.equal(await found({ text: '%' }), '', 'and is not a wildcard')
    t.equal(await found({ idPrefix: 'a' }), 'a')
    t.equal(await found({ idPrefix: '_' }), '', 'and is not a wildcard')
    t.equal(await found({ idPrefix: 'abc' }), '')
    t.equal(await found({ rewardMin: 0.5 }), 'b')
    t.equal(await found({ rewardMax: 0.5 }), 'a')
    t.equal(await found({ rewardMin: 0.25, rewardMax: 1 }), 'a b')
    t.equal(await found({ failed: true }), 'c')
    t.equal(await found({ failed: false }), 'a b d')
    t.equal(await found({ inexact: true }), 'd')
    t.equal(await found({ status: 'completed', inexact: false }), 'b')
    t.equal(await found({ metadata: { task: 'django' }, text: 'b' }), 'b')
  })

  test('totals report how sessions ended and the distribution of rewards', async (t, store) => {
    await createFourSessions(store)
    const { rewards, ...counts } = await store.totalSessions({})
    t.strictSame(counts, {
      sessions: 4,
      active: 3,
      completed: 1,
      aborted: 0,
      failed: 1,
      inexact: 1,
      turns: 4,
      sampledTokens: 9,
    })
    t.match(rewards, { count: 2, mean: 0.625, min: 0.25, max: 1 })
    t.ok(Math.abs(rewards.std! - 0.53033) < 1e-5, 'the sample standard deviation')
    t.strictSame(rewards.histogram, [
      { from: 0.25, to: 0.25, count: 1 },
      { from: 1, to: 1, count: 1 },
    ])
  })

  test('groups have the sessions of one metadata value, and report their rewards', async (t, store) => {
    await createFourSessions(store)
    t.match(await store.groupSessions('task', {}), [
      { value: 7, sessions: 1, failed: 1, rewards: { count: 0, mean: null, std: null } },
      { value: 'django', sessions: 2, completed: 1, createdAtMs: 1001, rewards: { count: 2, mean: 0.625 } },
    ])
    t.strictSame(await store.groupSessions('nothing', {}), [])
    for (const [passReward, passed] of [
      [undefined, null],
      [0.25, 2],
      [0.5, 1],
    ] as const)
      t.match(await store.groupSessions('task', {}, passReward), [{}, { passed }])
    t.match(await store.groupSessions('task', { status: 'completed' }), [{ value: 'django', sessions: 1 }])
    const components = async () => (await store.groupSessions('task', {})).map((group) => group.components)
    t.strictSame(await components(), [{}, {}])
    for (const [sessionId, parts] of [
      ['a', { tests: 1, length: 2 }],
      ['b', { tests: 0.5, style: -1 }],
    ] as const)
      await store.setReward(sessionId, { reward: 1, components: parts }, 9_000)
    t.strictSame((await components()).at(-1), { tests: 0.75, length: 2, style: -1 })
  })

  test('an outline is its turn without tokens; a step names the turn that it extends', async (t, store) => {
    await store.createSession(createSession('s'))
    const first = Int32Array.from({ length: 20 }, (_, i) => i)
    const completion = Int32Array.of(100, 101)
    const ids = (...parts: Int32Array[]) => Int32Array.from(parts.flatMap((part) => [...part]))
    const completionLogprobs = Float64Array.of(-1, -2)
    const turn = (id: string, index: number, promptTokenIds: Int32Array) =>
      record(store, aTurn(id, { index }), {
        promptTokenIds,
        completionTokenIds: completion.slice(),
        completionLogprobs: completionLogprobs.slice(),
      })
    await turn('a', 0, first.slice())
    await turn('b', 1, ids(first, completion, Int32Array.of(7)))
    await turn('c', 2, ids(first.slice(0, 12), Int32Array.of(9)))
    await turn('d', 3, Int32Array.of(0, 1, 2, 55))
    await store.openTurn(aTurn('e', { index: 4 }))
    const outlines: TurnOutline[] = []
    for await (const outline of store.readOutlines('s')) outlines.push(outline)
    t.match(outlines, [
      { index: 0, promptTokens: 20, sampledTokens: 2, completionText: 'hello' },
      { index: 1, promptTokens: 23 },
      { index: 2, promptTokens: 13 },
      { index: 3, promptTokens: 4 },
      { index: 4, status: 'open', promptTokens: 0, sampledTokens: 0 },
    ])
    const steps = await Array.fromAsync(store.readSteps('s'))
    t.match(
      steps.map(({ promptStep: { base, shared } }) => ({ base, shared })),
      [
        { base: null },
        { base: 'a', shared: 22 },
        { base: /[ab]/, shared: 12 },
        { base: null },
        { base: null },
      ],
      'a step is the difference from an earlier turn that shares at least eight tokens with it',
    )
    const full = (await store.getTurn('s', 'b'))!
    const { promptTokens, sampledTokens, ...outline } = outlines[1]!
    const { promptTokenIds, completionTokenIds, completionLogprobs: _logprobs, ...rest } = full
    t.strictSame(outline, rest)
    t.strictSame([promptTokens, sampledTokens], [promptTokenIds.length, completionTokenIds.length])
  })

  let lastSession = 0
  test('joined steps equal the turns, and make the same rows, in any order in which requests ended', async (t, store) => {
    await fc.assert(
      fc.asyncProperty(fc.array(turnArbitrary, { maxLength: 12 }), async (grown) => {
        lastSession += 1
        const sessionId = `steps-${lastSession}`
        await store.createSession(createSession(sessionId))
        await recordRandomTurns(store, sessionId, grown)
        const steps = await Array.fromAsync(store.readSteps(sessionId))
        const turns = await Array.fromAsync(store.readTurns(sessionId))
        t.equal(turns.length, grown.length)
        t.strictSame(join(steps).map(withTexts), turns.map(withTexts))
        t.strictSame(buildRows(steps), buildRows(turns))
      }),
      { numRuns: IS_FULL ? 40 : 15 },
    )
  })

  test('a step is never based on a turn that was open when it was returned', async (t, store) => {
    await store.createSession(createSession('s'))
    // More turns than one read returns.
    await Promise.all(Array.from({ length: 70 }, (_, index) => store.openTurn(aTurn(`t${index}`, { index }))))
    const reading = store.readSteps('s')[Symbol.asyncIterator]()
    const steps = [(await reading.next()).value!]
    const prompt = Array.from({ length: 20 }, (_, id) => id)
    await store.closeTurn(anOutcome('t0', { promptTokenIds: Int32Array.from(prompt) }))
    await store.closeTurn(anOutcome('t69', { promptTokenIds: Int32Array.of(...prompt, 4, 5, 6) }))
    for (let next = await reading.next(); !next.done; next = await reading.next()) steps.push(next.value)
    t.equal(steps[0]!.status, 'open')
    t.strictSame([...join(steps)[69]!.promptTokenIds], [...prompt, 4, 5, 6])
  })
}

/** Generates a turn whose prompt begins with `shared` tokens of an earlier one (the `from`th, if there is one). */
const turnArbitrary = fc.record({
  from: fc.nat(12),
  shared: fc.oneof(fc.constant(1_000), fc.nat(30)),
  rest: fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: 12 }),
  sampled: fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: 4 }),
  status: fc.constantFrom('completed', 'completed', 'completed', 'failed', 'open' as const),
  exact: fc.constantFrom(true, true, true, false),
  /** Determines the order in which requests end. */
  ends: fc.nat(100),
})

type RandomTurn = typeof turnArbitrary extends fc.Arbitrary<infer Turn> ? Turn : never

async function recordRandomTurns(store: TurnStore, sessionId: string, grown: readonly RandomTurn[]) {
  const sequences: number[][] = []
  const prompts = grown.map(({ from, shared, rest, sampled }) => {
    const prompt = [...(sequences[from % (sequences.length || 1)] ?? []).slice(0, shared), ...rest]
    sequences.push([...prompt, ...sampled])
    return prompt
  })
  await Promise.all(grown.map((_, index) => store.openTurn(aTurn(`t${index}`, { sessionId, index }))))
  for (const [index, turn] of [...grown.entries()].sort(([, a], [, b]) => a.ends - b.ends)) {
    if (turn.status === 'open') continue
    const outcome = anOutcome(`t${index}`, {
      sessionId,
      status: turn.status === 'failed' ? 'failed' : 'completed',
      exact: turn.exact,
      promptTokenIds: Int32Array.from(prompts[index]!),
      completionTokenIds: Int32Array.from(turn.sampled),
      completionLogprobs: Float64Array.from(turn.sampled, (id) => -id / 4),
    })
    await store.closeTurn(outcome)
  }
}

function join(steps: readonly TurnStep[]): TurnRecord[] {
  const sequences = new Map<string, number[]>()
  return steps.map(({ promptStep: { base, shared, rest }, ...turn }) => {
    const prompt = [...(base === null ? [] : sequences.get(base)!).slice(0, shared), ...rest]
    sequences.set(turn.turnId, [...prompt, ...turn.completionTokenIds])
    return { ...turn, promptTokenIds: Int32Array.from(prompt) }
  })
}

function buildRows(turns: readonly (TurnRecord | TurnStep)[]) {
  const builder = new TrajectoryBuilder({ sideCalls: true })
  for (const turn of turns) builder.add(turn)
  return { rows: [...builder.assembleRows({}, null)], excluded: builder.countExcluded() }
}

/** Records two sessions of two and three turns, and one with an open turn. */
async function recordSearchSessions(store: TurnStore): Promise<void> {
  const user = (content: unknown) => JSON.stringify({ role: 'user', content })
  const toToolCalls = (command: string) =>
    JSON.stringify([
      { id: 'call_1', type: 'function', function: { name: 'bash', arguments: JSON.stringify({ command }) } },
    ])
  const recordMessages = (
    sessionId: string,
    index: number,
    requestMessages: readonly string[],
    fields = {},
  ) => [aTurn(`${sessionId}${index}`, { sessionId, index, requestMessages, ...fields })] as const
  for (const sessionId of ['a', 'b']) await store.createSession(createSession(sessionId))
  const task = user('Mend the test.')
  await record(store, ...recordMessages('a', 0, [task]), {
    sessionId: 'a',
    completionText: 'I write assert True.',
    reasoning: 'Because it passes.',
  })
  const output = JSON.stringify({
    role: 'tool',
    tool_call_id: 'call_1',
    content: [{ type: 'text', text: 'two\nlines, 100%_' }],
  })
  await record(store, ...recordMessages('a', 1, [task, output]), { sessionId: 'a', completionText: 'Done.' })
  await record(store, ...recordMessages('b', 0, [user('海是什么? e')]), {
    sessionId: 'b',
    completionText: 'Water.',
  })
  await record(store, ...recordMessages('b', 1, [user('海是什么? e'), user('Go on.')]), {
    sessionId: 'b',
    completionText: null,
    toolCalls: toToolCalls("echo 'assert True'; sed -i 's/x/\\n/'"),
  })
  await record(store, ...recordMessages('b', 2, [], { dialect: 'completions', promptPieces: ['a prompt'] }), {
    sessionId: 'b',
    completionText: 'The end.',
  })
  await store.setReward('b', { reward: 1, components: {} }, 5_000)
  await store.openTurn(aTurn('b3', { sessionId: 'b', index: 3, requestMessages: [user('still open')] }))
}

/** Records four sessions. a: reward 0.25; b: reward 1, completed; c: two turns, one failed; d: an inexact turn. */
async function createFourSessions(store: TurnStore): Promise<void> {
  const metadata = {
    a: { task: 'django' },
    b: { task: 'django' },
    c: { task: 7, nested: { deep: ['deep'] } },
    d: {},
  }
  for (const [index, [sessionId, value]] of Object.entries(metadata).entries()) {
    await store.createSession(createSession(sessionId, { createdAtMs: 1001 + index, metadata: value }))
  }
  const turn = (sessionId: string, id: string, index: number) =>
    aTurn(id, { sessionId, index, startedAtMs: 1 })
  // Arrays are transferred: each turn needs separate ones.
  const sample = (count: number) => ({
    completionTokenIds: new Int32Array(count),
    completionLogprobs: new Float64Array(count),
  })
  await record(store, turn('a', 'a0', 0), { endedAtMs: 5_000, ...sample(4) })
  await store.setReward('a', { reward: 0.25, components: {} }, 5_000)
  await store.setReward('b', { reward: 1, components: {} }, 6_000)
  await store.endSession('b', 'completed', 6_000)
  await record(store, turn('c', 'c0', 0), { endedAtMs: 4_000, ...sample(2) })
  await record(store, turn('c', 'c1', 1), { endedAtMs: 4_000, status: 'failed', ...sample(2) })
  await record(store, turn('d', 'd0', 0), { endedAtMs: 3_000, exact: false, ...sample(1) })
}
