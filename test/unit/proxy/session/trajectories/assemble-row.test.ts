import t from 'tap'
import type { RowImage } from '../../../../../src/protocol/schema/row.ts'
import {
  assemble,
  assignTraining,
  createLayout,
  type RowPlan,
  type TrajectoryOptions,
} from '../../../../../src/proxy/session/trajectories/assemble-row.ts'
import {
  type TrainableTurn,
  type TurnNode,
  TurnTree,
} from '../../../../../src/proxy/session/trajectories/turn-tree.ts'

type TurnSpec = Partial<TrainableTurn> & {
  prompt: readonly number[]
  completion: readonly number[]
  agentRole?: string
}

/** Builds the turns of a session, in order. Each token has its own logprob: -(100 × index + position). */
function buildTree(specs: readonly TurnSpec[]): TurnNode[] {
  const tree = new TurnTree()
  return specs.map(({ prompt, completion, agentRole = 'main', ...fields }, index) => {
    const turn: TrainableTurn = {
      ...{ turnId: `t${index}`, index, status: 'completed', retryCount: 0, exact: true, inexactReason: null },
      ...{ finishReason: 'stop', weightVersionStart: null, weightVersionEnd: null },
      completionLogprobs: Float64Array.from(completion, (_, i) => -(100 * index + i)),
      promptTokenIds: Int32Array.from(prompt),
      completionTokenIds: Int32Array.from(completion),
      ...fields,
    }
    tree.add(turn, tree.read(turn), agentRole as never)
    return tree.find(turn.turnId)!
  })
}

/** Returns a row of these turns, each the parent of the next. */
function getPlan(chain: readonly TurnNode[], images: readonly RowImage[] = []): RowPlan {
  const [first, last] = [chain[0]!, chain.at(-1)!]
  const base = first.promptLength
  return { chain, last, base, responseLength: last.promptLength + last.completionLength - base, images }
}

const NO_MARKS = { labels: [], notes: [], turns: {} } as never

function assembleRow(plan: RowPlan, options: TrajectoryOptions = {}, fields: object = {}) {
  const trainedBy = assignTraining([plan], options, () => true)
  return assemble(plan, options, {
    trainedBy,
    reward: null,
    marks: NO_MARKS,
    policyOf: () => null,
    ...fields,
  })
}

/** Creates two turns: prompt 1 2 3, completion 4 5; then 6 7 from the environment, and completion 8 9 10. */
const createChain = () =>
  buildTree([
    { prompt: [1, 2, 3], completion: [4, 5] },
    { prompt: [1, 2, 3, 4, 5, 6, 7], completion: [8, 9, 10], finishReason: 'length' },
  ])

t.test('a row has its tokens, a mask over the sampled ones, and their logprobs', async (t) => {
  const row = assembleRow(getPlan(createChain()))
  t.strictSame([...row.prompt_ids], [1, 2, 3])
  t.strictSame([...row.response_ids], [4, 5, 6, 7, 8, 9, 10])
  t.strictSame([...row.response_mask], [1, 1, 0, 0, 1, 1, 1])
  t.strictSame([...row.response_logprobs], [-0, -1, 0, 0, -100, -101, -102])
  t.strictSame(
    row.turns.map(({ turn_id: id, start, end, trained }) => [id, start, end, trained]),
    [
      ['t0', 0, 2, true],
      ['t1', 4, 7, true],
    ],
  )
  t.equal(row.num_turns, 2)
  t.equal(row.finish_reason, 'length', 'of the last turn')
  t.notOk(row.truncated)
  t.notOk(row.prompt_truncated)
  t.notOk('images' in row)
})

t.test('a row that ends where the engine truncated the model is truncated', async (t) => {
  for (const finishReason of ['repetition', 'insufficient_system_resource']) {
    const chain = buildTree([{ prompt: [1], completion: [2], finishReason }])
    t.ok(assembleRow(getPlan(chain)).truncated, finishReason)
    const continued = buildTree([
      { prompt: [1], completion: [2], finishReason },
      { prompt: [1, 2, 3], completion: [4] },
    ])
    t.notOk(assembleRow(getPlan(continued)).truncated, 'but not one whose later turns ended by themselves')
  }
})

