/** A chart of one statistic over groups with numeric values, such as the steps of a run. */
import { useMemo, useState } from 'preact/hooks'
import type uPlot from 'uplot'
import { getJson } from '../lib/api.ts'
import { revealInvisible } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import type { Group, Groups } from '../lib/wire.ts'
import { Chart } from './chart.tsx'
import { Chip } from './parts.tsx'

/** The minimum number of groups for a chart. */
const MIN_POINTS = 3

/** A function that returns a statistic of a group; null: the group has none. */
type Figure = (group: Group) => number | null

const FIGURES: Record<string, Figure> = {
  'mean reward': ({ rewards }) => rewards.mean,
  'turns per session': ({ turns, sessions }) => turns / sessions,
  'tokens per session': ({ sampled_tokens: sampled, sessions }) => sampled / sessions,
  'failed sessions': ({ failed }) => failed,
  'inexact sessions': ({ inexact }) => inexact,
}

const ofTurns =
  (figure: (turns: NonNullable<Group['of_turns']>) => number | null): Figure =>
  ({ of_turns: turns }) =>
    turns ? figure(turns) : null

/** Statistics of turns, which are expensive to compute and therefore loaded only when they are selected. */
const TURN_FIGURES: Record<string, Figure> = {
  'rows per session': ofTurns(({ rows, sessions }) => rows / sessions),
  'truncated turns, %': ofTurns(({ truncated, turns }) => (turns === 0 ? null : (100 * truncated) / turns)),
  'staleness, versions': ofTurns(({ staleness }) => staleness),
}

interface TrendProps {
  groups: readonly Group[]
  /** The path from which the groups were loaded. */
  path: string
  open(group: Group): void
}

/** Renders the chart; nothing if the value of a group is not a number, or if there are too few groups. */
export function Trend({ groups, path, open }: TrendProps) {
  const [name, setName] = useState('mean reward')
  const isOfTurns = name in TURN_FIGURES
  const read = useLoad(
    async (stop) => (isOfTurns ? (await getJson<Groups>(`${path}&turns=true`, stop)).groups : undefined),
    [path, isOfTurns],
  )
  const components = useMemo(() => getComponentFigures(groups), [groups])
  const figures: Record<string, Figure> = { ...FIGURES, ...components, ...TURN_FIGURES }
  const shown = isOfTurns ? read.value : groups
  const points = useMemo(() => toPoints(shown ?? groups), [shown, groups])
  const data = useMemo((): uPlot.AlignedData => {
    const figure = figures[name] ?? FIGURES['mean reward']!
    return [points.map(({ x }) => x), points.map(({ group }) => figure(group))]
  }, [points, name])
  if (points.length < MIN_POINTS || points.length < groups.length) return null
  return (
    <div class="trend">
      <div class="filters">
        {Object.keys(figures).map((each) => (
          <Chip key={each} on={each === name} onClick={() => setName(each)}>
            {revealInvisible(each)}
          </Chip>
        ))}
        {isOfTurns && (
          <span class="quiet">
            {read.error
              ? read.error.message
              : shown
                ? 'of the latest 16 sessions of each group'
                : 'Reading turns …'}
          </span>
        )}
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

function getComponentFigures(groups: readonly Group[]): Record<string, Figure> {
  const names = new Set(groups.flatMap(({ reward_components: components }) => Object.keys(components)))
  return Object.fromEntries(
    [...names].map((name) => [`reward: ${name}`, ({ reward_components: means }) => means[name] ?? null]),
  )
}

function toPoints(groups: readonly Group[]): { x: number; group: Group }[] {
  return groups
    .map((group) => ({ x: group.value === '' ? Number.NaN : Number(group.value), group }))
    .filter(({ x, group }) => Number.isFinite(x) && typeof group.value !== 'boolean')
    .sort((one, other) => one.x - other.x)
}
