import { setImmediate as nextIteration } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import fc from 'fast-check'
import t from 'tap'
import type { RoleInput } from '../../../../../src/proxy/session/roles/opening.ts'
import type { AttemptTurn } from '../../../../../src/proxy/session/trajectories/retries.ts'
import {
  type Trajectory,
  TrajectoryBuilder,
  type TrajectoryOptions,
  type TurnSelection,
} from '../../../../../src/proxy/session/trajectories/trajectories.ts'
import type { TrainableTurn } from '../../../../../src/proxy/session/trajectories/turn-tree.ts'
import type { TurnRecord } from '../../../../../src/proxy/store/port/turn-store.ts'
import { addMessageTexts } from '../../../../helpers/messages.ts'
import { limitRuns } from '../../../../helpers/tier.ts'
import { createTurnStep } from '../../../../helpers/turn-step.ts'

type RecordedTurn = TrainableTurn &
  Pick<TurnRecord, 'promptTokenIds'> &
  RoleInput &
  AttemptTurn &
  Pick<TurnRecord, 'completionText'>

interface TurnSketch extends Partial<Omit<RecordedTurn, 'promptTokenIds' | 'completionTokenIds'>> {
  prompt: number[]
  completion: number[]
}

/** Creates a completed turn; its logprobs identify turn and position. */
function getTurn(sketch: TurnSketch, index: number): RecordedTurn {
  const { prompt, completion, ...rest } = sketch
  return {
    turnId: `t${index}`,
    index,
    status: 'completed',
    retryCount: 0,
    startedAtMs: 100 * index,
    endedAtMs: 100 * index + 50,
    lastMessage: addMessageTexts([JSON.stringify({ role: 'user', content: prompt.join(' ') })]),
    tools: null,
    params: '{}',
    promptPieces: [],
    annotations: '{}',
    completionText: null,
    promptTokenIds: Int32Array.from(prompt),
    completionTokenIds: Int32Array.from(completion),
    completionLogprobs: Float64Array.from(completion, (_, i) => -(index + 1) - i / 1000),
    exact: true,
    inexactReason: null,
    finishReason: 'stop',
    weightVersionStart: null,
    weightVersionEnd: null,
    ...rest,
  }
}

function getBuilder(turns: RecordedTurn[], selection: TurnSelection = {}): TrajectoryBuilder {
  const builder = new TrajectoryBuilder(selection)
  for (const turn of turns) builder.add(turn)
  return builder
}

function getRows(
  sketches: TurnSketch[],
  options: TrajectoryOptions = {},
  selection: TurnSelection = {},
): Trajectory[] {
  return [...getBuilder(sketches.map(getTurn), selection).assembleRows(options, null)]
}

function turnIds(row: Trajectory): string[] {
  return row.turns.map((turn) => turn.turn_id)
}

/** Returns a row as plain values. */
function toPlain(row: Trajectory) {
  return {
    prompt: [...row.prompt_ids],
    response: [...row.response_ids],
    mask: [...row.response_mask],
    turns: turnIds(row),
  }
}

const chain: TurnSketch[] = [
  { prompt: [1, 2], completion: [3, 4] },
  { prompt: [1, 2, 3, 4, 5], completion: [6] },
  { prompt: [1, 2, 3, 4, 5, 6, 7, 8], completion: [9, 9] },
]

t.test(
  'a conversation is one row: first the prompt, then completions and the tokens between them',
  async (t) => {
    const [row, ...others] = getRows(chain)
    t.same(others, [])
    t.same(toPlain(row!), {
      prompt: [1, 2],
      response: [3, 4, 5, 6, 7, 8, 9, 9],
      mask: [1, 1, 0, 1, 0, 0, 1, 1],
      turns: ['t0', 't1', 't2'],
    })
    t.same([...row!.response_logprobs], [-1, -1.001, 0, -2, 0, 0, -3, -3.001])
    t.same(
      row!.turns.map(({ start, end, trained }) => [start, end, trained]),
      [
        [0, 2, true],
        [3, 4, true],
        [6, 8, true],
      ],
    )
    t.match(row, {
      num_turns: 3,
      exact: true,
      inexact_reason: null,
      truncated: false,
      prompt_truncated: false,
    })
  },
)

t.test('a session without turns has no rows', async (t) => {
  t.same(getRows([]), [])
})

t.test('a completion that two branches share is trained in the first of them', async (t) => {
  const rows = getRows([
    { prompt: [1], completion: [2, 3] },
    { prompt: [1, 2, 3, 4], completion: [5] },
    { prompt: [1, 2, 3, 6], completion: [7] },
  ])
  t.same(rows.map(toPlain), [
    { prompt: [1], response: [2, 3, 4, 5], mask: [1, 1, 0, 1], turns: ['t0', 't1'] },
    { prompt: [1], response: [2, 3, 6, 7], mask: [0, 0, 0, 1], turns: ['t0', 't2'] },
  ])
  t.same([...rows[1]!.response_logprobs].slice(0, 3), [0, 0, 0])
})

t.test(
  'a prompt sampled twice and continued from the first completion has both, in a row each',
  async (t) => {
    const rows = getRows([
      { prompt: [1], completion: [2] },
      { prompt: [1], completion: [3] },
      { prompt: [1, 2, 4], completion: [5] },
    ])
    t.same(rows.map(toPlain), [
      { prompt: [1], response: [3], mask: [1], turns: ['t1'] },
      { prompt: [1], response: [2, 4, 5], mask: [1, 0, 1], turns: ['t0', 't2'] },
    ])
  },
)

t.test('equal completions of an equal prompt are continued once each, the latest first', async (t) => {
  const twice = [
    { prompt: [1], completion: [2] },
    { prompt: [1], completion: [2] },
    { prompt: [1, 2, 3], completion: [4] },
  ]
  t.same(getRows(twice).map(turnIds), [['t0'], ['t1', 't2']])
  const continuedTwice = [...twice, { prompt: [1, 2, 5], completion: [6] }]
  t.same(getRows(continuedTwice).map(turnIds), [
    ['t1', 't2'],
    ['t0', 't3'],
  ])
  const continuedThrice = [...continuedTwice, { prompt: [1, 2, 7], completion: [8] }]
  t.same(getRows(continuedThrice).map(turnIds).at(-1), ['t1', 't4'])
})

