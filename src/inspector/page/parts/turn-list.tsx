/** Lists the turns of a session, with bars that show the shared prefix of their prompts, or their times. */
import { formatDuration, formatNumber, formatShortNumber, revealInvisible } from '../lib/format.ts'
import { getRoleKind, getTurnTimes, isRowSplit, type Span } from '../lib/turns.ts'
import type { TreeTurn } from '../lib/wire.ts'
import { Reward } from './parts.tsx'
import { VirtualRows } from './virtual-table.tsx'

interface TurnListProps {
  turns: readonly TreeTurn[]
  /** Rewards of turns by index; turns without one are absent. */
  rewards: Readonly<Record<string, number>>
  selected: number
  /** The time span of bars that show when the requests ran; undefined: bars show tokens. */
  span: Span | undefined
  select(index: number): void
}

export function TurnList({ turns, rewards, selected, span, select }: TurnListProps) {
  const most = turns.reduce((max, turn) => Math.max(max, turn.prompt_tokens + turn.sampled_tokens), 1)
  const isRewarded = Object.keys(rewards).length > 0
  return (
    <div class={isRewarded ? 'table turn-list rewarded' : 'table turn-list'}>
      <div class="head row">
        <span>Turn</span>
        <span>
          <BarKey isTimed={span !== undefined} />
        </span>
        <span>Tokens</span>
        {isRewarded && <span>Reward</span>}
        <span>End</span>
        <span>Time</span>
      </div>
      <VirtualRows count={turns.length} selected={selected}>
        {(index) => (
          <Line
            turn={turns[index]!}
            reward={isRewarded ? (rewards[turns[index]!.index] ?? null) : undefined}
            most={most}
            span={span}
            selected={index === selected}
            select={() => select(index)}
          />
        )}
      </VirtualRows>
    </div>
  )
}

function Line({
  turn,
  reward,
  most,
  span,
  selected,
  select,
}: {
  turn: TreeTurn
  /** The turn's reward; undefined: no turn of the session has one. */
  reward: number | null | undefined
  most: number
  /** The time span of the bar; undefined: the bar shows tokens. */
  span: Span | undefined
  selected: boolean
  select(): void
}) {
  const broken = isRowSplit(turn)
  const end = findExclusionReason(turn) ?? turn.error?.code ?? turn.finish_reason ?? turn.status
  const isBad = turn.status === 'failed' || turn.status === 'interrupted'
  return (
    <button
      type="button"
      class={selected ? 'cells selected' : 'cells'}
      onClick={select}
      title={describeTurn(turn)}
    >
      <span class="num">
        <i class={`line-dot ${getRoleKind(turn.agent_role)}`} />
        {turn.index}
        {(turn.labels.length > 0 || turn.note !== null) && <b title={formatLabelsLine(turn)}>⚑</b>}
      </span>
      <span class="prefix">
        {span ? <TimeBar turn={turn} span={span} /> : <PrefixBar turn={turn} most={most} />}
        {broken && (
          <em class="broke" title={describeTurn(turn)}>
            ✂ {turn.new_row?.turn}
          </em>
        )}
      </span>
      <span class="num">
        {formatShortNumber(turn.prompt_tokens)} <b>+{formatShortNumber(turn.sampled_tokens)}</b>
      </span>
      {reward !== undefined && (
        <span class="num">
          <Reward value={reward} />
        </span>
      )}
      <span class={isBad ? 'bad' : turn.status === 'open' ? 'live-text' : turn.exact ? 'quiet' : 'warn'}>
        {!turn.exact && turn.status === 'completed' && '≈ '}
        {revealInvisible(end)}
      </span>
      <span class="num quiet">{formatDuration(turn.duration_ms)}</span>
    </button>
  )
}

function PrefixBar({ turn, most }: { turn: TreeTurn; most: number }) {
  const scale = (tokens: number) => (tokens / most) * 200
  const [shared, prompt, sampled] = [
    scale(turn.shared_tokens),
    scale(turn.prompt_tokens),
    scale(turn.sampled_tokens),
  ]
  return (
    <svg
      class="prefix-bar"
      viewBox="0 0 200 10"
      preserveAspectRatio="none"
      role="img"
      aria-label={describeTurn(turn)}
    >
      <rect class="track" x="0" y="0" width="200" height="10" />
      <rect class="reused" x="0" y="0" width={shared} height="10" />
      <rect class="new" x={shared} y="0" width={Math.max(0, prompt - shared)} height="10" />
      <rect
        class="sampled"
        x={prompt}
        y="0"
        width={Math.max(sampled, turn.sampled_tokens > 0 ? 0.8 : 0)}
        height="10"
      />
      {isRowSplit(turn) && <rect class="cut" x={Math.max(0, shared - 0.8)} y="0" width="1.6" height="10" />}
    </svg>
  )
}

function BarKey({ isTimed }: { isTimed: boolean }) {
  if (isTimed)
    return (
      <>
        <i class="key new" />
        waiting <i class="key sampled" />
        sampling
      </>
    )
  return (
    <>
      <i class="key reused" />
      old <i class="key new" />
      new <i class="key sampled" />
      sampled
    </>
  )
}

function TimeBar({ turn, span: { fromMs, toMs } }: { turn: TreeTurn; span: Span }) {
  const { startMs, firstMs, endMs } = getTurnTimes(turn, toMs)
  const scale = (ms: number) => (ms / Math.max(1, toMs - fromMs)) * 200
  const label = `began after ${formatDuration(startMs - fromMs)}, first token after ${formatDuration(turn.first_token_ms)}, took ${formatDuration(turn.duration_ms)}`
  return (
    <svg class="prefix-bar" viewBox="0 0 200 10" preserveAspectRatio="none" role="img" aria-label={label}>
      <title>{label}</title>
      <rect class="track" x="0" y="0" width="200" height="10" />
      <rect class="new" x={scale(startMs - fromMs)} y="0" width={scale(firstMs - startMs)} height="10" />
      <rect
        class="sampled"
        x={scale(firstMs - fromMs)}
        y="0"
        width={Math.max(scale(endMs - firstMs), 0.8)}
        height="10"
      />
    </svg>
  )
}

function formatLabelsLine({ labels, note }: TreeTurn): string {
  return [labels.join(', '), note ?? ''].filter((part) => part !== '').join(': ')
}

/** Returns why a turn is excluded from training, for the reasons that its status does not show. */
function findExclusionReason({ excluded }: TreeTurn): string | undefined {
  return excluded === 'superseded' || excluded === 'rejected' ? excluded : undefined
}

function describeTurn(turn: TreeTurn): string {
  const { shared_tokens: shared, prompt_tokens: prompt, parent, new_row: begins } = turn
  const rest = `${formatNumber(prompt - shared)} new, ${formatNumber(turn.sampled_tokens)} sampled`
  const inexact = turn.inexact_reason === null ? '' : `; inexact: ${turn.inexact_reason}`
  const excluded = turn.excluded === null ? '' : `in no row: ${turn.excluded}; `
  const row = begins === null ? excluded : `${excluded}a new row: ${begins.text}; `
  if (parent === null) return `${row}${rest}${inexact}`
  const from = turn.continues ? 'continues' : 'shares a prefix with'
  return `${row}${from} turn ${parent}: ${formatNumber(shared)} tokens re-used, ${rest}${inexact}`
}