t.test('the response is truncated to the requested length', async (t) => {
  for (const [responseLength, mask, spans] of [
    [
      1,
      [1],
      [
        [0, 1],
        [1, 1],
      ],
    ],
    [
      2,
      [1, 1],
      [
        [0, 2],
        [2, 2],
      ],
    ],
    [
      4,
      [1, 1, 0, 0],
      [
        [0, 2],
        [4, 4],
      ],
    ],
    [
      5,
      [1, 1, 0, 0, 1],
      [
        [0, 2],
        [4, 5],
      ],
    ],
    [
      7,
      [1, 1, 0, 0, 1, 1, 1],
      [
        [0, 2],
        [4, 7],
      ],
    ],
    [
      8,
      [1, 1, 0, 0, 1, 1, 1],
      [
        [0, 2],
        [4, 7],
      ],
    ],
  ] as const) {
    const row = assembleRow(getPlan(createChain()), { responseLength })
    t.strictSame([...row.response_mask], mask, `${responseLength}`)
    t.equal(row.response_ids.length, mask.length)
    t.equal(row.response_logprobs.length, mask.length)
    t.strictSame(
      row.turns.map(({ start, end }) => [start, end]),
      spans,
    )
    t.equal(row.truncated, responseLength < 7)
    t.strictSame(
      [...row.response_logprobs].slice(4),
      [-100, -101, -102].slice(0, Math.max(0, mask.length - 4)),
    )
  }
})

t.test('the prompt is truncated to its last tokens', async (t) => {
  for (const [promptLength, prompt] of [
    [1, [3]],
    [2, [2, 3]],
    [3, [1, 2, 3]],
    [4, [1, 2, 3]],
  ] as const) {
    const row = assembleRow(getPlan(createChain()), { promptLength })
    t.strictSame([...row.prompt_ids], prompt)
    t.equal(row.prompt_truncated, promptLength < 3)
  }
})

const image = (index: number, tokens: number): RowImage => ({
  ...{ sha256: `image at ${index}`, media_type: 'image/png', width: 1, height: 1 },
  ...{ at: index, tokens },
})

t.test(
  'an image is never divided: the cut moves to its edge, and the remaining images are shifted',
  async (t) => {
    const plan = getPlan(createChain(), [image(1, 2), image(5, 2)])
    const full = assembleRow(plan)
    t.strictSame(
      full.images!.map(({ at: index }) => index),
      [1, 5],
    )
    const cut = assembleRow(plan, { responseLength: 3 })
    t.strictSame([...cut.response_ids], [4, 5], 'it would end within the second image')
    t.strictSame(
      cut.images!.map(({ at: index }) => index),
      [1],
    )
    const late = assembleRow(plan, { promptLength: 1 })
    t.strictSame([...late.prompt_ids], [], 'it would begin within the first image')
    t.strictSame(
      late.images!.map(({ at: index }) => index),
      [2],
      'counted from the first token of the row',
    )
  },
)

t.test('a turn that several rows contain is in the mask of one', async (t) => {
  const [first, second] = createChain() as [TurnNode, TurnNode]
  const [short, long] = [getPlan([first]), getPlan([first, second])]
  const trainedBy = assignTraining([short, long], {}, () => true)
  t.equal(trainedBy.get(first), short, 'among rows with equal parts, the first one trains it')
  t.equal(trainedBy.get(second), long)
  const row = assemble(long, {}, { trainedBy, reward: null, marks: NO_MARKS, policyOf: () => null })
  t.strictSame([...row.response_mask], [0, 0, 0, 0, 1, 1, 1])
  t.strictSame(
    row.turns.map(({ trained }) => trained),
    [false, true],
  )
  t.equal(
    assignTraining([long], {}, (turn) => turn === second).has(first),
    false,
    'nor one that is not requested',
  )
  const cut = assignTraining([getPlan([first, second])], { responseLength: 4 }, () => true)
  t.notOk(cut.has(second), 'a row without tokens of a turn does not train it')
  const [deep] = [getPlan([first, second])]
  const better = assignTraining([{ ...deep, responseLength: 1 }, deep], { responseLength: 7 }, () => true)
  t.equal(better.get(first), deep, 'the row that has more of it')
})

/** The engine requests of a turn: the number of tokens and the weights of each. */
const getRequests = (...parts: readonly (readonly [tokens: number, version: string | null])[]) => {
  let end = 0
  return parts.map(([tokens, version], index) => {
    const start = end
    end += tokens
    const reason = index === parts.length - 1 ? 'stop' : 'abort'
    return { start, end, engine: 'e', weight_version: version, request_id: `r${index}`, end_reason: reason }
  })
}

