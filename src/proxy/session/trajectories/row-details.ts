/**
 * Assembles the token data of a row from that of its turns. Data of sampled tokens is included where the row trains
 * them. Data of positions in the sequence (prompt logprobs, experts) is included wherever a turn reported it; if
 * several turns report a position, the earliest counts, because it sampled the token or was the first to read it.
 */

import { getElementBytes, type Tensor, toNumbers } from '../../../protocol/token-data/tensors.ts'
import type {
  ExpertTable,
  TokenData,
  TokenTable,
  VersionSpan,
} from '../../../protocol/token-data/token-data.ts'
import { getRowSize } from '../../../protocol/token-data/token-data.ts'

/** A turn whose tokens are in the row, or that the row continues. */
interface LayoutTurn {
  readonly turnId: string
  readonly promptLength: number
  readonly completionLength: number
  /**
   * The span of its completion in the row's response; empty if the completion was truncated, or the row does not train
   * it.
   */
  readonly start: number
  readonly end: number
  readonly weightVersionStart: string | null
  readonly weightVersionEnd: string | null
}

/** The positions of turns in a row. */
export interface RowLayout {
  /** The turns in index order, from the first turn of the conversation, including those before the row's first turn. */
  readonly turns: readonly LayoutTurn[]
  /** The position of the row's first token in the conversation. */
  readonly first: number
  /** The position of the first token of the response in the conversation. */
  readonly base: number
  readonly responseLength: number
}

/**
 * The token ids that were reported for one position, such as its most likely tokens, with their logprobs if reported.
 */
export interface TokenRow {
  readonly ids: readonly number[]
  readonly logprobs?: readonly number[] | undefined
}

/** The routed experts of a row as a tensor. */
export interface RowExperts {
  readonly dtype: Tensor['dtype']
  /** `[tokens of prompt and response, …]`; the other dimensions are those of the engine. */
  readonly shape: readonly number[]
  /** The elements in row-major order; zeros at positions for which no turn reported experts. */
  readonly data: Uint8Array
  /** The spans of positions for which experts were reported, in order and not adjacent. */
  readonly known: readonly (readonly [from: number, to: number])[]
}

/**
 * The token data of a row. A field is null if no turn reported it. A list has one entry per token, which is null if
 * none was reported, or the row does not train the token.
 */
export interface RowDetails {
  /** This list and the next two have one entry per token of the response. */
  readonly sampling_mask: (TokenRow | null)[] | null
  readonly sampling_logprobs: (number | null)[] | null
  readonly top_logprobs: (TokenRow | null)[] | null
  /** One entry per token of prompt and response. */
  readonly prompt_logprobs: (TokenRow | null)[] | null
  readonly routed_experts: RowExperts | null
  /** The spans are positions in the response. */
  readonly weight_versions: VersionSpan[] | null
  /** The name of the teacher of `teacher_logprobs`: that of the last turn that has any. */
  readonly teacher: string | null
  /** This list and the following ones have one entry per token of the response. */
  readonly teacher_logprobs: (number | null)[] | null
  readonly advantages: (number | null)[] | null
  readonly ratios: (number | null)[] | null
  readonly entropies: (number | null)[] | null
  readonly loss_weights: (number | null)[] | null
}

/** Assembles `top_logprobs` of {@link RowDetails}. */
export function collectTopLogprobs(
  layout: RowLayout,
  detailsOf: ReadonlyMap<string, TokenData>,
): RowDetails['top_logprobs'] {
  return collectPerToken(layout, (turn) => createRowGetter(detailsOf.get(turn)?.top_logprobs))
}

/**
 * Assembles the token data of a row.
 * @param detailsOf the token data of each turn, by turn id
 */
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

/** A function that returns the data of a turn's token by its index in the completion; null: none was reported. */
type TokenDetailGetter<Detail> = (token: number) => Detail | null

/** Returns one entry per token of the response; null if no turn that the row trains reported data. */
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

/** Creates a getter of a table's rows by index. It returns null for a row that was not reported. */
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
 * Merges the routed experts of the turns. A turn has experts for all its tokens except the last, which no forward pass
 * has read.
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
  // The positions that the tables so far do not cover, in order and not adjacent.
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

/** The positions from `from` up to, but not including, `to`. */
type TokenSpan = readonly [from: number, to: number]

/** Returns the intersection of two spans: one span or none. */
function intersectSpans([from, to]: TokenSpan, [start, end]: TokenSpan): TokenSpan[] {
  const shared: TokenSpan = [Math.max(from, start), Math.min(to, end)]
  return shared[0] < shared[1] ? [shared] : []
}

/** Returns the parts of the first span that are not in the second one: at most two spans. */
function subtractSpan([from, to]: TokenSpan, [start, end]: TokenSpan): TokenSpan[] {
  if (end <= start) return [[from, to]]
  return [...intersectSpans([from, to], [from, start]), ...intersectSpans([from, to], [end, to])]
}

/** Returns whether a table has the dimensions of the model's tables. */
function isOfModel({ experts }: ExpertTable, model: Tensor): boolean {
  return experts.shape.slice(1).join() === model.shape.slice(1).join()
}

/** Returns a type that can represent all values of two types. */
function getWiderType(a: Tensor['dtype'], b: Tensor['dtype']): Tensor['dtype'] {
  if (a === b) return a
  const [narrow, wide] = getElementBytes(a) < getElementBytes(b) ? [a, b] : [b, a]
  // Types of equal width but different signedness cannot represent each other's values. An unsigned type cannot
  // represent the negative values of a narrower signed one.
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
 * Returns the weight versions of a row as spans. If the start and the end of a turn have the same version, all of its
 * tokens have it.
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
