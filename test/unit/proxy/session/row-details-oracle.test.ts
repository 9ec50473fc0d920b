/**
 * Token data of any shape, from an engine's report to the JSON of rows, compared with a reader that looks up
 * each token by itself: the turn that sampled it, the turn that read it first, and the data reported there.
 */
import { deepStrictEqual } from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { TOKEN_DATA_KINDS, type TokenDataKind } from '../../../../src/protocol/token-data/kinds.ts'
import {
  type ExpertTable,
  packTokenData,
  type TokenData,
} from '../../../../src/protocol/token-data/token-data.ts'
import { writeDetailMembers } from '../../../../src/proxy/http/trainer/sessions/details.ts'
import {
  TrajectoryBuilder,
  type TrajectoryOptions,
} from '../../../../src/proxy/session/trajectories/trajectories.ts'
import type { TurnReader } from '../../../../src/proxy/store/port/turn-store.ts'
import { DetailOracle, type TurnWithDetails } from '../../../helpers/details-oracle.ts'
import { createTurnStep } from '../../../helpers/turn-step.ts'

const logprob = fc.oneof(
  fc.float({ min: -50, max: -(2 ** -20), noNaN: true }),
  fc.double({ min: -50, max: -(2 ** -20), noNaN: true }),
  fc.constant(Number.NaN),
)
const listOf = <T>(item: fc.Arbitrary<T>) => fc.array(item, { minLength: 1, maxLength: 6 })

/** The values of a turn's token data; each list is repeated at its end. */
const dataSpec = fc.record({
  kinds: fc.subarray([...TOKEN_DATA_KINDS], { minLength: 0 }),
  counts: listOf(fc.nat(3)),
  ids: listOf(fc.nat(150_000)),
  logprobs: listOf(logprob),
  hasMaskLogprobs: fc.boolean(),
  start: fc.nat(12),
  missing: fc.nat(2),
  dtype: fc.constantFrom('U8', 'I8', 'U16', 'I16', 'I32'),
  row: fc.constantFrom([2, 3], [2, 3], [2, 3], [6]),
  experts: listOf(fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 })),
  cuts: listOf(fc.nat(3)),
})
type DataSpec = typeof dataSpec extends fc.Arbitrary<infer Value> ? Value : never

/** Each turn continues an earlier one, or none; an excluded one is not part of any row. */
const session = fc.array(
  fc.record({
    parent: fc.nat(20),
    bridge: fc.integer({ min: 1, max: 5 }),
    completion: fc.integer({ min: 1, max: 6 }),
    isLost: fc.boolean(),
    versions: fc.constantFrom([null, null], ['4', '4'], ['4', '5']),
    dataSpec,
  }),
  { minLength: 1, maxLength: 7 },
)
type Session = typeof session extends fc.Arbitrary<infer Value> ? Value : never

const options: fc.Arbitrary<TrajectoryOptions> = fc.record(
  {
    promptLength: fc.integer({ min: 1, max: 20 }),
    responseLength: fc.integer({ min: 1, max: 30 }),
    select: fc.constantFrom('all' as const, 'longest' as const, 'last' as const),
    perTurn: fc.boolean(),
  },
  { requiredKeys: [] },
)

/** Returns a function that returns the items of a list in turn, again and again. */
function repeat<T>(items: readonly T[]): () => T {
  let index = 0
  return () => items[index++ % items.length]!
}

function getDetails(spec: DataSpec, prompt: number, completion: number): TokenData {
  const [count, id, number] = [repeat(spec.counts), repeat(spec.ids), repeat(spec.logprobs)]
  const table = (rows: number, hasLogprobs = true) => {
    const counts = Array.from({ length: rows }, count)
    const ids = counts.flatMap((length) => Array.from({ length }, id))
    return { counts, ids, ...(hasLogprobs && { logprobs: ids.map(number) }) }
  }
  const start = spec.start % prompt
  const all: { [Kind in TokenDataKind]: NonNullable<TokenData[Kind]> } = {
    sampling_mask: table(completion, spec.hasMaskLogprobs),
    sampling_logprobs: Array.from({ length: completion }, number),
    top_logprobs: table(completion),
    prompt_logprobs: { ...table(Math.max(0, prompt - start - spec.missing)), start },
    routed_experts: getExperts(spec, start, Math.max(0, prompt + completion - 1 - start - spec.missing)),
    weight_versions: getSpans(spec, completion),
    teacher_logprobs: { teacher: 'wise', logprobs: Array.from({ length: completion }, number) },
    advantages: Array.from({ length: completion }, number),
    ratios: Array.from({ length: Math.max(0, completion - spec.missing) }, number),
    entropies: [],
    loss_weights: Array.from({ length: completion }, number),
  }
  return Object.fromEntries(spec.kinds.map((kind) => [kind, all[kind]]))
}

