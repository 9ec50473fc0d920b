/** Compares the samples of one task: as a table of rewards, or their responses side by side. */
import { useMemo, useState } from 'preact/hooks'
import { formatSessionPath, getJson } from '../lib/api.ts'
import { formatDuration, formatNumber, formatShortNumber, revealInvisible } from '../lib/format.ts'
import { useKeys } from '../lib/keys.ts'
import { useLoad } from '../lib/load.ts'
import { formatHref, navigate, route, setQuery } from '../lib/route.ts'
import { formatGroupPath, loadEach, type Sample, toSamples } from '../lib/samples.ts'
import { listWeightVersions } from '../lib/turns.ts'
import type { Session, SessionList, Tree } from '../lib/wire.ts'
import { Labels, listLabels } from '../parts/labels.tsx'
import { Await, Bar, Chip, Empty, Reward, Sources, Tag } from '../parts/parts.tsx'
import { SampleColumns } from '../parts/sample-columns.tsx'

/** The maximum number of samples whose turns are loaded, above the usual size of a group. */
const MAX_TREES = 64

export function GroupScreen({ by, value }: { by: string; value: string }) {
  const path = formatGroupPath(by, value)
  const sessions = useLoad(async (stop) => (await getJson<SessionList>(path, stop)).sessions, [path])
  return (
    <div class="group scroll">
      <Await of={sessions}>
        {(found) =>
          found.length === 0 ? (
            <Empty title="No session of this group">
              It may have been deleted, or swept after its time to live.
            </Empty>
          ) : (
            <Samples by={by} value={value} sessions={found} />
          )
        }
      </Await>
      <Sources paths={[path]} />
    </div>
  )
}

function Samples({ by, value, sessions }: { by: string; value: string; sessions: readonly Session[] }) {
  const [selected, select] = useState(0)
  const [first, setFirst] = useState<string | undefined>()
  const { samples, mean, std, count, isFlat } = useMemo(() => toSamples(sessions), [sessions])
  const isSideBySide = route.value.query.get('view') === 'answers'
  const trees = useLoad(
    (stop) =>
      loadEach(samples.slice(0, MAX_TREES), (id) => getJson<Tree>(formatSessionPath(id, '/tree'), stop)),
    [samples],
  ).value
  const components = [...new Set(sessions.flatMap(({ reward_components }) => Object.keys(reward_components)))]
  const compare = (id: string) => {
    if (first === undefined || first === id) setFirst(first === id ? undefined : id)
    else navigate(formatHref(['compare'], { a: `${first}#0`, b: `${id}#0` }))
  }
  const withCurrent = (run: (id: string) => void) => () => {
    const current = samples[selected]?.session.session_id
    if (current !== undefined) run(current)
  }
  const changeView = () => setQuery({ view: isSideBySide ? undefined : 'answers' })
  useKeys([
    { key: 'j', help: 'Next sample', run: () => select((index) => Math.min(samples.length - 1, index + 1)) },
    { key: 'k', help: 'Previous sample', run: () => select((index) => Math.max(0, index - 1)) },
    {
      key: 'Enter',
      help: 'Open the sample',
      run: withCurrent((id) => navigate(formatHref(['session', id], { by }))),
    },
    { key: 'v', help: 'Responses side by side, or the table', run: changeView },
    { key: 'c', help: 'Compare two samples: press it on each', run: withCurrent(compare) },
  ])
  const ranges = findRanges(samples, components)
  return (
    <>
      <h1>
        <span class="quiet">{by} =</span> {revealInvisible(toReadable(value))}{' '}
        {isFlat && <Tag kind="warn">no variance: every advantage is 0</Tag>}
      </h1>
      <p class="summary">
        <b>{sessions.length}</b> samples, <b>{count}</b> with a reward · mean{' '}
        {count > 0 ? formatNumber(mean) : '–'} · std {count > 1 ? formatNumber(std) : '–'}
        {first !== undefined && <> · comparing {revealInvisible(first)} with … (press c on another)</>}
      </p>
      <div class="switches">
        <Chip on={!isSideBySide} onClick={changeView}>
          rewards
        </Chip>
        <Chip on={isSideBySide} onClick={changeView}>
          responses side by side
        </Chip>
      </div>
      {isSideBySide ? (
        <SampleColumns samples={samples} by={by} selected={selected} />
      ) : (
        <table class="plain-table">
          <SamplesHead components={components} />
          <tbody>
            {samples.map((sample, index) => (
              <SampleLine
                key={sample.session.session_id}
                by={by}
                sample={sample}
                tree={trees?.get(sample.session.session_id)}
                components={components}
                ranges={ranges}
                selected={index === selected}
                isFirst={sample.session.session_id === first}
                compare={compare}
              />
            ))}
          </tbody>
        </table>
      )}
    </>
  )
}

