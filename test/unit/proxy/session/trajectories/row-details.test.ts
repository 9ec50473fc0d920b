import fc from 'fast-check'
import t from 'tap'
import type { TokenData } from '../../../../../src/protocol/token-data/token-data.ts'
import {
  collectRowDetails,
  type RowDetails,
} from '../../../../../src/proxy/session/trajectories/row-details.ts'
import {
  type Trajectory,
  TrajectoryBuilder,
  type TrajectoryOptions,
} from '../../../../../src/proxy/session/trajectories/trajectories.ts'
import {
  getDetails,
  getExperts,
  getLogprob,
  getMask,
  getMaskLogprobs,
  getPrompt,
  getTop,
  getVersion,
} from '../../../../helpers/reported-details.ts'
import { createTurnStep } from '../../../../helpers/turn-step.ts'

/** A turn by its parent (an earlier one, or none), the tokens between, and the sampled ones. */
interface PlannedTurn {
  parent: number
  bridge: number[]
  completion: number[]
  isReported: boolean
  /** Experts are reported from the parent's last token on, as requested when the parent's are recorded. */
  isTrimmed: boolean
}

const tokens = (minLength: number) => fc.array(fc.nat(60_000), { minLength, maxLength: 6 })
const session: fc.Arbitrary<PlannedTurn[]> = fc.array(
  fc.record({
    parent: fc.nat(20),
    bridge: tokens(1),
    completion: tokens(1),
    isReported: fc.boolean(),
    isTrimmed: fc.boolean(),
  }),
  { minLength: 1, maxLength: 7 },
)
const options: fc.Arbitrary<TrajectoryOptions> = fc.record(
  {
    promptLength: fc.integer({ min: 1, max: 20 }),
    responseLength: fc.integer({ min: 1, max: 30 }),
    select: fc.constantFrom('all' as const, 'longest' as const, 'last' as const),
    perTurn: fc.boolean(),
  },
  { requiredKeys: [] },
)

function build(planned: readonly PlannedTurn[]) {
  const builder = new TrajectoryBuilder()
  const details = new Map<string, TokenData>()
  const sequences: { prompt: number[]; tokens: number[]; isReported: boolean }[] = []
  for (const [index, { parent, bridge, completion, isReported, isTrimmed }] of planned.entries()) {
    const before = sequences[(parent % (index + 1)) - 1]
    const prompt = [...(before?.tokens ?? []), ...bridge]
    sequences.push({ prompt, tokens: [...prompt, ...completion], isReported })
    builder.add(createTurnStep(index, prompt, completion))
    const expertsStart = isTrimmed && before?.isReported ? before.tokens.length - 1 : 0
    if (isReported) details.set(String(index), getDetails(prompt, completion, { expertsStart }))
  }
  return { builder, details }
}

/**
 * Describes the first difference between the row's data and that which its ids determine; undefined if there is none.
 * @param isReported whether a turn has data
 */
function findMisalignment(
  row: Trajectory,
  data: RowDetails,
  isReported: (turnId: string) => boolean,
): string | undefined {
  const sequence = [...row.prompt_ids, ...row.response_ids]
  const findTurn = (index: number) =>
    row.turns.find(({ start, end, trained }) => trained && start <= index && index < end)
  for (const [index, token] of row.response_ids.entries()) {
    const turn = findTurn(index)
    const hasData = turn !== undefined && isReported(turn.turn_id)
    const shown = {
      mask: data.sampling_mask?.[index]?.ids,
      maskLogprobs: data.sampling_mask?.[index]?.logprobs,
      logprob: data.sampling_logprobs?.[index],
      top: data.top_logprobs?.[index]?.ids.map((id, position) => [
        id,
        data.top_logprobs![index]!.logprobs?.[position],
      ]),
      version: data.weight_versions?.find(({ start, end }) => start <= index && index < end)?.version,
    }
    const expected = hasData
      ? {
          mask: getMask(token),
          maskLogprobs: getMaskLogprobs(token),
          logprob: getLogprob(token, 5),
          top: getTop(token, 2),
          version: getVersion(token),
        }
      : { logprob: data.sampling_logprobs === null ? undefined : null }
    if (JSON.stringify(shown) !== JSON.stringify(expected))
      return `response token ${index}: ${JSON.stringify(shown)}`
    if ((row.response_mask[index] === 1) !== (turn !== undefined)) return 'the mask'
  }
  for (const [index, alternatives] of data.prompt_logprobs?.entries() ?? []) {
    if (alternatives === null) continue
    const [own] = getPrompt(sequence[index]!, 1)
    if (alternatives.ids[0] !== own![0] || alternatives.logprobs?.[0] !== own![1])
      return `prompt token ${index}`
  }
  return findExpertsFault(sequence, data)
}

