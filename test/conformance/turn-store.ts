/** The conformance suite of every {@link TurnStore}. Each test opens a separate store. */
import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import type { Test } from 'tap'
import { TOKEN_DATA_KINDS } from '../../src/protocol/token-data/kinds.ts'
import {
  packTokenData,
  type TokenData,
  type TokenDataBlob,
  unpackTokenData,
} from '../../src/protocol/token-data/token-data.ts'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import type { NewSession, OpenTurn, TurnOutcome, TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { addMessageTexts, type TurnWithTexts, withTexts } from '../helpers/messages.ts'
import { type OutcomeFields, toPromptIds } from '../helpers/prompt-ids.ts'
import { getDetails } from '../helpers/reported-details.ts'
import { IS_FULL } from '../helpers/tier.ts'

export function createSession(sessionId: string, fields: Partial<NewSession> = {}): NewSession {
  return {
    sessionId,
    createdAtMs: 1000,
    ttlMs: null,
    metadata: {},
    samplingParams: {},
    trustAgent: false,
    record: null,
    ...fields,
  }
}

/** Random cases of each property. */
const RUNS = IS_FULL ? 50 : 15
/** Turns of a long session, of 500 tokens each. */
const LONG_TURNS = IS_FULL ? 200 : 80

export const HI = ['{"role":"user","content":"hi"}']

/**
 * Creates a turn.
 * @param fields may contain the messages as texts
 */
export function aTurn(
  turnId: string,
  { requestMessages = HI, ...fields }: Partial<OpenTurn> & { requestMessages?: readonly string[] } = {},
): OpenTurn {
  return {
    turnId,
    sessionId: 's',
    index: 0,
    dialect: 'chat',
    startedAtMs: 2000,
    lastMessage: addMessageTexts(requestMessages),
    tools: null,
    params: '{"model":"m"}',
    promptPieces: [],
    retryCount: 0,
    ...fields,
  }
}

export function anOutcome(
  turnId: string,
  { promptTokenIds = Int32Array.of(1, 2, 3), ...fields }: OutcomeFields = {},
): TurnOutcome {
  return {
    turnId,
    sessionId: 's',
    status: 'completed',
    endedAtMs: 3000,
    firstTokenAtMs: 2500,
    model: 'm',
    engine: 'http://engine',
    completionText: 'hello',
    reasoning: null,
    toolCalls: '[]',
    finishReason: 'stop',
    stopReason: null,
    promptTokenIds: toPromptIds(promptTokenIds),
    completionTokenIds: Int32Array.of(4, 5),
    completionLogprobs: Float64Array.of(-0.5, -0.25),
    exact: true,
    inexactReason: null,
    weightVersionStart: '7',
    weightVersionEnd: '8',
    usage: '{"prompt_tokens":3}',
    annotations: '{"prompt":{"from":"t0"}}',
    error: null,
    ...fields,
  }
}

export async function getTurns(
  store: Pick<TurnStore, 'readTurns'>,
  sessionId = 's',
): Promise<TurnWithTexts[]> {
  const turns: TurnWithTexts[] = []
  for await (const turn of store.readTurns(sessionId)) turns.push(withTexts(turn))
  return turns
}

/** Records a complete turn. */
export async function record(store: TurnStore, turn: OpenTurn, outcome: OutcomeFields = {}): Promise<void> {
  void store.openTurn(turn)
  await store.closeTurn(anOutcome(turn.turnId, { sessionId: turn.sessionId, ...outcome }))
}

/** Ids with characters that a database may reject, or that have a meaning in its columns. */
export const ANY_IDS = ['\u0000', 'a\u0000b', '\u001aj', '\ud800']

/** Each run of a property needs a session without data of earlier runs. */
let lastSession = 0
const createSessionId = () => `session-${++lastSession}`

export function turnStoreConformance(t: Test, open: (t: Test) => Promise<TurnStore>): void {
  const test = createStoreTest(t, open)
  sessionTests(test)
  listTests(test)
  turnTests(test)
  removalTests(test)
  exactnessTests(test)
  detailTests(test)
}

type StoreTest = (title: string, check: (t: Test, store: TurnStore) => Promise<void>) => void

/** Returns a function that defines a test, which opens a separate store. */
export function createStoreTest(t: Test, open: (t: Test) => Promise<TurnStore>): StoreTest {
  return (title, check) =>
    t.test(title, async (t) => {
      const store = await open(t)
      t.teardown(() => store.close())
      await check(t, store)
    })
}

function sessionTests(test: StoreTest): void {
  test('a created session has the fields of its creation', async (t, store) => {
    const metadata = { task: 'django-1', nested: { list: [1, null, 'x'] } }
    const newSession = createSession('s', {
      ttlMs: 60_000,
      metadata,
      samplingParams: { temperature: 0.5 },
      trustAgent: true,
      record: ['sampling_mask', 'top_logprobs:64'],
      policies: { main: 'actor', '*': 'base' },
      editedCalls: 'keep',
      continueResponses: false,
      limits: { turns: 3, seconds: 0.5, at_limit: 'error' },
      keyTag: 'AAECAwQFBgc',
    })
    const { created, session } = await store.createSession(newSession)
    t.equal(created, true)
    t.strictSame(session, {
      ...newSession,
      samplingParams: '{"temperature":0.5}',
      status: 'active',
      updatedAtMs: 1000,
      endedAtMs: null,
      reward: null,
      marks: { labels: [], note: null, turns: {} },
      turnCount: 0,
      nextIndex: 0,
      openTurns: 0,
      failedTurns: 0,
      inexactTurns: 0,
      sampledTokens: 0,
    })
    t.strictSame(await store.getSession('s'), session)
  })

  test('the next index is above all recorded ones, also after gaps', async (t, store) => {
    await store.createSession(createSession('s'))
    await record(store, aTurn('a', { index: 3 }))
    await record(store, aTurn('b', { index: 1 }))
    t.match(await store.getSession('s'), { turnCount: 2, nextIndex: 4 })
    t.match((await store.listSessions({ limit: 1 })).sessions, [{ turnCount: 2, nextIndex: 4 }])
    t.match(await store.resetSession('s', 5000), { turnCount: 0, nextIndex: 0 })
  })

  test('creating a session again changes nothing and reports that it exists', async (t, store) => {
    await store.createSession(createSession('s', { metadata: { first: true } }))
    const second = await store.createSession(
      createSession('s', { createdAtMs: 9, metadata: { first: false } }),
    )
    t.equal(second.created, false)
    t.strictSame(second.session.metadata, { first: true })
    t.equal(second.session.createdAtMs, 1000)
  })

  test('results for an unknown session are undefined, false or empty', async (t, store) => {
    t.equal(await store.getSession('none'), undefined)
    t.equal(await store.endSession('none', 'completed', 1), undefined)
    t.equal(await store.setReward('none', { reward: 1, components: {} }, 1), undefined)
    t.equal(await store.changeMarks('none', { note: 'x' }, 1), undefined)
    t.equal(await store.resetSession('none', 1), undefined)
    t.equal(await store.deleteSession('none'), false)
    t.strictSame(await getTurns(store, 'none'), [])
  })

  test('an ended session keeps its status', async (t, store) => {
    await store.createSession(createSession('s'))
    const ended = await store.endSession('s', 'aborted', 5000)
    t.match(ended, { status: 'aborted', endedAtMs: 5000, updatedAtMs: 5000 })
    t.match(await store.endSession('s', 'completed', 6000), { status: 'aborted', endedAtMs: 5000 })
  })

  test('a reward has a total and named parts, and the last one counts', async (t, store) => {
    await store.createSession(createSession('s'))
    await store.setReward('s', { reward: 1, components: { tests: 1 } }, 10)
    const session = await store.setReward('s', { reward: -0.25, components: { tests: 0, format: -0.25 } }, 20)
    t.strictSame(session?.reward, { reward: -0.25, components: { tests: 0, format: -0.25 } })
    const lines = { 'subagent:critic': 0.5, main: -1 }
    await store.setReward('s', { reward: 2, components: {}, lines }, 20)
    t.strictSame((await store.getSession('s'))?.reward, { reward: 2, components: {}, lines })
    const turns = { 0: 0.5, 3: -1 }
    await store.setReward('s', { reward: 2, components: {}, lines, turns }, 20)
    t.strictSame((await store.getSession('s'))?.reward, { reward: 2, components: {}, lines, turns })
    await store.setReward('s', { reward: 3, components: {} }, 20)
    t.strictSame((await store.getSession('s'))?.reward, { reward: 3, components: {} })
    t.equal((await store.getSession('s'))?.updatedAtMs, 20)
  })

  test('people label a session and its turns, and fields that a change omits stay', async (t, store) => {
    await store.createSession(createSession('s'))
    t.strictSame((await store.getSession('s'))!.marks, { labels: [], note: null, turns: {} })
    const note = 'it wrote\u0000 "\ud800" into the test\n— twice'
    const turns = { 2: { labels: ['where'] }, 10: { note: 'odd' } }
    const changed = await store.changeMarks('s', { labels: ['cheat', 'ß'], turns }, 20)
    t.match(changed, { sessionId: 's', updatedAtMs: 20, reward: null })
    await store.changeMarks('s', { note, turns: { 10: { labels: ['b'] }, 3: { labels: [] } } }, 30)
    const all = {
      labels: ['cheat', 'ß'],
      note,
      turns: { 2: { labels: ['where'], note: null }, 10: { labels: ['b'], note: 'odd' } },
    }
    t.strictSame((await store.getSession('s'))!.marks, all)
    t.strictSame((await store.listSessions({ limit: 1 })).sessions[0]!.marks, all)
    await store.setReward('s', { reward: 1, components: {} }, 40)
    await store.changeMarks('s', { labels: [], turns: { 2: { labels: [] } } }, 50)
    t.match(await store.getSession('s'), { marks: { labels: { length: 0 }, note }, reward: { reward: 1 } })
    t.strictSame((await store.getSession('s'))!.marks.turns, { 10: { labels: ['b'], note: 'odd' } })
    const long = store.changeMarks('s', { note: 'x'.repeat(300_000), labels: ['c'] }, 60)
    await t.rejects(long, { code: 'invalid_request' })
    t.match(await store.getSession('s'), { marks: { labels: { length: 0 }, note }, updatedAtMs: 50 })
    t.strictSame((await store.resetSession('s', 70))!.marks, { labels: [], note: null, turns: {} })
  })

  test('changes take effect in the order in which they were requested, awaited or not', async (t, store) => {
    void store.createSession(createSession('s'))
    void store.openTurn(aTurn('a'))
    void store.closeTurn(anOutcome('a'))
    void store.setReward('s', { reward: 1, components: {} }, 4000)
    void store.endSession('s', 'completed', 5000)
    await store.setReward('s', { reward: 2, components: {} }, 6000)
    t.match(await store.getSession('s'), { status: 'completed', reward: { reward: 2 }, turnCount: 1 })
    t.match(await getTurns(store), [{ turnId: 'a', status: 'completed' }])
  })

  test('close completes after all earlier operations, and later ones are rejected', async (t, store) => {
    await store.createSession(createSession('s'))
    const writes = [store.openTurn(aTurn('a')), store.closeTurn(anOutcome('a'))]
    await store.close()
    await t.resolves(Promise.all(writes))
    await t.rejects(store.closeTurn(anOutcome('a')), { code: 'store_failed' })
    await t.rejects(store.getSession('s'), { code: 'store_failed' })
    await t.rejects(getTurns(store), { code: 'store_failed' })
    await t.resolves(store.close(), 'closing again succeeds')
  })
}

function listTests(test: StoreTest): void {
  const ids = (page: { sessions: { sessionId: string }[] }) => page.sessions.map((each) => each.sessionId)

  test('sessions are listed newest first, in pages that inserts do not disturb', async (t, store) => {
    for (const [index, sessionId] of ['a', 'b', 'c', 'd', 'e'].entries()) {
      // c and d have the same age.
      await store.createSession(createSession(sessionId, { createdAtMs: 1000 + Math.min(index, 2) }))
    }
    const first = await store.listSessions({ limit: 2 })
    t.strictSame(ids(first), ['e', 'd'])
    await store.createSession(createSession('newer', { createdAtMs: 5000 }))
    const second = await store.listSessions({ limit: 2, cursor: first.nextCursor! })
    t.strictSame(ids(second), ['c', 'b'])
    const last = await store.listSessions({ limit: 2, cursor: second.nextCursor! })
    t.strictSame(last, { sessions: last.sessions })
    t.strictSame(ids(last), ['a'])
  })

  test('a page that ends with the last session has no cursor', async (t, store) => {
    await store.createSession(createSession('a'))
    await store.createSession(createSession('b'))
    t.equal((await store.listSessions({ limit: 2 })).nextCursor, undefined)
  })

  test('a filter selects sessions with a status and with all given metadata values', async (t, store) => {
    const metadata = { task: 'x', n: 1, flag: true, 'odd."key': 'v' }
    await store.createSession(createSession('a', { metadata }))
    await store.createSession(createSession('b', { metadata: { task: 'x', n: '1', flag: 1 } }))
    await store.createSession(createSession('c', { metadata: { other: { task: 'x' } } }))
    await store.endSession('b', 'completed', 2000)
    const list = async (filter: object) => ids(await store.listSessions({ limit: 10, ...filter }))
    t.strictSame(await list({ metadata: { task: 'x' } }), ['b', 'a'])
    t.strictSame(await list({ metadata: { task: 'x', n: 1 } }), ['a'])
    t.strictSame(await list({ metadata: { flag: true } }), ['a'])
    t.strictSame(await list({ metadata: { 'odd."key': 'v' } }), ['a'])
    t.strictSame(await list({ metadata: { toString: 'x' } }), [])
    t.strictSame(await list({ status: 'active' }), ['c', 'a'])
    t.strictSame(await list({ sinceMs: 1000 }), ['c', 'b', 'a'])
    t.strictSame(await list({ sinceMs: 2000 }), ['b'], 'changed at that time')
    t.strictSame(await list({ sinceMs: 2001 }), [])
    t.strictSame(await list({ status: 'completed', metadata: { task: 'x' } }), ['b'])
    t.strictSame(ids(await store.listSessions({ limit: 1, metadata: { n: '1' } })), ['b'])
    await store.changeMarks('a', { labels: ['cheat'], note: 'Edits the TEST' }, 3000)
    await store.changeMarks('c', { turns: { 1: { labels: ['cheat', 'x'] } } }, 3000)
    t.strictSame(await list({ label: 'cheat' }), ['c', 'a'], 'a label of the session or of a turn')
    t.strictSame(await list({ label: 'cheat', status: 'active', metadata: { n: 1 } }), ['a'])
    t.strictSame(await list({ label: 'che' }), [])
    t.strictSame(await list({ text: 'the test' }), ['a'])
    t.match(await store.totalSessions({ label: 'cheat' }), { sessions: 2 })
    t.match(await store.groupSessions('n', { label: 'cheat' }), [{ value: 1, sessions: 1 }])
  })

  test('a malformed cursor is an invalid request', async (t, store) => {
    for (const cursor of ['', 'nonsense', '%', Buffer.from('[1]').toString('base64url')]) {
      await t.rejects(store.listSessions({ limit: 1, cursor }), { code: 'invalid_request', param: 'cursor' })
    }
  })
}

function turnTests(test: StoreTest): void {
  test('an open turn has its request and no outcome', async (t, store) => {
    await store.createSession(createSession('s'))
    const turn = aTurn('a', { tools: '[{"type":"function"}]', retryCount: 2, dialect: 'messages' })
    await store.openTurn(turn)
    const [read] = await getTurns(store)
    const { lastMessage: _, ...request } = turn
    t.strictSame(read, {
      ...request,
      requestMessages: HI,
      status: 'open',
      endedAtMs: null,
      firstTokenAtMs: null,
      model: null,
      engine: null,
      completionText: null,
      reasoning: null,
      toolCalls: '[]',
      finishReason: null,
      stopReason: null,
      promptTokenIds: new Int32Array(0),
      completionTokenIds: new Int32Array(0),
      completionLogprobs: new Float64Array(0),
      exact: false,
      inexactReason: null,
      weightVersionStart: null,
      weightVersionEnd: null,
      usage: null,
      annotations: '{}',
      error: null,
    })
  })

  test('a closed turn has its request and its outcome', async (t, store) => {
    await store.createSession(createSession('s'))
    const outcome = {
      status: 'failed',
      completionText: 'half an ans',
      reasoning: 'because',
      toolCalls: '[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]',
      stopReason: '"</s>"',
      exact: false,
      inexactReason: 'no logprobs',
      error: { code: 'engine_lost', message: 'gone' },
    } as const
    await record(store, aTurn('a'), outcome)
    const { lastMessage: _, ...request } = aTurn('a')
    const recorded = { ...anOutcome('a', outcome), promptTokenIds: Int32Array.of(1, 2, 3) }
    t.strictSame(await getTurns(store), [{ ...request, requestMessages: HI, ...recorded }])
    t.match(await store.getSession('s'), { turnCount: 1, updatedAtMs: 3000 })
  })

  test('turns are read by index, in whatever order they were opened and closed', async (t, store) => {
    await store.createSession(createSession('s'))
    for (const index of [2, 0, 1]) void store.openTurn(aTurn(`t${index}`, { index }))
    for (const index of [1, 2, 0]) await store.closeTurn(anOutcome(`t${index}`))
    t.strictSame(
      (await getTurns(store)).map((turn) => turn.turnId),
      ['t0', 't1', 't2'],
    )
  })

  test('a turn is closed once: later outcomes change nothing', async (t, store) => {
    await store.createSession(createSession('s'))
    await record(store, aTurn('a'), { completionText: 'first' })
    await store.closeTurn(anOutcome('a', { completionText: 'second', status: 'failed' }))
    t.match(await getTurns(store), [{ completionText: 'first', status: 'completed' }])
  })

  test('a turn that did not reach the agent is aborted, if it was completed', async (t, store) => {
    await store.createSession(createSession('s'))
    await record(store, aTurn('a', { index: 0 }))
    await record(store, aTurn('b', { index: 1 }), { status: 'failed', error: { code: 'x', message: 'y' } })
    await store.openTurn(aTurn('c', { index: 2 }))
    const error = { code: 'agent_gone', message: 'left' }
    for (const turnId of ['a', 'b', 'c', 'none']) await store.markUndelivered('s', turnId, error)
    await store.markUndelivered('none', 'a', error)
    const turns = await getTurns(store)
    t.match(turns, [
      { status: 'aborted', error },
      { status: 'failed', error: { code: 'x' } },
      { status: 'open' },
    ])
    t.equal(turns[0]?.completionText, 'hello', 'the completion is unchanged')
  })

  test('a turn that is redelivered to a retry is completed and records the retry', async (t, store) => {
    await store.createSession(createSession('s'))
    const gone = { code: 'agent_gone', message: 'left \ud800' }
    await record(store, aTurn('a', { index: 0 }), { annotations: '{"line":"main \ud800"}', exact: false })
    await store.markUndelivered('s', 'a', gone)
    t.match(await store.getSession('s'), { inexactTurns: 0 })
    t.equal(await store.markRedelivered('s', 'a', 1), 1)
    await store.markUndelivered('s', 'a', gone, 0)
    t.match(await getTurns(store), [
      {
        status: 'completed',
        error: null,
        annotations: JSON.stringify({ line: 'main \ud800', answered_retries: [1] }),
      },
    ])
    t.match(await store.getSession('s'), { inexactTurns: 1 })
    await store.markUndelivered('s', 'a', gone, 1)
    t.match(
      await getTurns(store),
      [{ status: 'aborted', error: gone }],
      'it was not delivered to the retry either',
    )
    t.equal(await store.markRedelivered('s', 'a', 3), 2)
    t.match(await getTurns(store), [{ status: 'completed', completionText: 'hello' }])
  })

  test('a turn without a complete response, or of an ended session, is not redelivered to a retry', async (t, store) => {
    await store.createSession(createSession('s'))
    const cancelled = { status: 'aborted', error: { code: 'turn_cancelled', message: 'x' } } as const
    await record(store, aTurn('a', { index: 0 }), { status: 'failed', error: { code: 'x', message: 'y' } })
    await record(store, aTurn('b', { index: 1 }), cancelled)
    await record(store, aTurn('c', { index: 2 }), {
      status: 'aborted',
      finishReason: null,
      error: { code: 'agent_gone', message: 'left' },
    })
    await store.openTurn(aTurn('d', { index: 3 }))
    await record(store, aTurn('e', { index: 4 }))
    for (const turnId of ['a', 'b', 'c', 'd', 'none'])
      t.notOk(await store.markRedelivered('s', turnId, 1), turnId)
    t.notOk(await store.markRedelivered('none', 'e', 1))
    await store.endSession('s', 'completed', 5000)
    t.notOk(await store.markRedelivered('s', 'e', 1))
    t.match((await getTurns(store)).at(-1), { turnId: 'e', status: 'completed' })
  })

  test('a turn of an unknown session is rejected', async (t, store) => {
    await t.rejects(store.openTurn(aTurn('a')), { code: 'session_not_found' })
    await t.resolves(store.closeTurn(anOutcome('a')))
  })

  test('a second turn with the same id is rejected and affects no other turn', async (t, store) => {
    await store.createSession(createSession('s'))
    const first = store.openTurn(aTurn('a'))
    const second = store.openTurn(aTurn('a', { index: 1 }))
    const third = store.openTurn(aTurn('b', { index: 2 }))
    await t.rejects(second, { code: 'store_failed' })
    await t.resolves(Promise.all([first, third, store.closeTurn(anOutcome('a'))]))
    t.match(await getTurns(store), [
      { turnId: 'a', status: 'completed' },
      { turnId: 'b', status: 'open' },
    ])
    t.equal((await store.getSession('s'))?.turnCount, 2)
  })

  test('one turn is found by its id, and equals the turn in a read of the session', async (t, store) => {
    await store.createSession(createSession('s'))
    await store.createSession(createSession('other'))
    await record(store, aTurn('a'))
    await record(store, aTurn('b', { index: 1 }))
    await store.openTurn(aTurn('open', { index: 2 }))
    for (const turn of await getTurns(store)) {
      const one = await store.getTurn('s', turn.turnId)
      t.same(one && withTexts(one), turn)
    }
    t.equal(await store.getTurn('s', 'none'), undefined)
    t.equal(await store.getTurn('other', 'a'), undefined, 'nor a turn of another session')
    t.equal(await store.getTurn('nowhere', 'a'), undefined)
    await store.resetSession('s', 4000)
    t.equal(await store.getTurn('s', 'a'), undefined)
  })

  test('ids that clients choose may contain any characters: they name nothing', async (t, store) => {
    await store.createSession(createSession('s'))
    for (const id of ANY_IDS) {
      t.equal(await store.getSession(id), undefined)
      t.equal(await store.getTurn('s', id), undefined)
      t.equal(await store.getTurn(id, id), undefined)
      t.strictSame(await getTurns(store, id), [])
      t.strictSame(await store.readDetails('s', [id], ['top_logprobs']), new Map())
      t.strictSame(await store.listSessionStates(id), [])
      t.equal(await store.setReward(id, { reward: 1, components: {} }, 1), undefined)
      t.equal(await store.deleteSession(id), false)
      await store.closeTurn(anOutcome(id))
    }
    await record(store, aTurn('a'))
    t.match(await getTurns(store), [{ turnId: 'a', status: 'completed' }], 'later turns are recorded')
  })

  test('a caller may stop reading early', async (t, store) => {
    await store.createSession(createSession('s'))
    for (let index = 0; index < 200; index += 1) void store.openTurn(aTurn(`t${index}`, { index }))
    await store.closeTurn(anOutcome('t0'))
    for await (const turn of store.readTurns('s')) if (turn.index === 3) break
    t.equal((await getTurns(store)).length, 200)
  })
}

function removalTests(test: StoreTest): void {
  test('a reset removes turns and reward and makes the session active again', async (t, store) => {
    await store.createSession(createSession('s', { metadata: { kept: 1 } }))
    await record(store, aTurn('a'))
    await store.openTurn(aTurn('in-flight', { index: 1 }))
    await store.setReward('s', { reward: 1, components: {} }, 4000)
    await store.endSession('s', 'completed', 5000)
    const fresh = { status: 'active', endedAtMs: null, reward: null, turnCount: 0, updatedAtMs: 6000 }
    t.match(await store.resetSession('s', 6000), { ...fresh, metadata: { kept: 1 }, createdAtMs: 1000 })
    await t.resolves(store.closeTurn(anOutcome('in-flight')), 'although its turn was removed')
    t.strictSame(await getTurns(store), [])
    await record(store, aTurn('a'), { completionText: 'anew' })
    t.match(await getTurns(store), [{ turnId: 'a', completionText: 'anew' }])
  })

  test('deleting removes a session with a turn in flight, whose end then resolves', async (t, store) => {
    await store.createSession(createSession('s'))
    await store.openTurn(aTurn('a'))
    t.equal(await store.deleteSession('s'), true)
    await t.resolves(store.closeTurn(anOutcome('a')))
    t.equal(await store.getSession('s'), undefined)
    t.strictSame(await getTurns(store), [])
    await store.createSession(createSession('s'))
    await store.closeTurn(anOutcome('a'))
    t.strictSame(await getTurns(store), [], 'a session of the same name is another session')
  })

  test('a sweep removes sessions past their time to live, never one with a turn in flight', async (t, store) => {
    await store.createSession(createSession('forever'))
    await store.createSession(createSession('old', { ttlMs: 1000 }))
    await store.createSession(createSession('young', { ttlMs: 50_000 }))
    await store.createSession(createSession('used', { ttlMs: 1000 }))
    await store.createSession(createSession('busy', { ttlMs: 1000 }))
    await store.setReward('used', { reward: 1, components: {} }, 9500)
    await store.openTurn(aTurn('a', { sessionId: 'busy' }))
    t.strictSame(await store.countSessions(10_000), { sessions: 5, active: 5, expired: 1 })
    await store.endSession('young', 'completed', 9_999)
    t.strictSame(await store.sweep(10_000), ['old'])
    t.strictSame(await store.countSessions(10_000), { sessions: 4, active: 3, expired: 0 })
    t.equal(await store.getSession('old'), undefined)
    await store.closeTurn(anOutcome('a', { sessionId: 'busy' }))
    t.strictSame((await store.sweep(20_000)).toSorted(), ['busy', 'used'])
    t.strictSame(await store.sweep(20_000), [])
  })

  test('a sweep can keep sessions that expired before a given time', async (t, store) => {
    for (const [name, ttlMs] of [
      ['first', 1_000],
      ['second', 1_001],
      ['third', 2_000],
    ] as const)
      await store.createSession(createSession(name, { createdAtMs: 5_000, ttlMs }))
    t.strictSame((await store.sweep(7_000, 6_000)).toSorted(), ['second', 'third'])
    t.strictSame(await store.sweep(7_000), ['first'])
  })

  test('a sweep removes any number of sessions', async (t, store) => {
    const names = Array.from({ length: 450 }, (_, index) => `s${index}`)
    await Promise.all(names.map((name) => store.createSession(createSession(name, { ttlMs: 1 }))))
    t.strictSame((await store.sweep(10_000)).toSorted(), names.toSorted())
  })
}

function exactnessTests(test: StoreTest): void {
  const tokenId = fc.oneof(fc.nat(200_000), fc.integer())
  const logprob = fc.oneof(
    fc.double(),
    fc.float(),
    fc.constantFrom(0, -0, -9999, Number.NEGATIVE_INFINITY, Number.NaN),
  )
  // Any UTF-16, lone surrogates and NUL included.
  const text = fc.string({
    unit: fc.integer({ min: 0, max: 0xffff }).map((unit) => String.fromCharCode(unit)),
  })

  test('turns of very many messages are read back completely', async (t, store) => {
    await store.createSession(createSession('s'))
    const texts = Array.from({ length: 10_000 }, (_, index) => `{"role":"user","content":"${index}"}`)
    for (const [index, [messages, chunks]] of [
      [9_999, 5_000],
      [10_000, 6_000],
    ].entries()) {
      const requestMessages = texts.slice(0, messages)
      await record(
        store,
        aTurn(`t${index}`, { index, requestMessages, promptPieces: texts.slice(0, chunks) }),
      )
    }
    const [first, second] = await getTurns(store)
    t.strictSame(first!.requestMessages, texts.slice(0, 9_999))
    t.strictSame(first!.promptPieces, texts.slice(0, 5_000))
    t.strictSame(second!.requestMessages, texts)
    t.strictSame(second!.promptPieces, texts.slice(0, 6_000))
  })

  test('token ids and logprobs are read back bit for bit', async (t, store) => {
    const turns = fc.array(
      fc.record({
        promptTokenIds: fc.array(tokenId).map((ids) => Int32Array.from(ids)),
        completionTokenIds: fc.array(tokenId).map((ids) => Int32Array.from(ids)),
        completionLogprobs: fc.array(logprob).map((values) => Float64Array.from(values)),
      }),
      { maxLength: 5 },
    )
    const property = fc.asyncProperty(turns, async (turns) => {
      const sessionId = createSessionId()
      const expected = structuredClone(turns)
      await store.createSession(createSession(sessionId))
      for (const [index, arrays] of turns.entries()) {
        await record(store, aTurn(`t${index}`, { sessionId, index }), arrays)
      }
      const read = await getTurns(store, sessionId)
      return read.every((turn, index) =>
        Object.entries(expected[index]!).every(([name, array]) =>
          toBytes(turn[name as keyof typeof turn] as Float64Array).equals(toBytes(array)),
        ),
      )
    })
    await t.resolves(fc.assert(property, { numRuns: RUNS }))
  })

  test('prompts are read back unchanged, whichever prompt they extend', async (t, store) => {
    const step = fc.record({
      from: fc.nat(20),
      keep: fc.nat(60),
      more: fc.array(fc.nat(9), { maxLength: 20 }),
      completion: fc.array(fc.nat(9), { maxLength: 20 }),
      after: fc.constantFrom('go on', 'go on', 'go on', 'wait', 'reset', 'delete'),
    })
    const property = fc.asyncProperty(fc.array(step, { maxLength: 20 }), async (steps) => {
      const sessionId = createSessionId()
      await store.createSession(createSession(sessionId))
      const known = [PromptIds.of(...Array(40).keys())]
      let expected: string[] = []
      let last: Promise<unknown> | undefined
      for (const [index, { from, keep, more, completion, after }] of steps.entries()) {
        const base = known[from % known.length]!
        const prompt = new PromptIds(Int32Array.from(more), base, Math.min(keep, base.tokenCount))
        prompt.completion = Int32Array.from(completion)
        known.push(prompt)
        const promptTokenIds = prompt
        const completionTokenIds = prompt.completion.slice()
        expected.push(`${[...prompt]} ${completionTokenIds}`)
        last = record(store, aTurn(`t${index}`, { sessionId, index }), { promptTokenIds, completionTokenIds })
        if (after === 'go on') continue
        await last
        if (after === 'wait') continue
        expected = []
        if (after === 'reset') await store.resetSession(sessionId, 9)
        else {
          await store.deleteSession(sessionId)
          await store.createSession(createSession(sessionId))
        }
      }
      await last
      const read = await getTurns(store, sessionId)
      return (
        read.map((turn) => `${turn.promptTokenIds} ${turn.completionTokenIds}`).join('|') ===
        expected.join('|')
      )
    })
    await t.resolves(fc.assert(property, { numRuns: RUNS }))
  })

  test('every text is read back unchanged, also lone surrogates and NUL characters', async (t, store) => {
    const fields = fc.record({
      requestMessages: fc.array(text, { maxLength: 6 }),
      tools: fc.option(text),
      params: text,
      promptPieces: fc.array(text, { maxLength: 6 }),
      completionText: fc.option(text),
      reasoning: fc.option(text),
    })
    const property = fc.asyncProperty(fields, async (fields) => {
      const { completionText, reasoning, ...request } = fields
      const sessionId = createSessionId()
      await store.createSession(createSession(sessionId))
      await record(store, aTurn('t', { sessionId, ...request }), { completionText, reasoning })
      const echo = JSON.stringify({
        role: 'assistant',
        content: completionText,
        reasoning_content: reasoning,
      })
      const requestMessages = [...request.requestMessages, echo]
      await record(store, aTurn('u', { sessionId, index: 1, requestMessages }))
      const [first, second] = await getTurns(store, sessionId)
      return (
        isDeepStrictEqual({ ...first, ...fields }, first) &&
        isDeepStrictEqual(second?.requestMessages, requestMessages)
      )
    })
    await t.resolves(fc.assert(property, { numRuns: RUNS }))
  })

  test('texts that differ only in a lone surrogate are two texts', async (t, store) => {
    await store.createSession(createSession('s'))
    const messages = ['"\ud800"', '"\ud801"', '"\udc00"', '"\ufffd"']
    for (const [index, message] of messages.entries()) {
      await record(store, aTurn(`t${index}`, { index, requestMessages: [message] }))
    }
    t.strictSame(
      (await getTurns(store)).map((turn) => turn.requestMessages[0]),
      messages,
    )
  })

  test('an echoed completion is read back as the agent wrote it, in any form', async (t, store) => {
    await store.createSession(createSession('s'))
    const content = `  The "answer" is\n${'long and '.repeat(20)}über  `
    const args = `{"path": "src/${'deep/'.repeat(20)}file.py"}`
    const toolCalls = [{ id: 'call_1', type: 'function', function: { name: 'read', arguments: args } }]
    await record(store, aTurn('a'), { completionText: content, toolCalls: JSON.stringify(toolCalls) })
    const echoes = [
      JSON.stringify({ role: 'assistant', content, tool_calls: toolCalls }),
      JSON.stringify({ tool_calls: toolCalls, content, role: 'assistant', refusal: null }),
      JSON.stringify({ role: 'assistant', content: content.trim(), tool_calls: toolCalls }),
      JSON.stringify({ role: 'assistant', content: [{ type: 'text', text: content }] }),
      JSON.stringify({
        role: 'assistant',
        tool_calls: [{ function: { arguments: args, name: 'read' }, id: '2' }],
      }),
      JSON.stringify({ role: 'assistant', content, tool_calls: toolCalls }, null, 2),
      JSON.stringify({ role: 'assistant', content: `${content}${content}` }),
      JSON.stringify({ role: 'assistant', content: 'something else' }),
    ]
    for (const [index, echo] of echoes.entries()) {
      const requestMessages = [...HI, echo, '{"role":"user","content":"go on"}']
      await record(store, aTurn(`e${index}`, { index: index + 1, requestMessages }))
    }
    const turns = await getTurns(store)
    t.strictSame(
      turns.slice(1).map((turn) => turn.requestMessages[1]),
      echoes,
    )
  })

  test('one prompt sampled twice and continued from either completion keeps both', async (t, store) => {
    await store.createSession(createSession('s'))
    const prompt = Int32Array.from({ length: 50 }, (_, index) => index)
    const question = HI
    const createContinuedTurn = (turnId: string, index: number, response: string) =>
      aTurn(turnId, {
        index,
        requestMessages: [...question, JSON.stringify({ role: 'assistant', content: response })],
      })
    const ids = (...more: number[]) => Int32Array.of(...prompt, ...more)
    await record(store, aTurn('a', { index: 0 }), {
      promptTokenIds: ids(),
      completionTokenIds: Int32Array.of(60, 61),
    })
    await record(store, aTurn('b', { index: 1 }), {
      promptTokenIds: ids(),
      completionTokenIds: Int32Array.of(70, 71),
    })
    await record(store, createContinuedTurn('c', 2, 'hello'), { promptTokenIds: ids(60, 61, 62) })
    await record(store, createContinuedTurn('d', 3, 'other'), { promptTokenIds: ids(70, 71, 72) })
    const turns = await getTurns(store)
    t.strictSame(
      turns.map((turn) => [...turn.promptTokenIds.slice(50)]),
      [[], [], [60, 61, 62], [70, 71, 72]],
    )
    t.strictSame(turns[1]?.completionTokenIds, Int32Array.of(70, 71))
  })

  test('branches keep their own histories', async (t, store) => {
    await store.createSession(createSession('s'))
    const histories = ['A', 'AB', 'ABC', 'AX', 'AXB', 'ABCD', '', 'B', 'AB']
    for (const [index, history] of histories.entries()) {
      const requestMessages = [...history].map((letter) => JSON.stringify({ role: 'user', content: letter }))
      const promptTokenIds = Int32Array.from(
        [...history].flatMap((letter) => Array(20).fill(letter.charCodeAt(0))),
      )
      await record(store, aTurn(`t${index}`, { index, requestMessages }), { promptTokenIds })
    }
    const read = (await getTurns(store)).map((turn) => ({
      messages: turn.requestMessages.map((message) => JSON.parse(message).content).join(''),
      ids: String.fromCharCode(...turn.promptTokenIds.filter((_, index) => index % 20 === 0)),
    }))
    t.strictSame(
      read,
      histories.map((history) => ({ messages: history, ids: history })),
    )
  })

  test(`a session of ${LONG_TURNS} turns and ${LONG_TURNS * 500} tokens is read back completely`, async (t, store) => {
    await store.createSession(createSession('s'))
    const sequence: number[] = []
    const messages: string[] = []
    for (let index = 0; index < LONG_TURNS; index += 1) {
      messages.push(JSON.stringify({ role: 'user', content: `question ${index} ${'q'.repeat(500)}` }))
      for (let i = 0; i < 400; i += 1) sequence.push((index * 7919 + i * 104_729) % 150_000)
      const completion = Array.from({ length: 100 }, (_, i) => (index + i * 31) % 150_000)
      const completionText = `answer ${index} ${'a'.repeat(500)}`
      await record(store, aTurn(`t${index}`, { index, requestMessages: [...messages] }), {
        promptTokenIds: Int32Array.from(sequence),
        completionTokenIds: Int32Array.from(completion),
        completionText,
      })
      messages.push(JSON.stringify({ role: 'assistant', content: completionText }))
      sequence.push(...completion)
    }
    let count = 0
    let wrong = 0
    for await (const record of store.readTurns('s')) {
      const turn = withTexts(record)
      const isComplete = turn.index === count && turn.requestMessages.length === count * 2 + 1
      const right = turn.requestMessages.every((message, index) => message === messages[index])
      if (!isComplete || !right || !turn.promptTokenIds.every((id, index) => id === sequence[index]))
        wrong += 1
      if (turn.promptTokenIds.length !== count * 500 + 400) wrong += 1
      count += 1
    }
    t.equal(count, LONG_TURNS)
    t.equal(wrong, 0)
  })
}

function toBytes(array: Int32Array | Float64Array): Buffer {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength)
}