t.test('a turn without a sampled token is in no row and extends none', async (t) => {
  const turns: TurnSketch[] = [
    { prompt: [1], completion: [2] },
    { prompt: [1, 2, 3, 4, 5], completion: [] },
    { prompt: [9, 9, 9], completion: [] },
  ]
  for (const perTurn of [false, true]) {
    t.same(getRows(turns, { perTurn }).map(toPlain), [
      { prompt: [1], response: [2], mask: [1], turns: ['t0'] },
    ])
  }
  t.match(getBuilder(turns.map(getTurn)).countExcluded(), { empty: 2, superseded: 0 })
})

t.test('a turn without ids has a row, which has the reason', async (t) => {
  const rows = getRows([{ prompt: [], completion: [], exact: false, inexactReason: 'no ids' }])
  t.match(rows, [{ exact: false, inexact_reason: 'no ids' }])
})

t.test('a branch that shares only text, but not the end of a completion, starts its own row', async (t) => {
  const rows = getRows([
    { prompt: [1, 2], completion: [3, 4] },
    { prompt: [1, 2, 3, 9], completion: [5] },
  ])
  t.same(rows.map(toPlain), [
    { prompt: [1, 2], response: [3, 4], mask: [1, 1], turns: ['t0'] },
    { prompt: [1, 2, 3, 9], response: [5], mask: [1], turns: ['t1'] },
  ])
})

t.test("a client's retry supersedes the completion without a continuation", async (t) => {
  const turns: TurnSketch[] = [
    { prompt: [1], completion: [2] },
    { prompt: [1], completion: [3], retryCount: 1 },
    { prompt: [1], completion: [4], retryCount: 2 },
    { prompt: [1, 4, 5], completion: [6] },
  ]
  t.same(getRows(turns).map(turnIds), [['t2', 't3']])
  t.equal(getBuilder(turns.map(getTurn)).countExcluded().superseded, 2)
})

t.test('a retried completion that was in no row is excluded for its own reason', async (t) => {
  const turns: TurnSketch[] = [
    { prompt: [1], completion: [] },
    { prompt: [1], completion: [3], retryCount: 1 },
  ]
  t.same(getRows(turns).map(turnIds), [['t1']])
  t.match(getBuilder(turns.map(getTurn)).countExcluded(), { empty: 1, superseded: 0 })
})

t.test('a retry supersedes an earlier one whose original attempt is not recorded', async (t) => {
  const turns: TurnSketch[] = [
    { prompt: [1], completion: [2], retryCount: 1 },
    { prompt: [1], completion: [3], retryCount: 2 },
  ]
  t.same(getRows(turns).map(turnIds), [['t1']])
})

t.test(
  'among completions that may be lost, the one with the highest retry count is, at any position',
  async (t) => {
    const turns: TurnSketch[] = [
      { prompt: [1], completion: [2], retryCount: 1 },
      { prompt: [1], completion: [3] },
      { prompt: [1], completion: [4], retryCount: 2 },
    ]
    t.same(getRows(turns).map(turnIds), [['t1'], ['t2']])
  },
)

t.test('a completion that a retry received is superseded by a later retry only', async (t) => {
  const rowsAfter = (answered_retries: number[], retryCount: number) => {
    const input: TurnSketch = {
      prompt: [1],
      completion: [2],
      annotations: JSON.stringify({ answered_retries }),
    }
    return getRows([input, { prompt: [1], completion: [3], retryCount }]).map(turnIds)
  }
  t.same(rowsAfter([1], 1), [['t0'], ['t1']])
  t.same(rowsAfter([1], 2), [['t1']])
  t.same(rowsAfter([1, 2, 3], 3), [['t0'], ['t1']], 'the last retry that received it counts')
})

t.test(
  'the same request, sent to a proxy after another one crashed, supersedes its last completion',
  async (t) => {
    const withResumedAt = (resumed_at: number): Partial<TurnSketch> => ({
      annotations: JSON.stringify({ resumed_at }),
    })
    const rowsFrom = (...turns: TurnSketch[]) => getRows(turns).map(turnIds)
    const response = { prompt: [1], completion: [2] }
    const second = { prompt: [1], completion: [3] }
    t.same(rowsFrom(response, { ...second, ...withResumedAt(1) }), [['t1']])
    t.same(rowsFrom(response, second), [['t0'], ['t1']], 'on a proxy that did not crash they are two samples')
    t.same(
      rowsFrom(response, { ...second, ...withResumedAt(1) }, { ...second, ...withResumedAt(1) }),
      [['t1'], ['t2']],
      'once',
    )
    t.same(
      rowsFrom(response, { prompt: [7], completion: [8] }, { ...second, ...withResumedAt(2) }),
      [['t0'], ['t1'], ['t2']],
      'it was delivered: its proxy received another request after it',
    )
    t.same(
      rowsFrom(
        response,
        { prompt: [7], completion: [8], startedAtMs: 20 },
        { ...second, ...withResumedAt(2) },
      ),
      [['t1'], ['t2']],
      'requests before its end are no evidence',
    )
    t.same(
      rowsFrom(
        response,
        { prompt: [7], completion: [], status: 'interrupted' },
        { ...second, ...withResumedAt(2) },
      ),
      [['t2']],
      'nor are turns that are still open',
    )
    t.same(
      rowsFrom(
        response,
        { prompt: [1], completion: [], status: 'interrupted' },
        { ...second, ...withResumedAt(2) },
      ),
      [['t0'], ['t2']],
      'the repeated request concerns the truncated one',
    )
    t.same(
      rowsFrom(response, { prompt: [1, 2, 4], completion: [5] }, { ...second, ...withResumedAt(2) }),
      [['t0', 't1'], ['t2']],
      'a completion with a continuation was delivered',
    )
    t.same(
      rowsFrom(
        response,
        { ...second, ...withResumedAt(1) },
        { prompt: [1], completion: [4], ...withResumedAt(2) },
      ),
      [['t2']],
      'two proxies crashed, each after its completion',
    )
    t.same(
      rowsFrom(response, { ...second, ...withResumedAt(1) }, second),
      [['t1'], ['t2']],
      'also after an orderly transfer of the session by the next proxy',
    )
  },
)

