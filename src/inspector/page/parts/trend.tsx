/** Groups that are numbers, such as the steps of a run, over each other: one figure at a time. */
import { useMemo, useState } from 'preact/hooks'
import type uPlot from 'uplot'
import type { Group } from '../lib/wire.ts'
import { Chart } from './chart.tsx'
import { Chip } from './parts.tsx'

const MIN_POINTS = 3

const FIGURES: Record<string, (group: Group) => number | null> = {
  'mean reward': ({ rewards }) => rewards.mean,
  'turns a session': ({ turns, sessions }) => turns / sessions,
  'tokens a session': ({ sampled_tokens: sampled, sessions }) => sampled / sessions,
  'failed sessions': ({ failed }) => failed,
  'inexact sessions': ({ inexact }) => inexact,
}

/** Nothing where values are words, or too few. */
export function Trend({ groups, open }: { groups: readonly Group[]; open(group: Group): void }) {
  const [figure, setFigure] = useState('mean reward')
  const points = useMemo(() => pointsOf(groups), [groups])
  const data = useMemo(
    (): uPlot.AlignedData => [points.map(({ x }) => x), points.map(({ group }) => FIGURES[figure]!(group))],
    [points, figure],
  )
  if (points.length < MIN_POINTS || points.length < groups.length) return null
  return (
    <div class="trend">
      <div class="filters">
        {Object.keys(FIGURES).map((name) => (
          <Chip key={name} on={name === figure} onClick={() => setFigure(name)}>
            {name}
          </Chip>
        ))}
      </div>
      <Chart
        data={data}
        hasPoints={points.length < 100}
        range={(low, high) => [Math.min(0, low), Math.max(high, low + 1e-9)]}
        pick={(x) => open(points.find((point) => point.x === x)!.group)}
      />
    </div>
  )
}

function pointsOf(groups: readonly Group[]): { x: number; group: Group }[] {
  return groups
    .map((group) => ({ x: group.value === '' ? Number.NaN : Number(group.value), group }))
    .filter(({ x, group }) => Number.isFinite(x) && typeof group.value !== 'boolean')
    .sort((one, other) => one.x - other.x)
}
