/**
 * The token data that a row must contain, computed the slow way: each token of the row is looked up in the plan of the
 * conversation, independently of how the tested code handles turns, rows and cuts.
 */

import { type Tensor, toNumbers } from '../../src/protocol/token-data/tensors.ts'
import type { TokenData, TokenTable } from '../../src/protocol/token-data/token-data.ts'
import type { Trajectory } from '../../src/proxy/session/trajectories/trajectories.ts'

export interface TurnWithDetails {
  turnId: string
  parent: TurnWithDetails | undefined
  /** Whether the turn failed, so that no row contains it. */
  isExcluded: boolean
  prompt: readonly number[]
  completion: readonly number[]
  details: TokenData
  /** The version that was reported at both ends of the turn. */
  version: string | null
}

type Row = Pick<Trajectory, 'prompt_ids' | 'response_ids' | 'response_mask' | 'turns'>

/** Lists with an entry for each token of prompt and response, or of the response. */
type PerToken = Record<string, unknown>

export class DetailOracle {
  readonly #turns: ReadonlyMap<string, TurnWithDetails>

  constructor(turns: readonly TurnWithDetails[]) {
    this.#turns = new Map(turns.map((turn) => [turn.turnId, turn]))
  }

  /**
   * Returns the expected token data of a row.
   * @throws Error if the row's ids are not those of the turn that it ends with
   */
  row(row: Row): PerToken {
    const chain = this.#chainTo(row.turns.at(-1)!.turn_id)
    const sequence = chain.flatMap(({ prompt, completion }, index) => [
      ...prompt.slice(
        index === 0 ? 0 : chain[index - 1]!.prompt.length + chain[index - 1]!.completion.length,
      ),
      ...completion,
    ])
    const base = this.#turns.get(row.turns[0]!.turn_id)!.prompt.length
    const first = base - row.prompt_ids.length
    const ids = [...row.prompt_ids, ...row.response_ids]
    if (sequence.slice(first, first + ids.length).join() !== ids.join())
      throw new Error('the row has other ids than its last turn')
    const indices = ids.map((_, index) => first + index)
    const trained = indices.slice(row.prompt_ids.length).map((index, i) => {
      const turn = chain.find((turn) => index >= turn.prompt.length && index < getLength(turn))
      return row.response_mask[i] === 1 && turn ? { turn, nth: index - turn.prompt.length } : null
    })
    return asJson({ ...getSampledLists(trained), ...getSequenceLists(chain, indices) })
  }

  /** Returns the turns from the first one on, including those before a row of one turn. */
  #chainTo(turnId: string): TurnWithDetails[] {
    const chain: TurnWithDetails[] = []
    for (let turn = this.#turns.get(turnId); turn !== undefined; turn = turn.parent)
      if (!turn.isExcluded) chain.unshift(turn)
    return chain
  }

  /** Converts a row to the form of {@link row}: experts as numbers, versions by token. */
  static perToken(shown: object): PerToken {
    const { routed_experts: experts, weight_versions: spans, ...lists } = shown as RowData
    return { ...lists, routed_experts: experts && expertsByToken(experts), weight_versions: byToken(spans) }
  }
}

interface RowData {
  routed_experts: { dtype: string; shape: number[]; known: [number, number][]; data: string } | null
  weight_versions: { version: string; start: number; end: number }[] | null
}

const getLength = ({ prompt, completion }: TurnWithDetails) => prompt.length + completion.length

const asJson = (lists: PerToken): PerToken => JSON.parse(JSON.stringify(lists))

/** Returns null if no turn reported any entry. */
const orNull = <T>(isReported: boolean, entries: T[]) => (isReported ? entries : null)

/** Returns the nth row; null: it was not reported. */
function getRow(table: TokenTable | undefined, nth: number) {
  const count = table?.counts[nth] ?? 0
  if (table === undefined || count === 0) return null
  const start = table.counts.slice(0, nth).reduce((sum, length) => sum + length, 0)
  const of = (list: readonly number[] | undefined) => list?.slice(start, start + count) ?? null
  return { ids: of(table.ids), logprobs: of(table.logprobs) }
}

type Sampled = { turn: TurnWithDetails; nth: number } | null