t.test(
  'a node that repeats the request of a crashed owner names the completion that it supersedes',
  async (t) => {
    const annotate = (annotations: object): Partial<TurnSketch> => ({
      annotations: JSON.stringify(annotations),
    })
    const first = (completion: number, node_message?: string): TurnSketch => {
      return { prompt: [1], completion: [completion], ...annotate({ node_message }) }
    }
    const again = { prompt: [1], completion: [9], ...annotate({ resumed_at: 3, lost_message: 'm' }) }
    const parallel = { prompt: [7], completion: [8] }
    t.same(getRows([first(2, 'm'), parallel, first(3), again]).map(turnIds), [['t1'], ['t2'], ['t3']])
    t.same(
      getRows([first(2, 'm'), first(3, 'm'), parallel, again, again]).map(turnIds),
      [['t2'], ['t3'], ['t4']],
      'each choice of it',
    )
    t.same(
      getRows([first(2, 'other'), parallel, again]).map(turnIds),
      [['t0'], ['t1'], ['t2']],
      'the crashed owner did not complete it',
    )
  },
)

t.test('a completion that a repeated request received is not superseded by an equal request', async (t) => {
  const received = { prompt: [1], completion: [2], annotations: '{"answered_retries":[0]}' }
  const second = { prompt: [1], completion: [3], annotations: '{"resumed_at":1}' }
  t.same(getRows([received, second]).map(turnIds), [['t0'], ['t1']])
})

t.test('turns whose prompts are recorded as differences make the same rows', async (t) => {
  const builder = new TrajectoryBuilder()
  builder.add(createTurnStep(0, [1, 2], [3, 4]))
  builder.add({ ...createTurnStep(1, [], [6]), promptStep: { base: '0', shared: 4, rest: Int32Array.of(5) } })
  builder.add({ ...createTurnStep(2, [], [8]), promptStep: { base: '0', shared: 3, rest: Int32Array.of(7) } })
  t.match([...builder.assembleRows({}, null)].map(toPlain), [
    { prompt: [1, 2], response: [3, 4, 5, 6], mask: [1, 1, 0, 1], turns: ['0', '1'] },
    { prompt: [1, 2, 3, 7], response: [8], mask: [1], turns: ['2'] },
  ])
  const lost = {
    ...createTurnStep(3, [], [6]),
    promptStep: { base: 'lost', shared: 1, rest: Int32Array.of(5) },
  }
  t.throws(() => builder.add(lost), /turn lost, the base of another one/)
})

t.test('a retry repeats a request whose messages are all the same, and no other', async (t) => {
  const texts = (...contents: string[]) =>
    contents.map((content) => JSON.stringify({ role: 'user', content }))
  const getSketch = (messages: string[], completion: number, retryCount = 0): TurnSketch => ({
    prompt: [1],
    completion: [completion],
    lastMessage: addMessageTexts(messages),
    retryCount,
  })
  const superseded = (...turns: TurnSketch[]) => turns.length - getRows(turns).flatMap(turnIds).length
  t.equal(superseded(getSketch(texts('s', 'u'), 2), getSketch(texts('s', 'u'), 3, 1)), 1)
  const between = getSketch(texts('s'), 4)
  t.equal(superseded(getSketch(texts('s', 'u'), 2), between, getSketch(texts('s', 'u'), 3, 1)), 1)
  for (const other of [texts('s', 'b', 'z'), texts('b', 'a', 'z'), texts('s', 'a', 'b'), texts('s', 'a')])
    t.equal(superseded(getSketch(texts('s', 'a', 'z'), 2), getSketch(other, 3, 1)), 0)
})

const NOT_COMPLETED = {
  prompt: [],
  completion: [],
  exact: false,
  lastMessage: addMessageTexts(['{"role":"user","content":"1"}']),
}
const SAMPLES = [2, 3, 4].map((completion) => ({ prompt: [1], completion: [completion] }))

for (const status of ['failed', 'aborted', 'interrupted'] as const) {
  t.test(`a retry of a request that is recorded as ${status} excludes no sample from training`, async (t) => {
    const turns: TurnSketch[] = [
      ...SAMPLES,
      { ...NOT_COMPLETED, status },
      { prompt: [1], completion: [5], retryCount: 1 },
    ]
    t.same(getRows(turns).map(turnIds), [['t0'], ['t1'], ['t2'], ['t4']])
    t.equal(getBuilder(turns.map(getTurn)).countExcluded().superseded, 0)
  })
}

t.test(
  'a retry whose original attempt is not recorded as a failure supersedes one sample, the latest',
  async (t) => {
    const turns: TurnSketch[] = [...SAMPLES, { prompt: [1], completion: [5], retryCount: 1 }]
    t.same(getRows(turns).map(turnIds), [['t0'], ['t1'], ['t3']])
    const twice = [...turns, { prompt: [1], completion: [6], retryCount: 1 }]
    t.same(getRows(twice).map(turnIds), [['t0'], ['t3'], ['t4']], 'each retry another one')
  },
)

t.test('each retry accounts for one failure: two retries for two', async (t) => {
  const failed: TurnSketch = { ...NOT_COMPLETED, status: 'failed' }
  const rows = getRows([
    ...SAMPLES,
    failed,
    { ...failed, retryCount: 1 },
    { prompt: [1], completion: [5], retryCount: 2 },
    failed,
    { prompt: [1], completion: [6], retryCount: 1 },
  ])
  t.same(rows.map(turnIds), [['t0'], ['t1'], ['t2'], ['t5'], ['t7']])
})

t.test('a retry that fails as well shows that the first response was lost', async (t) => {
  const failedAgain: TurnSketch = { ...NOT_COMPLETED, status: 'failed', retryCount: 1 }
  const turns = [
    { prompt: [1], completion: [2] },
    failedAgain,
    { prompt: [1], completion: [3], retryCount: 2 },
  ]
  t.same(getRows(turns).map(turnIds), [['t2']])
})

t.test('a retry accounts for attempts of its own request, not for others with an equal prompt', async (t) => {
  const warm = { prompt: [1], completion: [2], params: '{"temperature":1}' }
  const rows = getRows([warm, { prompt: [1], completion: [3], params: '{"temperature":0}', retryCount: 1 }])
  t.same(rows.map(turnIds), [['t0'], ['t1']])
  const long = (end: string) => JSON.stringify({ stop: 'x'.repeat(5000) + end })
  const longOnes = [
    { prompt: [1], completion: [2], params: long('a') },
    { prompt: [1], completion: [3], params: long('b') },
    { prompt: [1], completion: [4], params: long('a'), retryCount: 1 },
  ]
  t.same(getRows(longOnes).map(turnIds), [['t1'], ['t2']])
  const completion = { prompt: [1], lastMessage: undefined, completion: [2] }
  const completions = [
    { ...completion, promptPieces: ['"Once'] },
    { ...completion, promptPieces: ['"Once', ' upon'] },
    { ...completion, promptPieces: ['"Once'], retryCount: 1 },
  ]
  t.same(getRows(completions).map(turnIds), [['t1'], ['t2']], 'of completions as well')
})

