import t from 'tap'
import { type TrainableTurn, TurnTree } from '../../../../../src/proxy/session/trajectories/turn-tree.ts'

type TurnSpec = Partial<TrainableTurn> & {
  id: string
  prompt: readonly number[]
  completion: readonly number[]
  agentRole?: string
  repeats?: string
}

function addTurn(
  tree: TurnTree,
  { id, prompt, completion, agentRole = 'main', repeats, ...fields }: TurnSpec,
  index = 0,
) {
  const turn: TrainableTurn = {
    ...{ turnId: id, index, status: 'completed', retryCount: 0, exact: true, inexactReason: null },
    ...{ finishReason: 'stop', weightVersionStart: 'v1', weightVersionEnd: 'v2' },
    completionLogprobs: Float64Array.from(completion, () => -1),
    promptTokenIds: Int32Array.from(prompt),
    completionTokenIds: Int32Array.from(completion),
    ...fields,
  }
  tree.add(turn, tree.read(turn), agentRole as never, repeats)
}

function buildTree(...specs: readonly TurnSpec[]): TurnTree {
  const tree = new TurnTree()
  for (const [index, spec] of specs.entries()) addTurn(tree, spec, index)
  return tree
}

const getParent = (tree: TurnTree, id: string) => tree.find(id)?.parent?.turnId
const getLeaves = (tree: TurnTree, ...omitted: string[]) =>
  tree.listLeaves(new Set(omitted)).map(({ turnId }) => turnId)

t.test('a parent is the deepest turn whose prompt and completion begin the prompt', async (t) => {
  const tree = buildTree(
    { id: 'a', prompt: [1], completion: [2] },
    { id: 'b', prompt: [1, 2, 3], completion: [4] },
    { id: 'c', prompt: [1, 2, 3, 4, 5], completion: [6] },
    { id: 'd', prompt: [1, 2, 9], completion: [6] },
    { id: 'e', prompt: [1], completion: [7] },
    { id: 'f', prompt: [1, 3], completion: [2] },
    { id: 'g', prompt: [1, 2], completion: [8] },
  )
  t.equal(getParent(tree, 'a'), undefined)
  t.equal(getParent(tree, 'b'), 'a')
  t.equal(getParent(tree, 'c'), 'b')
  t.equal(getParent(tree, 'd'), 'a', 'one that leaves the conversation earlier')
  t.equal(getParent(tree, 'e'), undefined, 'a prompt alone is not a turn')
  t.equal(getParent(tree, 'f'), undefined, 'another completion')
  t.equal(getParent(tree, 'g'), 'a', 'no new tokens are needed')
  t.strictSame(getLeaves(tree), ['c', 'd', 'e', 'f', 'g'])
  t.ok(tree.isContinued('a'))
  t.notOk(tree.isContinued('c'))
  t.notOk(tree.isContinued('unknown'))
  t.ok(tree.has('a'))
  t.notOk(tree.has('unknown'))
  t.equal(tree.find('unknown'), undefined)
})

t.test('an omitted turn makes its parent a leaf', async (t) => {
  const tree = buildTree(
    { id: 'a', prompt: [1], completion: [2] },
    { id: 'b', prompt: [1, 2], completion: [3] },
    { id: 'c', prompt: [1, 2], completion: [4] },
  )
  t.strictSame(getLeaves(tree, 'b'), ['c'])
  t.strictSame(getLeaves(tree, 'b', 'c'), ['a'])
  t.strictSame(getLeaves(tree, 'a'), ['b', 'c'])
})

t.test('a prompt that replaces the end of a turn continues that turn, and no other', async (t) => {
  const replacedEnd = { turnId: 'a', tokens: 1 }
  const listParents = (...specs: TurnSpec[]) => {
    const tree = buildTree({ id: 'a', prompt: [1], completion: [2, 8] }, ...specs)
    return specs.map(({ id }) => [tree.find(id)?.parent?.turnId, tree.find(id)?.sharedLength])
  }
  const next = { id: 'b', prompt: [1, 2, 9], completion: [3] }
  t.strictSame(listParents(next), [[undefined, 0]], 'unless it is recorded, the tokens decide')
  t.strictSame(listParents({ ...next, replacedEnd }), [['a', 2]])
  t.strictSame(listParents({ ...next, prompt: [1, 3, 9], replacedEnd }), [[undefined, 0]], 'other tokens')
  t.strictSame(listParents({ ...next, replacedEnd: { turnId: 'x', tokens: 1 } }), [[undefined, 0]])
  const sample = { id: 'b', prompt: [1], completion: [2, 9] }
  t.strictSame(
    listParents(sample, { ...next, id: 'c', replacedEnd }),
    [
      [undefined, 0],
      ['b', 3],
    ],
    'a turn whose tokens are all in the prompt has precedence',
  )
  const lost = { ...next, id: 'c', repeats: 'b', replacedEnd }
  t.strictSame(listParents({ ...next, replacedEnd }, lost)[1], ['a', 2], 'a retry')
  const tree = buildTree(
    { id: 'a', prompt: [1], completion: [2, 8], chosenModel: 'x' },
    { ...next, chosenModel: 'y', replacedEnd },
  )
  t.equal(getParent(tree, 'b'), undefined, 'another model')
})

