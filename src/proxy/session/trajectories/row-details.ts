/**
 * Assembles the token data of a row from that of its turns. Data of sampled tokens is included where the row trains
 * them; data of sequence positions (prompt logprobs, experts) is included wherever a turn reported it. If several turns
 * report one position, the earliest counts: it sampled the token, or was the first to read it.
 */

import { getElementBytes, type Tensor, toNumbers } from '../../../protocol/token-data/tensors.ts'
import type {
  ExpertTable,
  TokenData,
  TokenTable,
  VersionSpan,
} from '../../../protocol/token-data/token-data.ts'
import { getRowSize } from '../../../protocol/token-data/token-data.ts'

/** A turn that the row contains tokens of, or continues. */
interface LayoutTurn {
  readonly turnId: string
  readonly promptLength: number
  readonly completionLength: number
  /** The span of its completion in the row's response; empty if it was truncated, or the row does not train it. */
  readonly start: number
  readonly end: number
  readonly weightVersionStart: string | null
  readonly weightVersionEnd: string | null
}

export interface RowLayout {
  /** Turns in index order, from the first turn of the sequence; includes those before a row of one turn. */
  readonly turns: readonly LayoutTurn[]
  /** Offset of the row's first token from the start of the first turn's prompt. */
  readonly first: number
  /** Offset of the first token of its response, from the same start. */
  readonly base: number
  readonly responseLength: number
}

/** Token ids with their logprobs, if reported. */
export interface TokenRow {
  readonly ids: readonly number[]
  readonly logprobs?: readonly number[] | undefined
}

export interface RowExperts {
  readonly dtype: Tensor['dtype']
  /** `[tokens of prompt and response, …]` */
  readonly shape: readonly number[]
  /** Zeros where no turn reported any. */
  readonly data: Uint8Array
  /** Reported spans of tokens, in order and not adjacent. */
  readonly known: readonly (readonly [from: number, to: number])[]
}

/**
 * The token data of a row. null: no turn of the row has any. Lists have one entry per token; it is null if none was
 * reported, or the row does not train the token.
 */
export interface RowDetails {
  /** Lists per token of the response. */
  readonly sampling_mask: (TokenRow | null)[] | null
  readonly sampling_logprobs: (number | null)[] | null
  readonly top_logprobs: (TokenRow | null)[] | null
  /** List per token of prompt and response. */
  readonly prompt_logprobs: (TokenRow | null)[] | null
  readonly routed_experts: RowExperts | null
  /** Spans in tokens of the response. */
  readonly weight_versions: VersionSpan[] | null
  /** The teacher of the logprobs; of several, the one of the last turn. */
  readonly teacher: string | null
  /** Lists per token of the response. */
  readonly teacher_logprobs: (number | null)[] | null
  readonly advantages: (number | null)[] | null
  readonly ratios: (number | null)[] | null
  readonly entropies: (number | null)[] | null
  readonly loss_weights: (number | null)[] | null
}

/** Returns `top_logprobs` as in {@link RowDetails}. */
export function collectTopLogprobs(
  layout: RowLayout,
  detailsOf: ReadonlyMap<string, TokenData>,
): RowDetails['top_logprobs'] {
  return collectPerToken(layout, (turn) => createRowGetter(detailsOf.get(turn)?.top_logprobs))
}

export function collectRowDetails(layout: RowLayout, detailsOf: ReadonlyMap<string, TokenData>): RowDetails {
  const numbers = (of: (details: TokenData) => readonly number[] | undefined) =>
    collectPerToken(layout, (turn) => createNumberReader(of(detailsOf.get(turn) ?? {})))
  const trained = layout.turns.filter(({ start, end }) => end > start)
  const teachers = trained.flatMap(({ turnId }) => detailsOf.get(turnId)?.teacher_logprobs?.teacher ?? [])
  const teacher = teachers.at(-1) ?? null
  return {
    sampling_mask: collectPerToken(layout, (turn) => createRowGetter(detailsOf.get(turn)?.sampling_mask)),
    sampling_logprobs: numbers(({ sampling_logprobs: logprobs }) => logprobs),
    top_logprobs: collectTopLogprobs(layout, detailsOf),
    prompt_logprobs: collectPromptLogprobs(layout, detailsOf),
    routed_experts: collectRoutedExperts(layout, detailsOf),
    weight_versions: collectWeightVersions(layout, detailsOf),
    teacher,
    teacher_logprobs: numbers(({ teacher_logprobs: by }) =>
      by?.teacher === teacher ? by?.logprobs : undefined,
    ),
    advantages: numbers(({ advantages }) => advantages),
    ratios: numbers(({ ratios }) => ratios),
    entropies: numbers(({ entropies }) => entropies),
    loss_weights: numbers(({ loss_weights: weights }) => weights),
  }
}

/** Returns a turn's data at its nth token. */
type TokenDetailGetter<Detail> = (token: number) => Detail | null

function collectPerToken<Detail>(
  { turns, responseLength }: RowLayout,
  getDetail: (turnId: string) => TokenDetailGetter<Detail> | undefined,
): (Detail | null)[] | null {
  const row = new Array<Detail | null>(responseLength).fill(null)
  let isReported = false
  for (const { turnId, start, end } of turns) {
    const at = end > start ? getDetail(turnId) : undefined
    if (at === undefined) continue
    isReported = true
    for (let token = start; token < end; token += 1) row[token] = at(token - start)
  }
  return isReported ? row : null
}

function createNumberReader(numbers: readonly number[] | undefined): TokenDetailGetter<number> | undefined {
  return numbers && ((index) => (Number.isNaN(numbers[index] ?? Number.NaN) ? null : numbers[index]!))
}