t.test('a continued sample is not lost, even if it is continued late', async (t) => {
  const rows = getRows([
    { prompt: [1], completion: [2] },
    { prompt: [1], completion: [3] },
    { prompt: [1], completion: [4], retryCount: 1 },
    { prompt: [1, 3, 5], completion: [6] },
  ])
  t.same(rows.map(turnIds), [['t2'], ['t1', 't3']])
})

t.test('the latest retry counts even without a continuation', async (t) => {
  const rows = getRows([
    { prompt: [1], completion: [2] },
    { prompt: [1], completion: [3], retryCount: 1 },
  ])
  t.same(rows.map(turnIds), [['t1']])
})

t.test('a continued completion is not superseded by any later retry', async (t) => {
  const rows = getRows([
    { prompt: [1], completion: [2] },
    { prompt: [1, 2, 3], completion: [4] },
    { prompt: [1], completion: [5], retryCount: 1 },
  ])
  t.same(rows.map(turnIds), [['t0', 't1'], ['t2']])
})

t.test('a retry has the parent of the turn that it repeats, also below equal completions', async (t) => {
  const rows = getRows([
    { prompt: [1], completion: [2] },
    { prompt: [1], completion: [2] },
    { prompt: [1, 2, 3], completion: [4] },
    { prompt: [1, 2, 3], completion: [5], retryCount: 1 },
  ])
  t.same(rows.map(turnIds), [['t0'], ['t1', 't3']])
})

for (const [outcome, retry] of [
  ['fails', { ...NOT_COMPLETED, status: 'failed' }],
  ['has no exact ids', { prompt: [1, 2, 3], completion: [5], exact: false, inexactReason: 'lost' }],
  ['samples nothing', { prompt: [1, 2, 3], completion: [] }],
  ['became another prompt', { prompt: [9], completion: [5] }],
] as const)
  t.test(`a turn whose lost continuation was retried is trained, though its retry ${outcome}`, async (t) => {
    const request = { lastMessage: addMessageTexts(['{"role":"user","content":"the second"}']) }
    const rows = getRows([
      { prompt: [1], completion: [2] },
      { prompt: [1, 2, 3], completion: [4], ...request },
      { ...retry, ...request, prompt: [...retry.prompt], completion: [...retry.completion], retryCount: 1 },
    ])
    t.same(turnIds(rows[0]!), ['t0'])
    t.same([...rows[0]!.response_mask], [1])
    t.notOk(rows.some((row) => turnIds(row).includes('t1')))
  })

/** Returns the annotations of a request that declares its role. */
function withRole(role: string): Pick<RecordedTurn, 'annotations'> {
  return { annotations: JSON.stringify({ line: { told: role, rule: 'header' } }) }
}

const agents: TurnSketch[] = [
  { prompt: [8, 1], completion: [2], ...withRole('side') },
  { prompt: [1, 2], completion: [3], ...withRole('main') },
  { prompt: [7, 1], completion: [4], ...withRole('subagent:a') },
  { prompt: [1, 2, 3, 5], completion: [6], ...withRole('main') },
  { prompt: [7, 1, 4, 2], completion: [5], ...withRole('subagent:a') },
  { prompt: [1, 2, 3, 5, 6, 7], completion: [8], ...withRole('compaction') },
  { prompt: [1, 8], completion: [9], ...withRole('main') },
  { prompt: [1, 8, 9, 4], completion: [5], ...withRole('side') },
]

t.test(
  'a row has the role of its turns; a compaction at its end belongs to the role that it summarizes',
  async (t) => {
    const rows = getRows(agents)
    t.same(
      rows.map((row) => [row.agent_role, turnIds(row)]),
      [
        ['subagent:a', ['t2', 't4']],
        ['main', ['t1', 't3', 't5']],
        ['main', ['t6']],
      ],
    )
    t.same(
      rows[1]!.turns.map(({ agent_role, trained }) => [agent_role, trained]),
      [
        ['main', true],
        ['main', true],
        ['compaction', true],
      ],
    )
    const [alone] = getRows([{ prompt: [1], completion: [2], ...withRole('compaction') }])
    t.equal(alone!.agent_role, 'compaction')
  },
)

t.test('a row that branches off another role has the role of its last turn', async (t) => {
  const turns = [
    { prompt: [1], completion: [2], ...withRole('main') },
    { prompt: [1, 2, 3], completion: [4], ...withRole('subagent:fork') },
    { prompt: [1, 2, 5], completion: [6], ...withRole('main') },
  ]
  t.same(
    getRows(turns).map((row) => [row.agent_role, turnIds(row), row.turns.map(({ trained }) => trained)]),
    [
      ['subagent:fork', ['t0', 't1'], [true, true]],
      ['main', ['t0', 't2'], [false, true]],
    ],
  )
  const main = getRows(turns, {}, { lines: 'main' })
  t.same(
    main.map((row) => [turnIds(row), row.turns.map(({ trained }) => trained)]),
    [
      [
        ['t0', 't2'],
        [true, true],
      ],
    ],
  )
})

t.test('side requests are counted and not trained, unless they are requested', async (t) => {
  const turns = agents.map(getTurn)
  t.equal(getBuilder(turns).countExcluded().side, 2)
  const all = getBuilder(turns, { sideCalls: true })
  t.equal(all.countExcluded().side, 0)
  t.same(
    [...all.assembleRows({}, null)].map((row) => [row.agent_role, turnIds(row)]),
    [
      ['side', ['t0']],
      ['subagent:a', ['t2', 't4']],
      ['main', ['t1', 't3', 't5']],
      ['side', ['t6', 't7']],
    ],
  )
})

t.test('a side request that branches off the main conversation removes nothing from it', async (t) => {
  const rows = getRows(agents, { select: 'last' })
  t.same(rows.map(toPlain), [{ prompt: [1, 8], response: [9], mask: [1], turns: ['t6'] }])
})