function detailTests(test: StoreTest): void {
  const data = getDetails([1, 2, 3], [4, 5])

  test('details of a turn are read back bit for bit, and only those of the requested kinds', async (t, store) => {
    await store.createSession(createSession('s'))
    await record(store, aTurn('t1'), { details: packTokenData(data) })
    await record(store, aTurn('t2', { index: 1 }))
    const found = await store.readDetails('s', ['t1', 't2', 'gone'], TOKEN_DATA_KINDS)
    t.strictSame([...found.keys()], ['t1'], 'a turn without details is omitted')
    t.ok(isDeepStrictEqual(toComparable(found.get('t1')), toComparable(packTokenData(data))))
    const masks = await store.readDetails('s', ['t1'], ['sampling_mask'])
    t.strictSame(
      masks.get('t1')!.map(({ kind }) => kind),
      ['sampling_mask'],
    )
    t.equal((await store.readDetails('other', ['t1'], TOKEN_DATA_KINDS)).size, 0)
  })

  test('a turn whose opening was recorded before its end has its details', async (t, store) => {
    await store.createSession(createSession('s'))
    await store.openTurn(aTurn('t1'))
    await store.closeTurn(anOutcome('t1', { status: 'failed', details: packTokenData(data) }))
    t.equal((await store.readDetails('s', ['t1'], TOKEN_DATA_KINDS)).get('t1')?.length, 6)
    const [turn] = await getTurns(store)
    t.notOk('details' in turn!, 'a read of the turn does not include them')
  })

  test('a session that was reset or deleted has no details', async (t, store) => {
    await store.createSession(createSession('s'))
    await record(store, aTurn('t1'), { details: packTokenData(data) })
    await store.resetSession('s', 4000)
    t.equal((await store.readDetails('s', ['t1'], TOKEN_DATA_KINDS)).size, 0)
    await record(store, aTurn('t1'), { details: packTokenData({ sampling_logprobs: [-1] }) })
    t.equal((await store.readDetails('s', ['t1'], TOKEN_DATA_KINDS)).get('t1')?.length, 1)
    await store.deleteSession('s')
    t.equal((await store.readDetails('s', ['t1'], TOKEN_DATA_KINDS)).size, 0)
  })

  const PARTS = ['advantages', 'teacher_logprobs'] as const

  test('details that are added to ended turns replace those of the same kind', async (t, store) => {
    await store.createSession(createSession('s'))
    await record(store, aTurn('t1'), { details: packTokenData(data) })
    await record(store, aTurn('t2', { index: 1 }))
    const createBlobs = (by: string, ...numbers: number[]) =>
      packTokenData({ advantages: numbers, teacher_logprobs: { teacher: by, logprobs: numbers } })
    await store.addDetails('s', [
      { turnId: 't1', details: createBlobs('first', 0.1, Number.NaN) },
      { turnId: 't2', details: createBlobs('first', 1 / 3) },
    ])
    // In one group of commands, and one turn twice in one command.
    await Promise.all([
      store.addDetails('s', [{ turnId: 't1', details: createBlobs('second', 0.2) }]),
      store.addDetails('s', [
        { turnId: 't1', details: createBlobs('third', 0.3) },
        { turnId: 't1', details: packTokenData({ advantages: [0.4] }) },
      ]),
    ])
    const found = await store.readDetails('s', ['t1', 't2'], PARTS)
    t.strictSame(unpackTokenData(found.get('t1')!), {
      advantages: [0.4],
      teacher_logprobs: { teacher: 'third', logprobs: [0.3] },
    })
    t.strictSame(unpackTokenData(found.get('t2')!).advantages, [1 / 3])
    t.equal(
      (await store.readDetails('s', ['t1'], TOKEN_DATA_KINDS)).get('t1')?.length,
      8,
      'other kinds are unchanged',
    )
  })

  test('details of an unknown or open turn are rejected together with the others of their request', async (t, store) => {
    await store.createSession(createSession('s'))
    await record(store, aTurn('t1'))
    await store.openTurn(aTurn('open', { index: 1 }))
    const details = packTokenData({ advantages: [1] })
    for (const turnId of ['open', 'gone']) {
      const turns = [
        { turnId: 't1', details },
        { turnId, details },
      ]
      await t.rejects(store.addDetails('s', turns), { code: 'turn_not_found' })
    }
    await t.rejects(store.addDetails('gone', []), { code: 'session_not_found' })
    t.equal((await store.readDetails('s', ['t1'], TOKEN_DATA_KINDS)).size, 0)
  })
}

/** Converts bytes to numbers: a buffer and an array with the same bytes are equal. */
function toComparable(packed: readonly TokenDataBlob[] = []): TokenData & { bytes: unknown } {
  const { routed_experts: experts, ...rest } = unpackTokenData(packed)
  return { ...rest, bytes: experts && [...experts.experts.data] }
}
