/** Reads the recorded alternatives (`top_logprobs`) to the tokens of a row. */
import type { Static } from 'typebox'
import type { TokenData } from '../../../../protocol/token-data/token-data.ts'
import {
  collectTopLogprobs,
  type RowLayout,
  type TokenRow,
} from '../../../session/trajectories/row-details.ts'
import type { Trajectory } from '../../../session/trajectories/trajectories.ts'
import type { Alternatives } from './read-schemas.ts'
import type { TokenTexts } from './rows.ts'

type TokenAlternatives = Static<typeof Alternatives>['alternatives'][number]

/** A row, and the function that computes the positions of its turns. */
interface AlternativesRow {
  row: Pick<Trajectory, 'prompt_ids' | 'response_ids'>
  layout: () => RowLayout
}

/** A range of positions in the prompt and the response of a row. */
interface TokenRange {
  from: number
  count: number
}

/** The functions that read stored details and token texts. */
interface AlternativesSources {
  details(turns: RowLayout['turns']): Promise<ReadonlyMap<string, TokenData>>
  texts(ids: Int32Array): Promise<TokenTexts | undefined>
}

/** Returns an entry for each position of the range that the row has. Only details of turns in the range are read. */
export async function readAlternatives(
  { row, layout: layoutOf }: AlternativesRow,
  { from, count }: TokenRange,
  { details, texts }: AlternativesSources,
): Promise<TokenAlternatives[]> {
  const promptLength = row.prompt_ids.length
  const end = Math.min(from + count, promptLength + row.response_ids.length)
  const layout = layoutOf()
  const turns = layout.turns.filter(
    (turn) => turn.start < turn.end && promptLength + turn.start < end && promptLength + turn.end > from,
  )
  const rows = collectTopLogprobs({ ...layout, turns }, await details(turns))
  const shown: (TokenRow | null)[] = []
  for (let index = from; index < end; index += 1) shown.push(rows?.[index - promptLength] ?? null)
  const textOf = await readTexts(shown, texts)
  return shown.map((at) =>
    at === null
      ? null
      : at.ids.map((id, index) => ({
          id,
          logprob: toFiniteOrNull(at.logprobs?.[index]),
          text: textOf.get(id) ?? null,
        })),
  )
}

/** Reads the text of each token separately, because alternatives do not form a sequence. */
async function readTexts(
  rows: readonly (TokenRow | null)[],
  texts: AlternativesSources['texts'],
): Promise<Map<number, string>> {
  const found = new Map<number, string>()
  const ids = new Set(rows.flatMap((row) => row?.ids ?? []))
  // An engine that detokenizes returns all texts in one request. They are cached, so the single reads below send none.
  if (ids.size === 0 || (await texts(Int32Array.from(ids))) === undefined) return found
  for (const id of ids) {
    const read = await texts(Int32Array.of(id))
    if (read === undefined) return found
    found.set(id, read.texts[0] ?? '')
  }
  return found
}

function toFiniteOrNull(logprob: number | undefined): number | null {
  return logprob !== undefined && Number.isFinite(logprob) ? logprob : null
}