t.test(
  'a completion of the main agent continues around a side request, whose tokens have mask 0',
  async (t) => {
    const rows = getRows([
      { prompt: [1], completion: [2], ...withRole('main') },
      { prompt: [1, 2, 3], completion: [4], ...withRole('side') },
      { prompt: [1, 2, 3, 4, 5], completion: [6], ...withRole('main') },
    ])
    t.same(rows.map(toPlain), [
      { prompt: [1], response: [2, 3, 4, 5, 6], mask: [1, 0, 0, 0, 1], turns: ['t0', 't2'] },
    ])
  },
)

t.test('the main role alone includes its compaction, but neither subagents nor side requests', async (t) => {
  const main = getRows(agents, {}, { lines: 'main', sideCalls: true })
  t.same(
    main.map((row) => [row.agent_role, turnIds(row)]),
    [
      ['main', ['t1', 't3', 't5']],
      ['main', ['t6']],
    ],
  )
})

t.test('failed turns are counted and never trained', async (t) => {
  const statuses = ['aborted', 'failed', 'failed', 'interrupted', 'open'] as const
  const turns = [
    ...chain,
    ...statuses.map((status): TurnSketch => ({ prompt: [1, 2, 3, 4], completion: [8], status })),
  ].map(getTurn)
  const builder = getBuilder(turns)
  t.same([...builder.assembleRows({}, null)].map(turnIds), [['t0', 't1', 't2']])
  t.same(builder.countExcluded(), {
    aborted: 1,
    failed: 2,
    interrupted: 1,
    open: 1,
    side: 0,
    superseded: 0,
    rejected: 0,
    empty: 0,
  })
})

t.test('a turn without exact ids is a row without ids that has the reason', async (t) => {
  const rows = getRows([
    { prompt: [1], completion: [2] },
    {
      prompt: [1, 2, 3],
      completion: [4],
      exact: false,
      inexactReason: 'no logprobs',
      finishReason: 'length',
    },
    { prompt: [1, 2, 3, 4, 5], completion: [6] },
  ])
  t.same(rows.map(turnIds), [['t1'], ['t0', 't2']])
  t.same(toPlain(rows[0]!), { prompt: [], response: [], mask: [], turns: ['t1'] })
  t.match(rows[0], { exact: false, inexact_reason: 'no logprobs', finish_reason: 'length', num_turns: 1 })
  t.equal(rows[0]!.turns[0]!.trained, false)
  t.match(rows[1], { exact: true, inexact_reason: null })
})

t.test('reward and its components are on each row', async (t) => {
  const reward = { reward: 0.5, components: { tests: 1 } }
  const [row] = getBuilder(chain.map(getTurn)).assembleRows({}, reward)
  t.match(row, { reward: 0.5, reward_components: { tests: 1 } })
  const unrewarded = getRows(chain)[0]!
  t.strictSame([unrewarded.reward, unrewarded.reward_components], [null, {}])
})

t.test('the reward of a turn is at its tokens in each row that has the turn', async (t) => {
  const turns = [
    { prompt: [1], completion: [2] },
    { prompt: [1, 2, 3], completion: [4] },
    { prompt: [1, 2, 5], completion: [6, 7] },
  ]
  const reward = { reward: 1, components: {}, turns: { 0: 0.25, 2: -0.5 } }
  const rows = [...getBuilder(turns.map(getTurn)).assembleRows({}, reward)]
  t.same(
    rows.map((row) => row.turns.map((turn) => [turn.start, turn.end, turn.trained, turn.reward])),
    [
      [
        [0, 1, true, 0.25],
        [2, 3, true, null],
      ],
      [
        [0, 1, false, 0.25],
        [2, 4, true, -0.5],
      ],
    ],
  )
  const [first] = getBuilder(turns.map(getTurn)).assembleRows({ perTurn: true }, reward)
  t.match(first!.turns, [{ start: 0, end: 1, reward: 0.25 }])
  t.same(
    rows.map((row) => row.reward),
    [1, 1],
  )
})

t.test('weight versions are compared as numbers if all are numbers, else by appearance', async (t) => {
  const addVersion = (...versions: (string | null)[]) =>
    getRows(
      chain.map((turn, index) => ({
        ...turn,
        weightVersionStart: versions[index]!,
        weightVersionEnd: versions[index]!,
      })),
    )[0]!
  t.match(addVersion('10', '9', '11'), { weight_version_min: '9', weight_version_max: '11' })
  t.match(addVersion('step-b', 'step-a', 'step-c'), {
    weight_version_min: 'step-b',
    weight_version_max: 'step-c',
  })
  t.match(addVersion('7', '7', '7'), { weight_version_max: '7', unversioned_turns: 0 })
})

t.test('a row with tokens of unknown weights has no lowest and no highest version', async (t) => {
  const addVersion = (ends: [start: string | null, end: string | null][], responseLength?: number) =>
    getRows(
      chain.map((turn, index) => ({
        ...turn,
        weightVersionStart: ends[index]![0],
        weightVersionEnd: ends[index]![1],
      })),
      responseLength === undefined ? {} : { responseLength },
    )[0]!
  const unknown = { weight_version_min: null, weight_version_max: null }
  t.match(
    addVersion([
      [null, null],
      ['7', '7'],
      ['7', '7'],
    ]),
    { ...unknown, unversioned_turns: 1 },
  )
  t.match(
    addVersion([
      ['7', '7'],
      ['7', '8'],
      ['8', null],
    ]),
    { ...unknown, unversioned_turns: 1 },
  )
  t.match(
    addVersion([
      [null, '7'],
      ['7', '7'],
      [null, null],
    ]),
    { ...unknown, unversioned_turns: 2 },
  )
  const cut = addVersion(
    [
      ['7', '7'],
      [null, null],
      [null, null],
    ],
    3,
  )
  t.match(cut, { weight_version_min: '7', unversioned_turns: 0 }, 'turns that were cut off do not count')
})

t.test('response_length truncates the response at its end, and reports this', async (t) => {
  const [row] = getRows(
    chain.map((turn, index) => ({
      ...turn,
      weightVersionStart: String(index),
      weightVersionEnd: String(index),
    })),
    { responseLength: 3 },
  )
  t.same(toPlain(row!), { prompt: [1, 2], response: [3, 4, 5], mask: [1, 1, 0], turns: ['t0', 't1', 't2'] })
  t.equal(row!.truncated, true)
  t.same(
    row!.turns.map(({ start, end, trained }) => [start, end, trained]),
    [
      [0, 2, true],
      [3, 3, false],
      [3, 3, false],
    ],
  )
  t.match(row, { weight_version_max: '0' }, 'versions of tokens that were cut off do not count')
  t.equal(getRows(chain, { responseLength: 8 })[0]!.truncated, false)
  t.equal(getRows(chain, { responseLength: 7 })[0]!.truncated, true)
})

