/** Lists the rollouts that the proxy, or its rollout server, runs for trainers. */
import { getJson } from '../lib/api.ts'
import { formatAge, formatDuration, formatNumber, revealInvisible } from '../lib/format.ts'
import { useLoad, useTick } from '../lib/load.ts'
import { formatHref } from '../lib/route.ts'
import type { Rollout } from '../lib/wire.ts'
import { Await, Empty, Sources, Tag } from '../parts/parts.tsx'

/** The maximum number of rollouts that are shown, the latest first; the API returns all. */
const MAX_SHOWN = 500
const KINDS = { waiting: 'plain', running: 'plain', done: 'good', failed: 'bad', cancelled: 'warn' } as const
const COLUMNS = ['Rollout', 'Task', 'State', 'Reward', 'Attempts', 'Duration', 'Started', 'Session']

export function Rollouts() {
  const tick = useTick()
  const state = useLoad((stop) => getJson<{ rollouts: Rollout[] }>('rollouts', stop), [tick])
  return (
    <div class="engines scroll">
      <Await of={state}>{({ rollouts }) => <List rollouts={rollouts} />}</Await>
    </div>
  )
}

function List({ rollouts }: { rollouts: readonly Rollout[] }) {
  if (rollouts.length === 0) {
    return <Empty title="No rollout yet">A trainer starts one with POST /rollouts.</Empty>
  }
  const count = (status: Rollout['status']) => rollouts.filter((each) => each.status === status).length
  return (
    <>
      <p class="quiet">
        {formatNumber(count('running'))} running, {formatNumber(count('waiting'))} waiting,{' '}
        {formatNumber(count('done'))} done
        {rollouts.length > MAX_SHOWN && `; the latest ${formatNumber(MAX_SHOWN)} are shown`}
      </p>
      <table class="plain-table">
        <thead>
          <tr>
            {COLUMNS.map((title) => (
              <th key={title}>{title}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rollouts.slice(0, MAX_SHOWN).map((rollout) => (
            <Line key={rollout.rollout_id} rollout={rollout} />
          ))}
        </tbody>
      </table>
      <Sources paths={['rollouts']} />
    </>
  )
}

function Line({ rollout }: { rollout: Rollout }) {
  const { status, error, reward, tries, session_id: session, created_at: begun, ended_at: ended } = rollout
  return (
    <tr>
      <td class="id">{revealInvisible(rollout.rollout_id)}</td>
      <td>{revealInvisible(rollout.instance_id ?? '–')}</td>
      <td>
        <Tag kind={error === null ? KINDS[status] : 'bad'}>
          {error === null ? status : revealInvisible(error)}
        </Tag>
      </td>
      <td class="num">{reward === null ? '–' : formatNumber(reward)}</td>
      <td class="num">{tries ?? '–'}</td>
      <td class="time">{formatDuration(((ended ?? Date.now() / 1000) - begun) * 1000)}</td>
      <td class="time">{formatAge(begun)}</td>
      <td>
        {session === null ? '–' : <a href={formatHref(['session', session])}>{revealInvisible(session)}</a>}
      </td>
    </tr>
  )
}
