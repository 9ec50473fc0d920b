/** Formats the results of `llm-proxy verify`. */
import type { Comparison } from '../../proxy/verify/compare.ts'
import type { VerifyRun } from '../../proxy/verify/run.ts'
import type { TurnResult } from '../../proxy/verify/verifier.ts'
import { type Column, renderTable, toPrintable } from '../table.ts'

interface VerifyReport extends VerifyRun {
  engine: string
  weight_version: string | null
  logprobs: string
  turns: readonly TurnResult[]
}

/** The maximum number of listed turns that differ: the first ones show the cause. */
const MAX_ROWS = 50

const figure = (value: number) => (value === 0 ? '0' : value.toPrecision(3))
const show = (pick: (comparison: Comparison) => number) => (turn: TurnResult) =>
  turn.comparison === undefined ? '-' : figure(pick(turn.comparison))

const COLUMNS: readonly Column<TurnResult>[] = [
  { header: 'session', value: ({ session_id }) => toPrintable(session_id, 40) },
  { header: 'turn', value: ({ index }) => String(index), align: 'right' },
  { header: 'tokens', value: show(({ tokens }) => tokens), align: 'right' },
  { header: 'mean', value: show((comparison) => comparison.mean_difference), align: 'right' },
  { header: 'max', value: show((comparison) => comparison.max_difference), align: 'right' },
  { header: 'first', value: describeFirstDifference, align: 'right' },
  {
    header: 'hint',
    value: ({ hint, greedy }) => hint ?? (greedy?.same === false ? 'sampled differently' : ''),
  },
]

function describeFirstDifference({ first_difference: first, greedy }: TurnResult): string {
  return String(first?.index ?? greedy?.first_difference?.index ?? '-')
}

export function formatReport(report: VerifyReport): string {
  const { compared, differing, skipped, overall, control, turns } = report
  const different = turns.filter(({ verdict }) => verdict === 'differs')
  const counts = Object.entries(skipped).map(([reason, count]) => `${count} ${reason}`)
  const weights = report.weight_version === null ? '' : `, weights ${toPrintable(report.weight_version)}`
  return [
    `engine ${toPrintable(report.engine)}${weights}; logprobs ${report.logprobs}`,
    `${compared} turns compared, ${differing} differ${counts.length > 0 ? `; skipped: ${counts.join(', ')}` : ''}`,
    ...(different.length > 0 ? ['', renderTable(COLUMNS, different.slice(0, MAX_ROWS)), ''] : []),
    ...(different.length > MAX_ROWS ? [`and ${different.length - MAX_ROWS} more`, ''] : []),
    ...(overall === null ? [] : formatOverallLines(overall)),
    formatControlLine(control, compared),
    report.verdict,
  ].join('\n')
}

function formatOverallLines({
  tokens,
  mean_difference,
  max_difference,
  mean_shift,
  ratio,
  ratio_outside,
}: Comparison): string[] {
  const quantiles = Object.entries(ratio).map(([name, value]) => `${name} ${figure(value)}`)
  return [
    `${tokens} tokens: mean difference ${figure(mean_difference)}, max ${figure(max_difference)}, shift ${figure(mean_shift)}`,
    `ratio: ${quantiles.join(', ')}; ${(100 * ratio_outside).toFixed(1)} % outside 0.9 to 1.1`,
  ]
}

function formatControlLine({ caught, turns }: VerifyReport['control'], compared: number): string {
  if (compared === 0) return 'nothing was compared'
  return caught
    ? 'control: the engine detected a prompt with one changed token'
    : `control: the engine did not detect a changed prompt in ${turns} turns, so the comparison proves nothing`
}