t.test('prompt_length truncates the prompt at its start, and reports this', async (t) => {
  const [row] = getRows(chain, { promptLength: 1 })
  t.match(toPlain(row!), { prompt: [2], response: [3, 4, 5, 6, 7, 8, 9, 9] })
  t.equal(row!.prompt_truncated, true)
  t.equal(getRows(chain, { promptLength: 2 })[0]!.prompt_truncated, false)
})

t.test('a shared completion is trained in the row that has most of it', async (t) => {
  const sketches: TurnSketch[] = [
    { prompt: [1], completion: [2] },
    { prompt: [1, 2, 3, 3, 3], completion: [4, 4, 4, 4] },
    { prompt: [1, 2, 3, 3, 3, 4, 4, 4, 4, 5], completion: [6] },
    { prompt: [1, 2, 3, 3, 3, 4, 4, 4, 4, 7], completion: [8] },
  ]
  const [first, second] = getRows(sketches, { responseLength: 6 })
  t.same([...first!.response_mask], [1, 0, 0, 0, 1, 1], 'the first one among equals')
  t.same([...second!.response_mask], [0, 0, 0, 0, 0, 0])
  const [only] = getRows(sketches, { select: 'last' })
  t.same([...only!.response_mask], [1, 0, 0, 0, 1, 1, 1, 1, 0, 1], 'rows that are not returned train nothing')
})

t.test('select returns the row with the longest response, or the one that ended last', async (t) => {
  const sketches: TurnSketch[] = [...chain, { prompt: [8], completion: [1] }]
  t.same(getRows(sketches, { select: 'longest' }).map(turnIds), [['t0', 't1', 't2']])
  t.same(getRows(sketches, { select: 'last' }).map(turnIds), [['t3']])
  t.same(getRows([], { select: 'longest' }), [])
  t.same(getRows([], { select: 'last' }), [])
})

t.test('per_turn makes each turn of the selected rows a row with its complete prompt', async (t) => {
  t.same(getRows([...chain, { prompt: [8], completion: [1] }], { perTurn: true }).map(toPlain), [
    { prompt: [1, 2], response: [3, 4], mask: [1, 1], turns: ['t0'] },
    { prompt: [1, 2, 3, 4, 5], response: [6], mask: [1], turns: ['t1'] },
    { prompt: [1, 2, 3, 4, 5, 6, 7, 8], response: [9, 9], mask: [1, 1], turns: ['t2'] },
    { prompt: [8], response: [1], mask: [1], turns: ['t3'] },
  ])
  const ofOne = getRows([...chain, { prompt: [8], completion: [1] }], { perTurn: true, select: 'longest' })
  t.same(ofOne.map(turnIds), [['t0'], ['t1'], ['t2']])
  t.same([...getRows(chain, { perTurn: true })[1]!.response_logprobs], [-2])
})

/**
 * Random sessions over three tokens, so that equal prompts, equal completions and accidental prefixes are
 * common. A turn continues an earlier one, repeats its prompt, perhaps with an equal completion, or starts a new
 * conversation.
 */
const tokens = (min: number) => fc.array(fc.integer({ min: 0, max: 2 }), { minLength: min, maxLength: 3 })
const sessions = fc
  .array(
    fc.record({
      action: fc.constantFrom('continue', 'continue', 'repeat', 'retry', 'equal retry', 'start'),
      from: fc.nat(),
      added: tokens(1),
      completion: tokens(0),
    }),
    { maxLength: 12 },
  )
  .map((steps) => {
    const turns: TurnSketch[] = []
    for (const { action, from, added, completion } of steps) {
      const earlier = turns[from % Math.max(1, turns.length)]
      if (earlier === undefined || action === 'start') turns.push({ prompt: added, completion })
      else if (action === 'continue')
        turns.push({ prompt: [...earlier.prompt, ...earlier.completion, ...added], completion })
      else if (action === 'equal retry') turns.push({ ...earlier, retryCount: 1 })
      else turns.push({ prompt: earlier.prompt, completion, retryCount: action === 'retry' ? 1 : 0 })
    }
    return turns
  })
const optionSets: fc.Arbitrary<TrajectoryOptions> = fc.record(
  {
    promptLength: fc.integer({ min: 1, max: 8 }),
    responseLength: fc.integer({ min: 1, max: 8 }),
    select: fc.constantFrom('all', 'longest', 'last'),
    perTurn: fc.boolean(),
  },
  { requiredKeys: [] },
)

const startsWith = (full: number[], start: number[]) => start.every((token, index) => full[index] === token)
const getTokens = (turn: TurnSketch) => [...turn.prompt, ...turn.completion]

/**
 * Returns the original attempt of each retry: the latest with its prompt that has no continuation and no
 * earlier retry.
 */
function findOriginalAttempts(
  turns: TurnSketch[],
  isContinued: (index: number) => boolean,
): (number | undefined)[] {
  const taken: (number | undefined)[] = []
  for (const [index, turn] of turns.entries()) {
    const first = turns.findLastIndex(
      (other, i) =>
        i < index &&
        !other.retryCount &&
        `${other.prompt}` === `${turn.prompt}` &&
        !isContinued(i) &&
        !taken.includes(i),
    )
    taken.push(turn.retryCount && first >= 0 ? first : undefined)
  }
  return taken
}

/**
 * A naive implementation of the rules, without optimization.
 * @returns the rows' turns, as indexes
 */
