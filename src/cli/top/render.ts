/** A snapshot as lines for a terminal. */
import { coloured } from '../colours.ts'
import { type Column, printable, renderTable } from '../table.ts'
import { stateOf } from '../workers.ts'
import type { Snapshot } from './snapshot.ts'

type Member = Snapshot['members'][number]
type OpenTurn = Snapshot['open_turns'][number]

const LONGEST_NAME = 48
/** So many lines are left to the slowest turns before members take them. */
const TURN_LINES = 6

const MEMBERS: readonly Column<Member>[] = [
  { header: 'name', value: ({ worker_id }) => printable(worker_id, LONGEST_NAME) },
  { header: 'kind', value: (member) => printable(member.engine ?? member.kind) },
  { header: 'load', value: (member) => `${member.load}/${member.max_concurrency}`, align: 'right' },
  { header: 'weights', value: (member) => printable(member.weight_version ?? '-', 24) },
  { header: 'state', value: stateOf, style: (member, cell) => coloured(colourOf(member), cell) },
]

const TURNS: readonly Column<OpenTurn>[] = [
  { header: 'slowest open turns', value: ({ session_id }) => printable(session_id, LONGEST_NAME) },
  { header: 'turn', value: ({ index }) => String(index), align: 'right' },
  { header: 'open for', value: ({ open_ms }) => span(open_ms / 1_000), align: 'right' },
  { header: 'sampled', value: ({ sampled_tokens }) => count(sampled_tokens), align: 'right' },
]

/**
 * @param url of the proxy
 * @param height how many lines there is room for; what does not fit is counted
 */
export function render(snapshot: Snapshot, url: string, height = Number.POSITIVE_INFINITY): string[] {
  const head = headOf(snapshot, url)
  // Two empty lines, and the head of each table.
  const room = Math.max(2, height - head.length - 4)
  const { members, open_turns: turns, open_turns_total: allTurns } = snapshot
  const memberLines = Math.min(members.length, Math.max(1, room - Math.min(TURN_LINES, turns.length)))
  const turnLines = Math.max(1, room - Math.max(1, memberLines))
  const shown = [...members].sort((a, b) => Number(a.healthy) - Number(b.healthy))
  return [
    ...head,
    '',
    ...table(MEMBERS, shown, {
      lines: memberLines,
      total: members.length,
      none: 'No engine or worker is here.',
    }),
    '',
    ...table(TURNS, turns, { lines: turnLines, total: allTurns, none: 'No turn is open.' }),
  ]
}

function headOf(snapshot: Snapshot, url: string): string[] {
  const { status, mode, version, uptime_s: uptimeS, calls, capacity, per_second: rates, turns } = snapshot
  const facts = [
    printable(url),
    ...(version === null ? [] : [`llm-proxy ${printable(version)}`]),
    printable(mode),
    ...(uptimeS === null ? [] : [`up ${span(uptimeS)}`]),
  ]
  const exactness =
    turns.inexact_share === null
      ? ''
      : `; ${count(turns.inexact)} not exact (${(turns.inexact_share * 100).toFixed(1)} %)`
  return [
    `${facts.join(', ')}: ${coloured(status === 'ok' ? 'ok' : 'warning', printable(status))}`,
    `calls     ${calls.engine} of ${capacity} at engines, ${calls.queued} wait, ${calls.proxy} in the proxy`,
    ...(snapshot.paused ? [`          ${coloured('warning', pauseText(snapshot))}`] : []),
    `tokens    ${perSecond(rates.sampled_tokens)} sampled, ${perSecond(rates.prompt_tokens)} in prompts`,
    `turns     ${perSecond(rates.turns)}; ${count(turns.completed)} completed, ${count(turns.failed)} failed, ` +
      `${count(turns.aborted)} aborted${exactness}`,
    `sessions  ${count(snapshot.sessions_active)} active`,
  ]
}

function pauseText({ at, paused_since: since }: Snapshot): string {
  return `paused${since === null ? '' : ` for ${span(Math.max(0, at - since))}`}: new calls wait`
}

interface TableSize {
  lines: number
  total: number
  none: string
}

/** The last line that is left counts what has none. */
function table<Row>(columns: readonly Column<Row>[], rows: readonly Row[], size: TableSize): string[] {
  const { lines, total, none } = size
  if (rows.length === 0) return [none]
  const isWhole = total <= lines && total <= rows.length
  const shown = isWhole ? rows : rows.slice(0, Math.max(0, lines - 1))
  const more = isWhole ? [] : [`and ${total - shown.length} more`]
  return [...renderTable(columns, shown).split('\n'), ...more]
}

function colourOf({ healthy, draining }: Member): string {
  if (!healthy) return 'failed'
  return draining ? 'warning' : 'up'
}

/** @returns `-` where nothing is known yet */
function perSecond(rate: number | null): string {
  return rate === null ? '-/s' : `${rate < 10 ? rate.toFixed(1) : count(Math.round(rate))}/s`
}

function count(value: number): string {
  return value.toLocaleString('en-US')
}

/** The two largest units: `2 h 3 min`. */
export function span(seconds: number): string {
  const s = Math.floor(seconds)
  if (s < 60) return `${s} s`
  if (s < 3_600) return `${Math.floor(s / 60)} min ${s % 60} s`
  if (s < 86_400) return `${Math.floor(s / 3_600)} h ${Math.floor((s % 3_600) / 60)} min`
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3_600)} h`
}