t.test('engine requests of a turn have the offsets of the row, up to its truncation', async (t) => {
  const chain = buildTree([
    { prompt: [1, 2, 3], completion: [4, 5] },
    {
      ...{ prompt: [1, 2, 3, 4, 5, 6, 7], completion: [8, 9, 10] },
      engineRequests: getRequests([2, '1'], [0, '2'], [1, '3']),
    },
  ])
  const getSpans = (options: TrajectoryOptions) =>
    assembleRow(getPlan(chain), options).turns.map(({ engine_requests: requests }) =>
      requests?.map(({ start, end }) => [start, end]),
    )
  t.strictSame(getSpans({}), [
    undefined,
    [
      [4, 6],
      [6, 6],
      [6, 7],
    ],
  ])
  t.strictSame(getSpans({ responseLength: 5 }), [
    undefined,
    [
      [4, 5],
      [5, 5],
      [5, 5],
    ],
  ])
  t.strictSame(getSpans({ responseLength: 1 }), [
    undefined,
    [
      [1, 1],
      [1, 1],
      [1, 1],
    ],
  ])
  t.match(assembleRow(getPlan(chain)).turns[1]!.engine_requests![2], {
    ...{ engine: 'e', weight_version: '3', request_id: 'r2', end_reason: 'stop' },
  })
})

t.test('the range of weight versions contains those of engine requests with tokens in the row', async (t) => {
  const getRange = (requests: ReturnType<typeof getRequests>, options = {}) => {
    const versions = { weightVersionStart: '5', weightVersionEnd: '5' }
    const turn = { prompt: [1], completion: [2, 3, 4, 5], ...versions, engineRequests: requests }
    const row = assembleRow(getPlan(buildTree([turn])), options)
    return [row.weight_version_min, row.weight_version_max, row.unversioned_turns]
  }
  t.strictSame(getRange(getRequests([1, '5'], [2, '4'], [1, '5'])), ['4', '5', 0])
  t.strictSame(getRange(getRequests([1, '5'], [2, '4'], [1, '5']), { responseLength: 1 }), ['5', '5', 0])
  t.strictSame(getRange(getRequests([1, '5'], [0, '4'], [3, '5'])), ['5', '5', 0], 'one without tokens')
  t.strictSame(getRange(getRequests([1, '5'], [2, null], [1, '5'])), [null, null, 1], 'tokens of any age')
})

t.test('tokens of older or unknown weights than the newest of the row are masked on request', async (t) => {
  const getMasks = (
    requests: ReturnType<typeof getRequests>,
    [start, end]: [string | null, string | null],
  ) => {
    const chain = buildTree([
      { prompt: [1], completion: [2, 3], weightVersionStart: start, weightVersionEnd: end },
      { prompt: [1, 2, 3, 9], completion: [4, 5, 6], engineRequests: requests },
    ])
    const row = assembleRow(getPlan(chain), { maskStaleTokens: true })
    t.ok(row.response_logprobs.every((logprob, index) => row.response_mask[index] === 1 || logprob === 0))
    t.strictSame([...assembleRow(getPlan(chain)).response_mask], [1, 1, 0, 1, 1, 1], 'only on request')
    return [...row.response_mask]
  }
  t.strictSame(getMasks(getRequests([1, '9'], [2, '10']), ['9', '9']), [0, 0, 0, 0, 1, 1])
  t.strictSame(getMasks(getRequests([1, '9'], [2, '8']), ['9', '9']), [1, 1, 0, 1, 0, 0], 'in any order')
  t.strictSame(getMasks(getRequests([3, '9']), ['8', '9']), [0, 0, 0, 1, 1, 1], 'changed during the turn')
  t.strictSame(getMasks(getRequests([1, null], [2, '9']), [null, '9']), [0, 0, 0, 0, 1, 1], 'unknown')
  t.strictSame(getMasks(getRequests([3, null]), [null, null]), [1, 1, 0, 1, 1, 1], 'all unknown')
  t.strictSame(getMasks(getRequests([1, 'b'], [2, 'a']), ['b', 'b']), [0, 0, 0, 0, 1, 1], 'the last name')
})

t.test('the range of weight versions is that of the turns with tokens in the row', async (t) => {
  const getRange = (versions: readonly (readonly [string | null, string | null])[], options = {}) => {
    const specs = versions.map(([start, end], index) => ({
      prompt: Array.from({ length: 1 + 2 * index }, (_, index) => index),
      completion: [2 * index + 1],
      ...{ weightVersionStart: start, weightVersionEnd: end },
    }))
    const row = assembleRow(getPlan(buildTree(specs)), options)
    return [row.weight_version_min, row.weight_version_max, row.unversioned_turns]
  }
  t.strictSame(
    getRange([
      ['9', '10'],
      ['10', '10'],
    ]),
    ['9', '10', 0],
    'numbers are compared as numbers',
  )
  t.strictSame(
    getRange([
      ['10', '10'],
      ['9', '9'],
    ]),
    ['9', '10', 0],
    'in any order',
  )
  t.strictSame(
    getRange([
      ['b', 'a'],
      ['a', 'c'],
    ]),
    ['b', 'c', 0],
    'names in the order of their appearance',
  )
  t.strictSame(
    getRange([
      ['2', '3'],
      ['x', '1'],
    ]),
    ['2', '1', 0],
    'one name among numbers makes all of them names',
  )
  t.strictSame(
    getRange([
      ['', '1'],
      ['0', '0'],
    ]),
    ['', '0', 0],
    'an empty name is not a number',
  )
  t.strictSame(
    getRange([
      ['1', null],
      ['2', '2'],
    ]),
    [null, null, 1],
    'unknown at its end',
  )
  t.strictSame(
    getRange([
      [null, '1'],
      [null, null],
    ]),
    [null, null, 2],
    'or at its start',
  )
  t.strictSame(
    getRange(
      [
        ['1', '1'],
        ['5', '5'],
      ],
      { responseLength: 2 },
    ),
    ['1', '1', 0],
    'of the turns with tokens',
  )
  t.strictSame(
    getRange(
      [
        ['1', '1'],
        [null, null],
      ],
      { responseLength: 2 },
    ),
    ['1', '1', 0],
  )
})

