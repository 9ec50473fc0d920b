/** Lists groups of sessions, usually the samples of one task each, with the distribution of their rewards. */
import { useState } from 'preact/hooks'
import { getJson } from '../lib/api.ts'
import { formatAge, formatNumber, formatShortNumber, revealInvisible } from '../lib/format.ts'
import { useKeys } from '../lib/keys.ts'
import { useLoad } from '../lib/load.ts'
import { formatHref, navigate, route, setQuery } from '../lib/route.ts'
import { GROUP_KEYS } from '../lib/samples.ts'
import type { Group, Groups as GroupsResponse, SessionList } from '../lib/wire.ts'
import { Await, Bar, Empty, Sources } from '../parts/parts.tsx'
import { Trend } from '../parts/trend.tsx'
import { VirtualRows } from '../parts/virtual-table.tsx'

export function Groups() {
  const keys = useLoad((stop) => getJson<SessionList>('sessions?limit=100', stop), []).value
  const known = [...new Set(keys?.sessions.flatMap(({ metadata }) => Object.keys(metadata)) ?? [])]
  const by = route.value.query.get('by') ?? GROUP_KEYS.find((key) => known.includes(key)) ?? known[0]
  const options = by === undefined || known.includes(by) ? known : [by, ...known]
  return (
    <div class="groups">
      <div class="filters">
        <label>
          by metadata{' '}
          <select value={by} onChange={(event) => setQuery({ by: event.currentTarget.value })}>
            {options.map((key) => (
              <option key={key}>{key}</option>
            ))}
          </select>
        </label>
        <span class="quiet">a key that all samples of one task share</span>
      </div>
      {keys !== undefined && by === undefined ? (
        <Empty title="No groups yet">
          Sessions are grouped by a value of their metadata, such as <code>instance_id</code>; no session has
          metadata yet.
        </Empty>
      ) : (
        by !== undefined && <GroupTable by={by} />
      )}
    </div>
  )
}

function GroupTable({ by }: { by: string }) {
  const path = `groups?by=${encodeURIComponent(by)}&limit=100000`
  const response = useLoad((stop) => getJson<GroupsResponse>(path, stop), [path])
  const [selected, select] = useState(0)
  const groups = response.value?.groups ?? []
  const move = (to: number) => select((index) => Math.max(0, Math.min(groups.length - 1, index + to)))
  useKeys([
    { key: 'j', help: 'Next group', run: () => move(1) },
    { key: 'k', help: 'Previous group', run: () => move(-1) },
    {
      key: 'Enter',
      help: 'Open the group',
      run: () => groups[selected] && navigate(formatGroupHref(by, groups[selected])),
    },
  ])
  const means = groups.flatMap(({ rewards }) => rewards.mean ?? [])
  const range: [number, number] = [
    means.reduce((a, b) => Math.min(a, b), 0),
    means.reduce((a, b) => Math.max(a, b), 0),
  ]
  return (
    <Await of={response}>
      {() => (
        <>
          <Trend groups={groups} path={path} open={(group) => navigate(formatGroupHref(by, group))} />
          <div class="table groups-table">
            <div class="head row">
              {['Group', 'Samples', 'Mean', '', 'Std', 'Min … max', 'Failed', 'Sampled', 'First'].map(
                (title, index) => (
                  <span key={index}>{title}</span>
                ),
              )}
            </div>
            {groups.length === 0 ? (
              <Empty title="No groups">No session has this metadata.</Empty>
            ) : (
              <VirtualRows count={groups.length} selected={selected}>
                {(index) => (
                  <GroupRow by={by} group={groups[index]!} range={range} selected={index === selected} />
                )}
              </VirtualRows>
            )}
          </div>
          <Sources paths={[path]} />
        </>
      )}
    </Await>
  )
}

function formatGroupHref(by: string, { value }: Group): string {
  return formatHref(['group', by, JSON.stringify(value)])
}

function GroupRow({
  by,
  group,
  range,
  selected,
}: {
  by: string
  group: Group
  range: [number, number]
  selected: boolean
}) {
  const { rewards } = group
  return (
    <a class={selected ? 'cells selected' : 'cells'} href={formatGroupHref(by, group)}>
      <span class="id">{revealInvisible(String(group.value))}</span>
      <span class="num">{group.sessions}</span>
      <span class="num">{formatNumber(rewards.mean)}</span>
      <span>{rewards.mean !== null && <Bar value={rewards.mean} range={range} kind="reward" />}</span>
      <span class="num">
        {group.zero_variance ? (
          <em class="tag warn" title="all rewards are equal: an advantage of 0">
            no variance
          </em>
        ) : (
          formatNumber(rewards.std)
        )}
      </span>
      <span class="num">
        {rewards.count > 0 ? `${formatNumber(rewards.min)} … ${formatNumber(rewards.max)}` : '–'}
      </span>
      <span class="num">{group.failed > 0 ? <em class="bad">{group.failed}</em> : '–'}</span>
      <span class="num">{formatShortNumber(group.sampled_tokens)}</span>
      <span class="time">{formatAge(group.created_at)}</span>
    </a>
  )
}
