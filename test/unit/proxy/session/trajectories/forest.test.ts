/**
 * The forest of rows: the parts that it shares, those that it must not share, and that it expands to the
 * rows.
 */
import { deepStrictEqual } from 'node:assert/strict'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import fc from 'fast-check'
import t from 'tap'
import { type CompletionTokens, Forest } from '../../../../../src/proxy/session/trajectories/forest.ts'
import {
  type Trajectory,
  TrajectoryBuilder,
} from '../../../../../src/proxy/session/trajectories/trajectories.ts'
import { createTurnStep } from '../../../../helpers/turn-step.ts'
import { unpackForest } from '../../../../helpers/unpack-forest.ts'

interface PlannedTurn {
  /** The index of the earlier turn that the turn continues; the last index: none. */
  parent: number
  bridge: readonly number[]
  completion: readonly number[]
  isExact: boolean
}

/** Few different tokens, so that prompts share prefixes, and completions are equal. */
const tokens = fc.array(fc.nat(1), { minLength: 1, maxLength: 4 })
const session: fc.Arbitrary<PlannedTurn[]> = fc.array(
  fc.record({
    parent: fc.nat(20),
    bridge: tokens,
    completion: tokens,
    isExact: fc.boolean().map((isNot) => !isNot),
  }),
  { maxLength: 7 },
)

function getRows(planned: readonly PlannedTurn[]): Trajectory[] {
  const builder = new TrajectoryBuilder()
  const turns: number[][] = []
  for (const [index, { parent, bridge, completion, isExact }] of planned.entries()) {
    const prompt = [...(turns[(parent % (index + 1)) - 1] ?? []), ...bridge]
    turns.push([...prompt, ...completion])
    const step = createTurnStep(index, prompt, completion)
    const completionLogprobs = Float64Array.from(completion, (_, i) => -index - i / 8)
    builder.add({ ...step, completionLogprobs, exact: isExact, inexactReason: isExact ? null : 'no ids' })
  }
  return [...builder.assembleRows({}, { reward: 1, components: {} })]
}

function getForest(sessions: readonly (readonly [sessionId: string, rows: readonly Trajectory[]])[]) {
  const forest = new Forest()
  for (const [sessionId, rows] of sessions) for (const row of rows) forest.add(sessionId, row)
  const { nodes, rows } = forest.createLayout()
  return { nodes, rows: [...rows] }
}

/** Arrays as lists, which are equal by their numbers, in any memory. */
const toPlain = (row: object) =>
  Object.fromEntries(
    Object.entries(row).map(([name, value]) => [
      name,
      ArrayBuffer.isView(value) ? [...(value as Int32Array)] : value,
    ]),
  )

t.test('an expanded forest equals the rows', async (t) => {
  let shared = 0
  await fc.assert(
    fc.property(fc.array(session, { minLength: 1, maxLength: 3 }), (planned) => {
      const sessions = planned.map((turns, index) => [`s${index}`, getRows(turns)] as const)
      const forest = getForest(sessions)
      const expected = sessions.flatMap(([session_id, rows]) => rows.map((row) => ({ session_id, ...row })))
      deepStrictEqual(unpackForest(forest).map(toPlain), expected.map(toPlain))
      for (const [index, { parent, ids }] of forest.nodes.entries()) {
        if (!(parent === null || parent < index) || ids.length === 0) throw new Error(`node ${index}`)
      }
      const trained = forest.nodes.filter(
        (node): node is CompletionTokens => 'turn' in node && node.turn.trained,
      )
      const trainedTokens = trained.reduce((sum, { ids }) => sum + ids.length, 0)
      const masks = expected.flatMap(({ response_mask: mask }) => [...mask])
      deepStrictEqual(trainedTokens, masks.filter((bit) => bit === 1).length)
      const size = forest.nodes.reduce((sum, { ids }) => sum + ids.length, 0)
      const rowTokens = expected.reduce(
        (sum, row) => sum + row.prompt_ids.length + row.response_ids.length,
        0,
      )
      if (size > rowTokens) throw new Error('it is larger than the rows')
      if (size < rowTokens) shared += 1
    }),
    { numRuns: 500 },
  )
  t.ok(shared > 100, `${shared} forests share tokens`)
})

t.test('prompt tokens are stored once, and each completion by itself', async (t) => {
  const sample = (...completion: number[]) => ({ parent: 0, bridge: [1, 2, 3, 4], completion, isExact: true })
  const group = [
    ['a', getRows([sample(7, 8), { parent: 1, bridge: [5], completion: [9], isExact: true }])],
    ['b', getRows([sample(7, 8), { ...sample(6), bridge: [1, 2, 5] }])],
  ] as const
  const { nodes, rows } = getForest(group)
  const shown = nodes.map((node) => [node.parent, [...node.ids], 'turn' in node ? node.sessionId : null])
  t.same(shown, [
    [null, [1, 2], null],
    [0, [3, 4], null],
    [1, [7, 8], 'a'],
    [2, [5], null],
    [3, [9], 'a'],
    [1, [7, 8], 'b'],
    [0, [5], null],
    [6, [6], 'b'],
  ])
  t.same(
    rows.map(({ session_id, leaf, prompt_tokens }) => [session_id, leaf, prompt_tokens]),
    [
      ['a', 4, 4],
      ['b', 5, 4],
      ['b', 7, 3],
    ],
  )
})

t.test('the memory of a forest does not grow with the length of each path', async (t) => {
  const builder = new TrajectoryBuilder()
  const annotations = '{"line":{"told":"main","rule":"header"}}'
  const prompt = [1]
  for (let index = 0; index < 1_400; index += 2) {
    builder.add({ ...createTurnStep(index, prompt, [2]), annotations })
    builder.add({ ...createTurnStep(index + 1, [...prompt, 2, 3], [4]), annotations })
    prompt.push(2, 1)
  }
  const before = measureHeap()
  const forest = new Forest()
  let count = 0
  for (const row of builder.assembleRows({}, null)) {
    forest.add('s', row)
    count += row.turns.length
  }
  const megabytes = (measureHeap() - before) / 2 ** 20
  t.ok(megabytes < 15, `${megabytes} MB for ${count} turns of rows`)
  const { rows } = forest.createLayout()
  let created = 0
  for (const { turns } of rows) created += turns.length
  t.equal(created, count)
})

function measureHeap(): number {
  setFlagsFromString('--expose-gc')
  runInNewContext('gc')()
  return process.memoryUsage().heapUsed
}