const ARRAYS = { U8: Uint8Array, I8: Int8Array, U16: Uint16Array, I16: Int16Array, I32: Int32Array } as const

function getExperts({ dtype, row, experts }: DataSpec, start: number, rows: number): ExpertTable {
  const width = row.reduce<number>((product, length) => product * length, 1)
  const numbers = Array.from({ length: rows * width }, repeat(experts))
  const { buffer } = ARRAYS[dtype].from(numbers)
  const data = new Uint8Array(buffer)
  return { start, experts: { dtype, shape: [rows, ...row], data } }
}

/** Returns spans in order, with gaps between them. */
function getSpans({ cuts }: DataSpec, completion: number) {
  const length = repeat(cuts)
  const spans: { version: string; start: number; end: number }[] = []
  for (let start = length(); start < completion; start += 1 + length()) {
    const end = Math.min(completion, start + 1 + length())
    spans.push({ version: `step-${spans.length}`, start, end })
    start = end
  }
  return spans
}

/** Builds the turns of a session. All tokens differ, so that each turn continues exactly the planned one. */
function build(planned: Session) {
  let token = 0
  const createIds = (length: number) => Array.from({ length }, () => ++token)
  const builder = new TrajectoryBuilder()
  const turns: TurnWithDetails[] = []
  for (const [
    index,
    { parent, bridge, completion: length, isLost, versions, dataSpec },
  ] of planned.entries()) {
    const before = turns[(parent % (index + 1)) - 1]
    const prompt = [...(before ? [...before.prompt, ...before.completion] : []), ...createIds(bridge)]
    const completion = createIds(length)
    const [weightVersionStart = null, weightVersionEnd = null] = versions
    const details = getDetails(dataSpec, prompt.length, length)
    turns.push({
      turnId: String(index),
      parent: before,
      isExcluded: isLost,
      prompt,
      completion,
      details,
      version: weightVersionStart === weightVersionEnd ? weightVersionStart : null,
    })
    builder.add({
      ...createTurnStep(index, prompt, completion),
      status: isLost ? 'failed' : 'completed',
      weightVersionStart,
      weightVersionEnd,
    })
  }
  return { builder, turns }
}

/** Returns the reader of a store that has packed the token data, as every store does. */
function getReader(turns: readonly TurnWithDetails[]): TurnReader {
  const packed = new Map(turns.map(({ turnId, details }) => [turnId, packTokenData(details)]))
  const readDetails: TurnReader['readDetails'] = async (_session, turnIds, kinds) =>
    new Map(turnIds.map((turnId) => [turnId, packed.get(turnId)!.filter(({ kind }) => kinds.includes(kind))]))
  return { readDetails } as TurnReader
}

async function toJson(row: Parameters<typeof writeDetailMembers>[2], reader: TurnReader): Promise<object> {
  const members = await Array.fromAsync(writeDetailMembers(reader, 's', row, TOKEN_DATA_KINDS))
  return JSON.parse(`{${members.join('').replace(/^,/, '')}}`)
}

t.test('rows contain, bit for bit, the data that the engine reported for each of their tokens', async (t) => {
  const checked = { rows: 0, lists: 0 }
  await fc.assert(
    fc.asyncProperty(session, options, async (planned, chosen) => {
      const { builder, turns } = build(planned)
      const reader = getReader(turns)
      const oracle = new DetailOracle(turns)
      for (const { row, computeLayout: layout } of builder.locateRows(chosen, null)) {
        const actual = await toJson(layout, reader)
        const expected = oracle.row(row)
        deepStrictEqual(DetailOracle.perToken(actual), expected)
        checked.rows += 1
        checked.lists += Object.values(expected).filter((value) => value !== null).length
      }
    }),
    { numRuns: 200 },
  )
  t.ok(checked.rows > 50 && checked.lists > 100, `${checked.rows} rows with ${checked.lists} lists`)
})