/** Returns a getter of a table's rows by index; it returns null for a row that was not reported. */
function createRowGetter(table: TokenTable | undefined): TokenDetailGetter<TokenRow> | undefined {
  if (table === undefined) return undefined
  const { counts, ids, logprobs } = table
  const ends: number[] = []
  let end = 0
  for (const count of counts) {
    end += count
    ends.push(end)
  }
  return (index) => {
    const count = counts[index] ?? 0
    if (count === 0) return null
    const [from, to] = [ends[index]! - count, ends[index]!]
    return { ids: ids.slice(from, to), logprobs: logprobs?.slice(from, to) }
  }
}

function collectPromptLogprobs(
  { turns, first, base, responseLength }: RowLayout,
  detailsOf: ReadonlyMap<string, TokenData>,
): (TokenRow | null)[] | null {
  const row = new Array<TokenRow | null>(base - first + responseLength).fill(null)
  let isReported = false
  for (const { turnId, promptLength } of turns) {
    const table = detailsOf.get(turnId)?.prompt_logprobs
    const at = createRowGetter(table)
    if (table === undefined || at === undefined) continue
    isReported = true
    const end = Math.min(promptLength, table.start + table.counts.length, first + row.length)
    for (let index = Math.max(first, table.start); index < end; index += 1)
      row[index - first] ??= at(index - table.start)
  }
  return isReported ? row : null
}

/**
 * Merges the experts of the turns. A turn has experts for all its tokens except the last, which no forward pass has
 * read.
 */
function collectRoutedExperts(
  { turns, first, base, responseLength }: RowLayout,
  detailsOf: ReadonlyMap<string, TokenData>,
): RowExperts | null {
  const tables = turns.flatMap((turn) => {
    const table = detailsOf.get(turn.turnId)?.routed_experts
    return table === undefined ? [] : [{ table, end: turn.promptLength + turn.completionLength }]
  })
  const model = tables[0]?.table.experts
  if (model === undefined) return null
  const widest = tables.reduce((wide, { table }) => getWiderType(wide, table.experts.dtype), model.dtype)
  const length = base - first + responseLength
  const bytes = getRowSize({ ...model, dtype: widest })
  const data = new Uint8Array(length * bytes)
  // Positions that the tables read so far do not cover; in order and not adjacent.
  let missing: TokenSpan[] = [[first, first + length]]
  for (const { table, end } of tables) {
    if (!isOfModel(table, model)) continue
    const covered = [table.start, Math.min(table.start + table.experts.shape[0]!, end)] as const
    const rows = asType(table.experts, widest)
    for (const [from, to] of missing.flatMap((span) => intersectSpans(span, covered)))
      data.set(
        rows.subarray((from - table.start) * bytes, (to - table.start) * bytes),
        (from - first) * bytes,
      )
    missing = missing.flatMap((span) => subtractSpan(span, covered))
  }
  const known = missing.reduce<TokenSpan[]>(
    (left, gap) => left.flatMap((part) => subtractSpan(part, gap)),
    [[first, first + length]],
  )
  return {
    dtype: widest,
    shape: [length, ...model.shape.slice(1)],
    data,
    known: known.map(([from, to]) => [from - first, to - first]),
  }
}

type TokenSpan = readonly [from: number, to: number]

/** Returns the intersection of two spans: one span, or none. */
function intersectSpans([from, to]: TokenSpan, [start, end]: TokenSpan): TokenSpan[] {
  const shared: TokenSpan = [Math.max(from, start), Math.min(to, end)]
  return shared[0] < shared[1] ? [shared] : []
}

/** Returns a span without another one: at most two spans. */
function subtractSpan([from, to]: TokenSpan, [start, end]: TokenSpan): TokenSpan[] {
  if (end <= start) return [[from, to]]
  return [...intersectSpans([from, to], [from, start]), ...intersectSpans([from, to], [end, to])]
}

function isOfModel({ experts }: ExpertTable, model: Tensor): boolean {
  return experts.shape.slice(1).join() === model.shape.slice(1).join()
}

function getWiderType(a: Tensor['dtype'], b: Tensor['dtype']): Tensor['dtype'] {
  if (a === b) return a
  const [narrow, wide] = getElementBytes(a) < getElementBytes(b) ? [a, b] : [b, a]
  // Two types of one width and different sign cannot represent each other's values, nor an unsigned type negative ones.
  const isLossy =
    getElementBytes(a) === getElementBytes(b) || (narrow.startsWith('I') && wide.startsWith('U'))
  return isLossy ? 'I32' : wide
}

function asType(tensor: Tensor, dtype: Tensor['dtype']): Uint8Array {
  if (tensor.dtype === dtype) return tensor.data
  const Numbers = dtype === 'U16' ? Uint16Array : dtype === 'I16' ? Int16Array : Int32Array
  return new Uint8Array(Numbers.from(toNumbers(tensor)).buffer)
}

/**
 * Returns the weight versions. If an engine reports the same version at the start and at the end, all tokens have it.
 */
function collectWeightVersions(
  { turns, responseLength }: RowLayout,
  detailsOf: ReadonlyMap<string, TokenData>,
): VersionSpan[] | null {
  const row: VersionSpan[] = []
  for (const turn of turns) {
    const { turnId, start, end, weightVersionStart: version } = turn
    const isOne = version !== null && version === turn.weightVersionEnd
    const spans =
      detailsOf.get(turnId)?.weight_versions ??
      (isOne ? [{ version, start: 0, end: turn.completionLength }] : [])
    for (const span of spans) {
      const [from, to] = [start + span.start, Math.min(start + span.end, end, responseLength)]
      if (to > from) row.push({ version: span.version, start: from, end: to })
    }
  }
  return row.length > 0 ? row : null
}