function getSampledLists(trained: readonly Sampled[]): PerToken {
  const isReported = (kind: keyof TokenData) =>
    trained.some((token) => token?.turn.details[kind] !== undefined)
  const rows = (kind: 'sampling_mask' | 'top_logprobs') =>
    trained.map((token) => token && getRow(token.turn.details[kind], token.nth))
  const numbers = (kind: 'sampling_logprobs' | 'advantages' | 'ratios' | 'entropies' | 'loss_weights') =>
    orNull(
      isReported(kind),
      trained.map((token) => token && (token.turn.details[kind]?.[token.nth] ?? null)),
    )
  const [masks, tops] = [rows('sampling_mask'), rows('top_logprobs')]
  const versions = trained.map(getVersion)
  return {
    sampling_mask: orNull(
      isReported('sampling_mask'),
      masks.map((row) => row?.ids),
    ),
    sampling_mask_logprobs: orNull(
      masks.some((row) => row?.logprobs),
      masks.map((row) => row?.logprobs),
    ),
    sampling_logprobs: numbers('sampling_logprobs'),
    advantages: numbers('advantages'),
    ratios: numbers('ratios'),
    entropies: numbers('entropies'),
    loss_weights: numbers('loss_weights'),
    teacher: isReported('teacher_logprobs') ? 'wise' : null,
    teacher_logprobs: orNull(
      isReported('teacher_logprobs'),
      trained.map((token) => token && (token.turn.details.teacher_logprobs?.logprobs[token.nth] ?? null)),
    ),
    top_logprob_ids: orNull(
      isReported('top_logprobs'),
      tops.map((row) => row?.ids),
    ),
    top_logprobs: orNull(
      isReported('top_logprobs'),
      tops.map((row) => row?.logprobs),
    ),
    weight_versions: orNull(
      versions.some((version) => version !== null),
      trimNulls(versions),
    ),
  }
}

function getVersion(token: Sampled): string | null {
  const spans = token?.turn.details.weight_versions
  if (spans === undefined) return token?.turn.version ?? null
  return spans.find(({ start, end }) => start <= token!.nth && token!.nth < end)?.version ?? null
}

function getSequenceLists(chain: readonly TurnWithDetails[], indices: readonly number[]): PerToken {
  const isReported = (kind: keyof TokenData) => chain.some(({ details }) => details[kind] !== undefined)
  const prompts = indices.map((index) => {
    for (const { prompt, details } of chain) {
      const table = details.prompt_logprobs
      const row = table && index < prompt.length ? getRow(table, index - table.start) : null
      if (row !== null) return row
    }
    return null
  })
  return {
    prompt_logprob_ids: orNull(
      isReported('prompt_logprobs'),
      prompts.map((row) => row?.ids),
    ),
    prompt_logprobs: orNull(
      isReported('prompt_logprobs'),
      prompts.map((row) => row?.logprobs),
    ),
    routed_experts: orNull(
      isReported('routed_experts'),
      indices.map((index) => getExperts(chain, index)),
    ),
  }
}

/**
 * Returns the experts at a position, from the first turn that reported them in the shape of the first table; null: none
 * did.
 */
function getExperts(chain: readonly TurnWithDetails[], index: number): number[] | null {
  const tables = chain.flatMap(({ details }) => details.routed_experts ?? [])
  const shape = String(tables[0]?.experts.shape.slice(1))
  for (const { start, experts } of tables) {
    const [rows = 0, ...row] = experts.shape
    if (String(row) !== shape || index < start || index >= start + rows) continue
    const width = row.reduce((product, length) => product * length)
    return toNumbers(experts).slice((index - start) * width, (index - start + 1) * width)
  }
  return null
}

const TYPES: Readonly<Record<string, Tensor['dtype']>> = {
  uint8: 'U8',
  int8: 'I8',
  uint16: 'U16',
  int16: 'I16',
  int32: 'I32',
}

function expertsByToken({ dtype, shape, known, data }: NonNullable<RowData['routed_experts']>) {
  const numbers = toNumbers({ dtype: TYPES[dtype]!, shape, data: Buffer.from(data, 'base64') })
  const [rows = 0, ...row] = shape
  const width = row.reduce((product, length) => product * length)
  return Array.from({ length: rows }, (_, index) => {
    const values = numbers.slice(index * width, (index + 1) * width)
    if (known.some(([from, to]) => from <= index && index < to)) return values
    return values.every((number) => number === 0) ? null : 'numbers that were not reported'
  })
}

function byToken(spans: RowData['weight_versions']): (string | null)[] | null {
  if (spans === null) return null
  const versions: (string | null)[] = []
  for (const { version, start, end } of spans) {
    while (versions.length < start) versions.push(null)
    for (let offset = start; offset < end; offset += 1) versions[offset] = version
  }
  return trimNulls(versions)
}

/** Removes trailing nulls: spans do not contain the length of the list. */
function trimNulls(versions: readonly (string | null)[]): (string | null)[] {
  return versions.slice(0, versions.findLastIndex((version) => version !== null) + 1)
}
