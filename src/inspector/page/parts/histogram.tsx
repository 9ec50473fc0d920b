import { formatNumber } from '../lib/format.ts'
import type { Totals } from '../lib/wire.ts'

interface HistogramProps {
  rewards: Totals['rewards']
  /** The limits of the selected range; null: none. */
  min: string | null
  max: string | null
  pick(range: { reward_min: string | undefined; reward_max: string | undefined }): void
}

/** The distribution of rewards; a click on a bar filters the sessions by its range. */
export function Histogram({ rewards, min, max, pick }: HistogramProps) {
  const { histogram } = rewards
  const picked = min !== null || max !== null
  if (histogram.length === 0 && !picked) return null
  const highest = Math.max(1, ...histogram.map(({ count }) => count))
  const clear = () => pick({ reward_min: undefined, reward_max: undefined })
  return (
    <span class="histogram">
      {histogram.map(({ from, to, count }) => (
        <button
          type="button"
          key={from}
          title={`reward ${formatNumber(from)}${to > from ? ` to ${formatNumber(to)}` : ''}: ${formatNumber(count)} sessions`}
          onClick={() =>
            picked && histogram.length === 1
              ? clear()
              : pick({ reward_min: String(from), reward_max: String(to) })
          }
        >
          <svg viewBox="0 0 10 30" preserveAspectRatio="none" role="img" aria-label={formatNumber(count)}>
            <rect
              x="1"
              width="8"
              y={30 - Math.max(1, (count / highest) * 30)}
              height={Math.max(1, (count / highest) * 30)}
            />
          </svg>
        </button>
      ))}
      <span class="ends">
        {picked ? (
          <button type="button" class="chip on" onClick={clear}>
            reward {min !== null && formatNumber(Number(min))}
            {max !== min && ` to ${max === null ? '' : formatNumber(Number(max))}`} ✕
          </button>
        ) : (
          `reward ${formatNumber(rewards.min)} … ${formatNumber(rewards.max)}`
        )}
      </span>
    </span>
  )
}