t.test('the agent role is that of the last turn that is not a compaction', async (t) => {
  const getAgentRole = (...agentRoles: string[]) => {
    const specs = agentRoles.map((agentRole, index) => ({
      prompt: Array.from({ length: 1 + 2 * index }, (_, index) => index),
      completion: [2 * index + 1],
      agentRole,
    }))
    return assembleRow(getPlan(buildTree(specs))).agent_role
  }
  t.equal(getAgentRole('main', 'subagent:1'), 'subagent:1')
  t.equal(getAgentRole('main', 'compaction'), 'main')
  t.equal(getAgentRole('compaction'), 'compaction')
})

t.test('rewards and labels are those of the session, of the agent role, and of each turn', async (t) => {
  const reward = { reward: 0.5, components: { style: 1 }, lines: { 'subagent:1': 2 }, turns: { 1: -1 } }
  const marks = { labels: ['good'], notes: [], turns: { 0: { labels: ['odd'], notes: [] } } }
  const row = assembleRow(getPlan(createChain()), {}, { reward, marks })
  t.match(row, { reward: 0.5, reward_components: { style: 1 }, labels: ['good'] })
  t.strictSame(
    row.turns.map((turn) => turn.reward),
    [null, -1],
  )
  t.strictSame(
    row.turns.map((turn) => turn.labels),
    [['odd'], []],
  )
  const [turn] = buildTree([{ prompt: [1], completion: [2], agentRole: 'subagent:1' }])
  t.equal(assembleRow(getPlan([turn!]), {}, { reward }).reward, 2)
  const unrewarded = assembleRow(getPlan(createChain()))
  t.strictSame([unrewarded.reward, unrewarded.reward_components], [null, {}])
})

t.test('the policy of a row is the common one of its turns', async (t) => {
  const getPolicy = (names: readonly (string | null)[]) => ({
    policyOf: ({ index }: TurnNode) => names[index]!,
  })
  t.equal(assembleRow(getPlan(createChain()), {}, getPolicy(['a', 'a'])).policy, 'a')
  t.equal(assembleRow(getPlan(createChain()), {}, getPolicy(['a', 'b'])).policy, null)
  t.equal(assembleRow(getPlan(createChain()), {}, getPolicy([null, 'b'])).policy, null)
  t.strictSame(
    assembleRow(getPlan(createChain()), {}, getPolicy(['a', 'b'])).turns.map(({ policy }) => policy),
    ['a', 'b'],
  )
})

t.test('a turn without exact ids makes a row that is marked inexact', async (t) => {
  const specs = [{ prompt: [1], completion: [2], exact: false, inexactReason: 'no_ids' }]
  const row = assembleRow(getPlan(buildTree(specs), [image(0, 1)]))
  t.match(row, { exact: false, inexact_reason: 'no_ids' })
  t.notOk('images' in row)
})

t.test('the layout of a row has its preceding turns, and the row that trains each', async (t) => {
  const [first, second] = createChain() as [TurnNode, TurnNode]
  const plan = getPlan([second])
  const layout = createLayout(plan, assembleRow(plan, { promptLength: 2 }))
  t.strictSame(
    layout.turns.map(({ turnId, start, end }) => [turnId, start, end]),
    [
      ['t0', 0, 0],
      ['t1', 0, 3],
    ],
  )
  t.match(layout, { first: 5, base: 7, responseLength: 3 })
  const [short, long] = [getPlan([first]), getPlan([first, second])]
  const trainedBy = assignTraining([short, long], {}, () => true)
  const row = assemble(long, {}, { trainedBy, reward: null, marks: NO_MARKS, policyOf: () => null })
  t.strictSame(
    createLayout(long, row).turns.map(({ start, end }) => [start, end]),
    [
      [0, 0],
      [4, 7],
    ],
    'a turn that another row trains is not in the mask',
  )
})