t.test('equal completions are continued once each, the latest first', async (t) => {
  const tree = buildTree(
    { id: 'a', prompt: [1], completion: [2] },
    { id: 'b', prompt: [1], completion: [2] },
    { id: 'c', prompt: [1, 2, 3], completion: [4] },
    { id: 'd', prompt: [1, 2, 5], completion: [4] },
    { id: 'e', prompt: [1, 2, 6], completion: [4] },
  )
  t.equal(getParent(tree, 'c'), 'b')
  t.equal(getParent(tree, 'd'), 'a')
  t.equal(getParent(tree, 'e'), 'b', 'where each has a child, the latest of all')
})

t.test('a retry has the parent of the repeated turn, if its prompt is the same', async (t) => {
  const turns: TurnSpec[] = [
    { id: 'a', prompt: [1], completion: [2] },
    { id: 'b', prompt: [1], completion: [2] },
    { id: 'c', prompt: [1, 2, 3], completion: [4] },
  ]
  const second = { id: 'd', prompt: [1, 2, 3], completion: [5] }
  t.equal(getParent(buildTree(...turns, second), 'd'), 'a', 'a completion of its own')
  t.equal(getParent(buildTree(...turns, { ...second, repeats: 'c' }), 'd'), 'b')
  const other = { ...second, prompt: [1, 2, 9], repeats: 'c' }
  t.equal(getParent(buildTree(...turns, other), 'd'), 'a', 'a template may render the time')
  t.equal(getParent(buildTree(...turns, { ...second, repeats: 'unknown' }), 'd'), 'a')
  const first = { id: 'e', prompt: [7], completion: [8] }
  const repeated = buildTree(first, { ...first, id: 'f', completion: [9], repeats: 'e' })
  t.equal(getParent(repeated, 'f'), undefined)
})

t.test('a turn continues none of another model that its agent requested', async (t) => {
  const findParentWith = (before: string | null | undefined, now: string | null | undefined) =>
    getParent(
      buildTree(
        { id: 'a', prompt: [1], completion: [2], chosenModel: before },
        { id: 'b', prompt: [1, 2], completion: [3], chosenModel: now },
      ),
      'b',
    )
  t.equal(findParentWith('m', 'm'), 'a')
  t.equal(findParentWith(null, null), 'a')
  t.equal(findParentWith('m', 'n'), undefined)
  t.equal(findParentWith(null, 'n'), undefined)
  t.equal(findParentWith(undefined, 'n'), 'a', 'the policy of the session has decided')
  t.equal(findParentWith('m', undefined), 'a')
  const tree = buildTree(
    { id: 'a', prompt: [1], completion: [2], chosenModel: 'm' },
    { id: 'b', prompt: [1, 2], completion: [3], chosenModel: 'n' },
    { id: 'c', prompt: [1, 2, 3], completion: [4], chosenModel: 'm' },
  )
  t.equal(getParent(tree, 'c'), 'a', 'the deepest of its own model')
})

t.test('a turn without exact ids continues no turn, and no turn continues it', async (t) => {
  const tree = buildTree(
    { id: 'a', prompt: [1], completion: [2] },
    { id: 'b', prompt: [1, 2], completion: [3], exact: false, inexactReason: 'no_ids' },
    { id: 'c', prompt: [1, 2, 3], completion: [4] },
  )
  t.equal(getParent(tree, 'b'), undefined)
  t.equal(getParent(tree, 'c'), 'a')
  t.match(tree.find('b'), { promptLength: 0, completionLength: 0, exact: false, inexactReason: 'no_ids' })
  t.strictSame(getLeaves(tree), ['b', 'c'])
})

t.test('a node has the fields of its turn, and the lengths of its ids', async (t) => {
  const logprobs = Float64Array.of(-0.5, -0.25)
  const tree = new TurnTree()
  const turn = { id: 'a', prompt: [1, 2, 3], completion: [4, 5], agentRole: 'subagent:1', retryCount: 2 }
  addTurn(tree, { ...turn, completionLogprobs: logprobs, finishReason: 'length', chosenModel: 'm' }, 7)
  t.match(tree.find('a'), {
    ...{ turnId: 'a', index: 7, status: 'completed', retryCount: 2, line: 'subagent:1', chosenModel: 'm' },
    ...{ finishReason: 'length', weightVersionStart: 'v1', weightVersionEnd: 'v2', inexactReason: null },
    ...{ promptLength: 3, completionLength: 2, hasChildren: false, parent: undefined },
  })
  t.equal(tree.find('a')!.completionLogprobs, logprobs)
  t.strictSame([...tree.find('a')!.tokens.read(5)], [1, 2, 3, 4, 5])
  t.strictSame([...tree.find('a')!.prompt.read(3)], [1, 2, 3])
})

t.test('ids may be given as a difference from an earlier turn', async (t) => {
  const tree = buildTree({ id: 'a', prompt: [1, 2], completion: [3, 4] })
  const step = (base: string | null, shared: number, rest: readonly number[]) => {
    const turn = { turnId: 'b', completionTokenIds: Int32Array.of(9) }
    return tree.read({ ...turn, promptStep: { base, shared, rest: Int32Array.from(rest) } })
  }
  t.strictSame([...step('a', 4, [5]).tokens.read(6)], [1, 2, 3, 4, 5, 9])
  t.match(step('a', 4, [5]), { promptLength: 5, length: 6 })
  t.strictSame([...step('a', 1, [7]).prompt.read(2)], [1, 7], 'a part of the earlier one')
  t.strictSame([...step(null, 0, [6]).prompt.read(1)], [6])
  t.throws(() => step('unknown', 1, []), { message: /unknown, the base of another one, was not read/ })
})