function buildNaiveRows(turns: TurnSketch[]): number[][] {
  const parents: (number | undefined)[] = []
  const isContinued = (index: number) => parents.includes(index)
  turns.forEach((turn, index) => {
    const first = findOriginalAttempts(turns.slice(0, index + 1), isContinued)[index]
    if (turn.completion.length === 0) {
      parents.push(undefined)
      return
    }
    if (first !== undefined && turns[first]!.completion.length > 0) {
      parents.push(parents[first])
      return
    }
    const matching = turns
      .map((_, index) => index)
      .filter((index) => turns[index]!.completion.length > 0)
      .filter((i) => i < index && startsWith(turn.prompt, getTokens(turns[i]!)))
      .filter((index) => getTokens(turns[index]!).length <= turn.prompt.length)
    const depth = Math.max(...matching.map((index) => getTokens(turns[index]!).length))
    const deepest = matching.filter((index) => getTokens(turns[index]!).length === depth)
    const lost = findOriginalAttempts(turns.slice(0, index), isContinued)
    const delivered = deepest.filter((index) => !lost.includes(index))
    const candidates = delivered.length > 0 ? delivered : deepest
    parents.push(candidates.findLast((index) => !isContinued(index)) ?? candidates.at(-1))
  })
  const superseded = findOriginalAttempts(turns, isContinued)
  const isSuperseded = (index: number) => superseded.includes(index)
  const rows: number[][] = []
  const isInRow = (index: number) => turns[index]!.completion.length > 0 && !isSuperseded(index)
  turns.forEach((_, index) => {
    if (!isInRow(index) || parents.some((parent, i) => parent === index && isInRow(i))) return
    const row: number[] = []
    for (let at: number | undefined = index; at !== undefined; at = parents[at]) row.unshift(at)
    rows.push(row)
  })
  return rows
}

t.test('rows agree with a naive implementation of the rules', async () => {
  fc.assert(
    fc.property(sessions, (turns) => {
      const expected = buildNaiveRows(turns).map((row) => row.map((index) => `t${index}`))
      equal(getRows(turns).map(turnIds).map(String), expected.map(String))
    }),
    { numRuns: limitRuns(500) },
  )
})

t.test('for any cuts, a row contains recorded tokens and trains each turn at most once', async () => {
  fc.assert(
    fc.property(sessions, optionSets, (sketches, options) => {
      const turns = sketches.map(getTurn)
      const rows = [...getBuilder(turns).assembleRows(options, null)]
      const timesTrained = new Map<string, number>()
      for (const row of rows) {
        const trained = new Set<number>()
        for (const { index, start, end, trained: isTrained } of row.turns) {
          const turn = turns[index]!
          equal(row.response_ids.subarray(start, end), turn.completionTokenIds.subarray(0, end - start))
          if (!isTrained) continue
          timesTrained.set(turn.turnId, (timesTrained.get(turn.turnId) ?? 0) + 1)
          equal(row.response_logprobs.subarray(start, end), turn.completionLogprobs.subarray(0, end - start))
          for (let offset = start; offset < end; offset += 1) trained.add(offset)
        }
        const last = turns[row.turns.at(-1)!.index]!
        const all = [...last.promptTokenIds, ...last.completionTokenIds]
        const first = turns[row.turns[0]!.index]!.promptTokenIds
        equal(row.prompt_ids, first.subarray(first.length - row.prompt_ids.length))
        equal(
          row.response_ids,
          Int32Array.from(all.slice(first.length, first.length + row.response_ids.length)),
        )
        equal(
          row.response_mask,
          Uint8Array.from(row.response_ids, (_, index) => Number(trained.has(index))),
        )
        ensure(row.response_logprobs.every((logprob, index) => trained.has(index) || logprob === 0))
        ensure(row.prompt_ids.length === Math.min(first.length, options.promptLength ?? first.length))
        ensure(row.truncated === row.response_ids.length < all.length - first.length)
        ensure(row.prompt_truncated === row.prompt_ids.length < first.length)
      }
      ensure([...timesTrained.values()].every((times) => times === 1))
    }),
    { numRuns: limitRuns(500) },
  )
})

t.test('without cuts each turn in the rows is trained exactly once and completely', async () => {
  fc.assert(
    fc.property(sessions, fc.boolean(), (sketches, perTurn) => {
      const rows = getRows(sketches, { perTurn })
      const ones = rows.reduce((sum, row) => sum + row.response_mask.reduce((a, b) => a + b, 0), 0)
      const distinct = new Set(rows.flatMap((row) => row.turns.map((turn) => turn.index)))
      ensure(ones === [...distinct].reduce((sum, index) => sum + sketches[index]!.completion.length, 0))
    }),
    { numRuns: limitRuns(500) },
  )
})

t.test('each turn that was sampled and not superseded is in a row, and no other', async () => {
  fc.assert(
    fc.property(sessions, fc.nat(), fc.nat(), (recorded, lost, repeated) => {
      const sketches = [...recorded]
      // One request was forwarded again, because the node that served it crashed.
      const annotate = (position: number, name: string) => {
        const index = position % sketches.length
        if (index >= 0) sketches[index] = { ...sketches[index]!, annotations: `{"${name}":"X"}` }
      }
      annotate(lost, 'node_message')
      annotate(repeated, 'lost_message')
      const builder = getBuilder(sketches.map(getTurn))
      const rows = [...builder.assembleRows({}, null)]
      const inRows = new Set(rows.flatMap(turnIds))
      const { superseded, empty } = builder.countExcluded()
      ensure(inRows.size === sketches.length - superseded - empty)
      const excluded = builder.findSuperseded()
      for (const { turns } of rows)
        ensure(turns.every(({ turn_id: id, trained }) => !trained || !excluded.has(id)))
    }),
    { numRuns: limitRuns(500) },
  )
})

t.test('the rows of a selection are those of a session that has only the selected turns', async () => {
  const roles = fc.array(fc.constantFrom('main', 'side', 'compaction', 'subagent:a'), {
    minLength: 12,
    maxLength: 12,
  })
  const selections = fc.record({ lines: fc.constantFrom('all', 'main'), sideCalls: fc.boolean() })
  fc.assert(
    fc.property(sessions, roles, selections, (sketches, roles, selection) => {
      const turns = sketches.map((sketch, index) => getTurn({ ...sketch, ...withRole(roles[index]!) }, index))
      const isSelected = (role: string) =>
        selection.lines === 'main'
          ? role === 'main' || role === 'compaction'
          : role !== 'side' || selection.sideCalls
      const selected = turns.filter(({ index }) => isSelected(roles[index]!))
      const rows = [...getBuilder(turns, selection).assembleRows({}, null)]
      equal(
        rows.map((row) => JSON.stringify(toPlain(row))),
        [...getBuilder(selected, { sideCalls: true }).assembleRows({}, null)].map((row) =>
          JSON.stringify(toPlain(row)),
        ),
      )
      ensure(rows.every((row) => row.turns.every(({ index, agent_role }) => agent_role === roles[index])))
    }),
    { numRuns: limitRuns(500) },
  )
})