function findExpertsFault(
  sequence: readonly number[],
  { routed_experts: table }: RowDetails,
): string | undefined {
  if (table === null) return undefined
  if (table.shape[0] !== sequence.length) return 'the number of rows'
  const width = table.data.length / sequence.length
  for (const [index, token] of sequence.entries()) {
    const isKnown = table.known.some(([from, to]) => from <= index && index < to)
    const expected = isKnown ? getExperts(token) : new Array(width).fill(0)
    if (table.data.subarray(index * width, (index + 1) * width).join() !== expected.join())
      return `experts of ${index}`
  }
  return undefined
}

t.test('token data stands beside its tokens, for any rows and cuts', async (t) => {
  fc.assert(
    fc.property(session, options, (planned, options) => {
      const { builder, details } = build(planned)
      for (const { row, computeLayout: layout } of builder.locateRows(options, null)) {
        const data = collectRowDetails(layout(), details)
        t.equal(
          findMisalignment(row, data, (turnId) => details.has(turnId)),
          undefined,
        )
      }
    }),
  )
})

t.test('in a conversation whose turns all have experts, only the last token has none', async (t) => {
  fc.assert(
    fc.property(session, fc.boolean(), (planned, perTurn) => {
      const { builder, details } = build(planned.map((turn) => ({ ...turn, isReported: true })))
      for (const { row, computeLayout: layout } of builder.locateRows({ perTurn }, null)) {
        const { routed_experts: experts, prompt_logprobs: prompt } = collectRowDetails(layout(), details)
        const length = row.prompt_ids.length + row.response_ids.length
        t.same(experts?.known, [[0, length - 1]], 'trimmed where an earlier turn has reported them')
        t.ok(prompt?.slice(1, row.prompt_ids.length).every((entry) => entry !== null))
      }
    }),
  )
})

t.test('experts with integers of different widths are read in the wider one', async (t) => {
  const wide = { dtype: 'U16' as const, shape: [1, 1], data: new Uint8Array(Uint16Array.of(300).buffer) }
  const turn = {
    turnId: 'a',
    promptLength: 1,
    completionLength: 1,
    start: 0,
    end: 1,
    weightVersionStart: null,
  }
  const layout = {
    turns: [
      { ...turn, weightVersionEnd: null },
      { ...turn, turnId: 'b', promptLength: 3, start: 2, end: 3, weightVersionEnd: null },
    ],
    first: 0,
    base: 1,
    responseLength: 3,
  }
  const experts = collectRowDetails(
    layout,
    new Map([
      [
        'a',
        { routed_experts: { start: 0, experts: { dtype: 'U8', shape: [1, 1], data: Uint8Array.of(7) } } },
      ],
      ['b', { routed_experts: { start: 1, experts: wide } }],
    ]),
  ).routed_experts
  t.match(experts, { dtype: 'U16', shape: [4, 1], known: [[0, 2]] })
  t.same([...new Uint16Array(experts!.data.buffer)], [7, 300, 0, 0])
})

t.test('a version that an engine reports at both ends of a response is that of all its tokens', async (t) => {
  const turn = { turnId: 'a', promptLength: 1, completionLength: 3, start: 0, end: 2 }
  const layout = { first: 0, base: 1, responseLength: 2 }
  const getData = (weightVersionEnd: string) =>
    collectRowDetails(
      { ...layout, turns: [{ ...turn, weightVersionStart: '4', weightVersionEnd }] },
      new Map(),
    )
  t.same(getData('4').weight_versions, [{ version: '4', start: 0, end: 2 }])
  t.equal(getData('5').weight_versions, null, 'the position of the change is unknown')
})