function SamplesHead({ components }: { components: readonly string[] }) {
  return (
    <thead>
      <tr>
        <th>Sample</th>
        <th>Reward</th>
        {components.map((name) => (
          <th key={name}>{revealInvisible(name)}</th>
        ))}
        <th title="the advantage of GRPO">(r − mean) / std</th>
        <th title="the advantage of Dr. GRPO, which does not divide by std">r − mean</th>
        <th>Turns</th>
        <th>Sampled</th>
        <th>Longest prompt</th>
        <th>Time</th>
        <th>Weights</th>
        <td />
      </tr>
    </thead>
  )
}

/** The ranges of the columns with bars, each of which includes zero. */
interface Ranges {
  reward: [number, number]
  centred: [number, number]
  normed: [number, number]
  tokens: [number, number]
  components: ReadonlyMap<string, [number, number]>
}

function findRanges(samples: readonly Sample[], components: readonly string[]): Ranges {
  const getRange = (measure: (sample: Sample) => number | null | undefined): [number, number] => {
    const known = samples.flatMap((sample) => measure(sample) ?? [])
    return [Math.min(0, ...known), Math.max(0, ...known)]
  }
  return {
    reward: getRange(({ session }) => session.reward),
    centred: getRange(({ centred }) => centred),
    normed: getRange(({ normed }) => normed),
    tokens: getRange(({ session }) => session.sampled_tokens),
    components: new Map(
      components.map((name) => [name, getRange(({ session }) => session.reward_components[name])]),
    ),
  }
}

interface SampleLineProps {
  /** The metadata key of the group. */
  by: string
  sample: Sample
  /** The turns; undefined: not loaded yet. */
  tree: Tree | undefined
  components: readonly string[]
  ranges: Ranges
  selected: boolean
  /** Whether this is the first of the two samples to compare. */
  isFirst: boolean
  compare(sessionId: string): void
}

function SampleLine(props: SampleLineProps) {
  const { by, sample, tree, components, ranges, selected, isFirst, compare } = props
  const { session, centred, normed } = sample
  const { session_id: id, created_at: createdAt, updated_at: updatedAt } = session
  return (
    <tr class={selected ? 'selected' : ''}>
      <td class="id">
        <i class={`dot ${session.open_turns > 0 ? 'live' : session.status}`} title={session.status} />
        <a href={formatHref(['session', id], { by })}>{revealInvisible(id)}</a>{' '}
        <Labels of={listLabels(session)} />
      </td>
      <td>
        <Measure value={session.reward} range={ranges.reward} kind="reward" />
      </td>
      {components.map((name) => (
        <td key={name}>
          <Measure
            value={session.reward_components[name] ?? null}
            range={ranges.components.get(name)!}
            kind="component"
          />
        </td>
      ))}
      <td>
        <Measure value={normed} range={ranges.normed} kind="advantage" />
      </td>
      <td>
        <Measure value={centred} range={ranges.centred} kind="advantage" />
      </td>
      <td class="num">
        {session.turn_count}
        {session.failed_turns > 0 && <em class="bad"> ✗{session.failed_turns}</em>}
        {session.inexact_turns > 0 && <em class="warn"> ≈{session.inexact_turns}</em>}
      </td>
      <td>
        <Measure value={session.sampled_tokens} range={ranges.tokens} kind="tokens" />
      </td>
      <td class="num">{formatLongestPrompt(tree)}</td>
      <td class="num">{formatDuration((updatedAt - createdAt) * 1000)}</td>
      <td>{formatWeights(tree)}</td>
      <td>
        <button type="button" class={isFirst ? 'on' : ''} onClick={() => compare(id)}>
          compare
        </button>
      </td>
    </tr>
  )
}

function Measure({ value, range, kind }: { value: number | null; range: [number, number]; kind: string }) {
  if (value === null) return <span class="quiet">–</span>
  return (
    <span class="measure">
      <span class="num">
        {kind === 'reward' ? (
          <Reward value={value} />
        ) : kind === 'tokens' ? (
          formatShortNumber(value)
        ) : (
          formatNumber(value)
        )}
      </span>
      <Bar value={value} range={range} kind={kind} />
    </span>
  )
}

function formatLongestPrompt(tree: Tree | undefined): string {
  return tree === undefined
    ? '…'
    : formatShortNumber(tree.turns.reduce((most, turn) => Math.max(most, turn.prompt_tokens), 0))
}

function formatWeights(tree: Tree | undefined): string {
  return tree === undefined ? '…' : listWeightVersions(tree.turns).map(revealInvisible).join(' → ') || '–'
}

function toReadable(value: string): string {
  try {
    return String(JSON.parse(value))
  } catch {
    return value
  }
}
