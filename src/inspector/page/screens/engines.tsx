/** Shows engines and workers, the queue, and how prompts were built. */
import { getJson } from '../lib/api.ts'
import { formatAge, formatDuration, formatNumber, revealInvisible } from '../lib/format.ts'
import { useLoad, useTick } from '../lib/load.ts'
import type { Health, Member } from '../lib/wire.ts'
import { Await, Bar, Empty, Sources, Tag } from '../parts/parts.tsx'

export function Engines() {
  const tick = useTick()
  const state = useLoad(
    async (stop) => {
      const health = await getJson<Health>('health', stop)
      const members = health.mode === 'view' ? [] : await getJson<Member[]>('admin/workers', stop)
      return { health, members }
    },
    [tick],
  )
  return (
    <div class="engines scroll">
      <Await of={state}>{({ health, members }) => <State health={health} members={members} />}</Await>
    </div>
  )
}

function countRequests(members: readonly Member[]): number {
  return members.reduce((sum, { load }) => sum + load, 0)
}

/** Returns the engines and workers that have a warning, such as token ids missing from streams. */
function getWarnings({ engines = [], workers = [] }: Health) {
  return [...engines, ...workers].filter(({ warning }) => warning !== undefined)
}

function State({ health, members }: { health: Health; members: readonly Member[] }) {
  if (health.mode === 'view') {
    return (
      <Empty title="A database without a proxy">
        The data was read from <code>{health.db}</code>; engines belong to the proxy that wrote it.
      </Empty>
    )
  }
  const isRelay = health.mode === 'relay'
  return (
    <>
      <Cards health={health} members={members} isRelay={isRelay} />
      {getWarnings(health).map(({ name, warning }) => (
        <p key={name} class="warn" role="status">
          {revealInvisible(`${name}: ${warning}`)}
        </p>
      ))}
      {members.length === 0 ? (
        <Empty title={isRelay ? 'No worker is connected' : 'No engine is registered'}>
          Requests wait for one, and fail after a timeout.
        </Empty>
      ) : (
        <Members members={members} />
      )}
      <h2>Prompts by origin</h2>
      <PromptReasons counts={health.prompts ?? {}} />
      {health.notes?.map((note) => (
        <p key={note} class="note">
          {revealInvisible(note)}
        </p>
      ))}
      <Sources paths={['health', 'admin/workers']} />
    </>
  )
}

interface CardsProps {
  health: Health
  members: readonly Member[]
  isRelay: boolean
}

function Cards({ health, members, isRelay }: CardsProps) {
  const versions = [...new Set(members.flatMap(({ weight_version }) => weight_version ?? []))]
  return (
    <div class="cards">
      <Card title="state">
        {health.paused ? (
          <Tag kind="warn">paused</Tag>
        ) : (
          <Tag kind={health.status === 'ok' ? 'good' : 'bad'}>{health.status}</Tag>
        )}{' '}
        {getWarnings(health).length > 0 && <Tag kind="warn">warnings</Tag>}
      </Card>
      <Card title={isRelay ? 'workers' : 'engines'}>
        {members.filter(({ healthy }) => healthy).length} <small>of {members.length} healthy</small>
      </Card>
      <Card title="in flight">{countRequests(members)}</Card>
      <Card title="waiting">{health.queued ?? 0}</Card>
      <Card title="weights">
        {versions.length === 0 ? '–' : versions.map((version) => revealInvisible(version)).join(', ')}
        {versions.length > 1 && <Tag kind="warn">differ</Tag>}
      </Card>
      <Card title="up for">{formatDuration((health.uptime_s ?? 0) * 1000)}</Card>
    </div>
  )
}

function Card({ title, children }: { title: string; children: preact.ComponentChildren }) {
  return (
    <div class="card">
      <span class="quiet">{title}</span>
      <strong>{children}</strong>
    </div>
  )
}

const MEMBER_COLUMNS = ['Member', 'API', 'State', 'Load', 'Models', 'Weights', 'Since']

function Members({ members }: { members: readonly Member[] }) {
  const most = Math.max(1, ...members.map(({ load, max_concurrency }) => Math.max(load, max_concurrency)))
  return (
    <table class="plain-table">
      <thead>
        <tr>
          {MEMBER_COLUMNS.map((title) => (
            <th key={title} colSpan={title === 'Load' ? 2 : 1}>
              {title}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {members.map((member) => (
          <MemberLine key={member.worker_id} member={member} most={most} />
        ))}
      </tbody>
    </table>
  )
}

/** Shows one engine or worker. @param most the largest load or limit of all members */
function MemberLine({ member, most }: { member: Member; most: number }) {
  const { engine, load, max_concurrency: limit } = member
  return (
    <tr>
      <td class="id">
        <i class={`dot ${member.healthy ? 'live' : 'aborted'}`} />
        {revealInvisible(member.url || member.worker_id)}
      </td>
      <td>{engine ?? `worker, protocol ${member.version}`}</td>
      <td>
        {member.draining ? (
          <Tag kind="warn">draining</Tag>
        ) : member.healthy ? (
          <Tag kind="good">healthy</Tag>
        ) : (
          <Tag kind="bad">{revealInvisible(member.error ?? 'down')}</Tag>
        )}
      </td>
      <td class="num">
        {load} / {limit}
      </td>
      <td>
        <Bar value={load} range={[0, Math.min(most, limit)]} kind="tokens" />
      </td>
      <td>{revealInvisible(member.models.join(', ') || '–')}</td>
      <td>{revealInvisible(member.weight_version ?? '–')}</td>
      <td class="time">{formatAge(member.connected_since)}</td>
    </tr>
  )
}

function PromptReasons({ counts }: { counts: Readonly<Record<string, number>> }) {
  const reasons = Object.entries(counts).sort(([, a], [, b]) => b - a)
  if (reasons.length === 0) return <p class="quiet">No request has been served since the start.</p>
  const prompts = reasons.reduce((sum, [, count]) => sum + count, 0)
  return (
    <table class="plain-table narrow">
      <tbody>
        {reasons.map(([reason, count]) => (
          <tr key={reason}>
            <td>{reason}</td>
            <td class="num">{formatNumber(count)}</td>
            <td>
              <Bar value={count} range={[0, prompts]} kind="reward" />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}