t.test('the interleaving of unrelated conversations changes no row', async () => {
  fc.assert(
    fc.property(sessions, sessions, (one, other) => {
      // Tokens of the second conversation are outside the first one's range.
      const shifted = other.map((turn) => ({
        ...turn,
        prompt: turn.prompt.map((token) => token + 10),
        completion: turn.completion.map((token) => token + 10),
      }))
      const count = Math.max(one.length, shifted.length)
      const interleaved = Array.from({ length: count }, (_, index) => [shifted[index], one[index]])
        .flat()
        .filter((turn) => turn !== undefined)
      const content = (sketches: TurnSketch[]) =>
        getRows(sketches)
          .map((row) => [row.prompt_ids, row.response_ids, row.response_mask].join('|'))
          .sort()
      equal(content([...one, ...shifted]), content(interleaved))
    }),
    { numRuns: limitRuns(300) },
  )
})

t.test('200 turns that grow to 100,000 tokens take well under a second', async (t) => {
  const turns = longSession(200, 100_000)
  const before = process.cpuUsage()
  const rows = [...getBuilder(turns).assembleRows({}, null)]
  const { user } = process.cpuUsage(before)
  t.equal(rows.length, 1)
  t.equal(rows[0]!.num_turns, 200)
  t.ok(user < 1_000_000, `took ${user / 1000} ms of processor time`)
})

function longSession(turnCount: number, tokenCount: number): RecordedTurn[] {
  const all = Int32Array.from({ length: tokenCount }, (_, index) => (index * 7919) % 150_000)
  const step = tokenCount / turnCount
  return Array.from({ length: turnCount }, (_, index) => ({
    ...getTurn({ prompt: [], completion: [] }, index),
    promptTokenIds: all.subarray(0, index * step + step / 2),
    completionTokenIds: all.subarray(index * step + step / 2, (index + 1) * step),
    completionLogprobs: new Float64Array(step / 2).fill(-0.5),
  }))
}

function equal(actual: Iterable<unknown>, expected: Iterable<unknown>): void {
  const [a, b] = [[...actual].join(), [...expected].join()]
  if (a !== b) throw new Error(`${a} is not ${b}`)
}

function ensure(holds: boolean): void {
  if (!holds) throw new Error('an invariant is broken')
}

for (const [how, lost, retry] of [
  ['a retry repeats', {}, { retryCount: 1 }],
  [
    'a crashed node did not deliver',
    { annotations: '{"node_message":"X"}' },
    { annotations: '{"lost_message":"X"}' },
  ],
] as const)
  t.test(`a completion that ${how} is not trained if the equal retry is continued twice`, async (t) => {
    const sketches = [
      { prompt: [1, 2], completion: [3, 4], ...lost },
      { prompt: [1, 2], completion: [3, 4], ...retry },
      { prompt: [1, 2, 3, 4, 5], completion: [6] },
      { prompt: [1, 2, 3, 4, 7], completion: [8] },
    ]
    const builder = getBuilder(sketches.map(getTurn))
    t.equal(builder.countExcluded().superseded, 1)
    const rows = [...builder.assembleRows({}, null)]
    t.same(rows.map(turnIds), [
      ['t1', 't2'],
      ['t1', 't3'],
    ])
    t.same(
      rows.map(({ response_mask: mask }) => [...mask]),
      [
        [1, 1, 0, 1],
        [0, 0, 0, 1],
      ],
    )
  })

t.test('a completion whose second retry is equal, after a failed one, is not trained', async (t) => {
  const request = { lastMessage: addMessageTexts(['{"role":"user","content":"the task"}']) }
  const rows = getRows([
    { prompt: [1], completion: [2], ...request },
    { ...NOT_COMPLETED, status: 'failed', ...request, retryCount: 1 },
    { prompt: [1], completion: [2], ...request, retryCount: 2 },
    { prompt: [1, 2, 3], completion: [4] },
    { prompt: [1, 2, 5], completion: [6] },
  ])
  t.same(rows.map(turnIds), [
    ['t2', 't3'],
    ['t2', 't4'],
  ])
})

t.test('a prompt that replaces the end of a lost completion continues its equal retry', async (t) => {
  const continued = (added: number) => ({
    prompt: [1, 2, added],
    completion: [9],
    annotations: JSON.stringify({ prompt: { from: 't0', replaced_tokens: 1 } }),
  })
  const rows = getRows([
    { prompt: [1], completion: [2, 3] },
    { prompt: [1], completion: [2, 3], retryCount: 1 },
    continued(4),
    continued(5),
  ])
  t.same(rows.map(turnIds), [
    ['t1', 't2'],
    ['t1', 't3'],
  ])
})

t.test("a turn of another model starts a row, because a row trains one model's tokens", async (t) => {
  const params = (model: string) => JSON.stringify({ model })
  const sketches = [
    { prompt: [1], completion: [2], params: params('a') },
    { prompt: [1, 2, 3], completion: [4], params: params('b') },
    { prompt: [1, 2, 3, 4, 5], completion: [6], params: params('b') },
    { prompt: [1, 2, 3, 4, 5, 6, 7], completion: [8], params: params('a') },
  ]
  const rows = getRows(sketches)
  t.same(
    rows.map(({ turns }) => turns.map(({ turn_id }) => turn_id)),
    [
      ['t1', 't2'],
      ['t0', 't3'],
    ],
  )
  t.same(
    rows.map(({ prompt_ids, response_ids, response_mask }) =>
      [prompt_ids, response_ids, response_mask].map((list) => [...list]),
    ),
    [
      [
        [1, 2, 3],
        [4, 5, 6],
        [1, 0, 1],
      ],
      [[1], [2, 3, 4, 5, 6, 7, 8], [1, 0, 0, 0, 0, 0, 1]],
    ],
    "the other model's completion is part of the prompt",
  )

  const annotations = JSON.stringify({ policy: 'a' })
  const named = getRows(sketches.map((sketch) => ({ ...sketch, annotations })))
  t.equal(named.length, 1, 'where the session names the model, rows are requested by that name')
})

t.test('only the data that the rows of a turn need stays in memory', async (t) => {
  const builder = new TrajectoryBuilder()
  const addCompleteRecord = () => {
    const record = getTurn({ prompt: [1], completion: [2] }, 0)
    builder.add(record)
    return new WeakRef(record)
  }
  const record = addCompleteRecord()
  await nextIteration()
  setFlagsFromString('--expose-gc')
  runInNewContext('gc')()
  t.equal(record.deref(), undefined)
  t.equal([...builder.assembleRows({}, null)].length, 1)
})
