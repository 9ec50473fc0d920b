import { concatIds, sharedLength } from '../../protocol/token-ids/token-ids.ts'
import type { SessionsDiffConfig } from '../../proxy/config/options/sessions.ts'
import { printable, renderTable } from '../table.ts'
import type { SessionsApi, TrajectoriesJson } from './api.ts'
import { withSessionsApi } from './open-api.ts'

type Row = TrajectoriesJson['trajectories'][number]

interface RowDifference {
  row: number
  /** Place of the first token that differs, counted from the prompt's first; null: the rows are the same. */
  first_difference: number | null
  a: Side | null
  b: Side | null
}

interface Side {
  tokens: number
  prompt_tokens: number
  trained_tokens: number
  turns: number
  reward: number | null
  /** Index of the turn that the first different token is in, and its id; null: it is in no turn, or there is none. */
  turn: number | null
  token_id: number | null
}

/** `llm-proxy sessions diff <a> <b>`. @returns the exit code: 1 if a row differs */
export function run(config: SessionsDiffConfig, [a, b]: string[]): Promise<number> {
  return withSessionsApi(config, async (api) => {
    const [left, right] = await Promise.all([rowsOf(api, a!), rowsOf(api, b!)])
    const count = Math.max(left.length, right.length)
    const rows = Array.from({ length: count }, (_, row) => differenceOf(row, left[row], right[row]))
    process.stdout.write(`${config.json ? JSON.stringify({ a, b, rows }, undefined, 2) : describe(rows)}\n`)
    return rows.some(({ first_difference }) => first_difference !== null) ? 1 : 0
  })
}

async function rowsOf(api: SessionsApi, sessionId: string): Promise<readonly Row[]> {
  const which = { select: 'all', side_calls: false, finished_only: false } as const
  return (await api.withTrajectories(sessionId, which)).trajectories
}

function differenceOf(row: number, a: Row | undefined, b: Row | undefined): RowDifference {
  const [left, right] = [idsOf(a), idsOf(b)]
  const place = sharedLength(left, right)
  const isSame = a !== undefined && b !== undefined && left.length === right.length && place === left.length
  return {
    row,
    first_difference: isSame ? null : place,
    a: a === undefined ? null : sideOf(a, left, place),
    b: b === undefined ? null : sideOf(b, right, place),
  }
}

function idsOf(row: Row | undefined): Int32Array {
  return row === undefined ? new Int32Array(0) : concatIds(row.prompt_ids, row.response_ids)
}

function sideOf(row: Row, ids: Int32Array, place: number): Side {
  const { prompt_ids, response_mask, turns, reward } = row
  const inResponse = place - prompt_ids.length
  return {
    tokens: ids.length,
    prompt_tokens: prompt_ids.length,
    trained_tokens: response_mask.reduce<number>((sum, bit) => sum + bit, 0),
    turns: turns.length,
    reward,
    turn: turns.find(({ start, end }) => inResponse >= start && inResponse < end)?.index ?? null,
    token_id: ids[place] ?? null,
  }
}

function describe(rows: readonly RowDifference[]): string {
  const lines = rows.flatMap(({ row, a, b }) => [
    { row, side: 'a', of: a },
    { row, side: 'b', of: b },
  ])
  const count = (of: Side | null, name: keyof Side) => (of === null ? '-' : String(of[name] ?? '-'))
  const column = (header: string, name: keyof Side) => ({
    header,
    value: ({ of }: (typeof lines)[number]) => count(of, name),
    align: 'right' as const,
  })
  const table = renderTable(
    [
      { header: 'row', value: ({ row }) => String(row), align: 'right' },
      { header: '', value: ({ side }) => side },
      column('tokens', 'tokens'),
      column('prompt', 'prompt_tokens'),
      column('trained', 'trained_tokens'),
      column('turns', 'turns'),
      column('reward', 'reward'),
    ],
    lines,
  )
  return [table, '', ...rows.map(sentenceOf)].join('\n')
}

function sentenceOf({ row, first_difference: place, a, b }: RowDifference): string {
  if (place === null) return `row ${row}: the same, token for token`
  if (a === null || b === null) return `row ${row}: only ${a === null ? 'b' : 'a'} has it`
  const at = (side: Side) =>
    side.token_id === null
      ? 'is at its end'
      : `has ${side.token_id}${side.turn === null ? '' : ` in turn ${side.turn}`}`
  return printable(`row ${row}: token ${place} is the first that differs: a ${at(a)}, b ${at(b)}`)
}
