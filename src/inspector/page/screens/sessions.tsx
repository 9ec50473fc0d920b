/** Lists all sessions, with filters, sorting and search. */
import type { RefObject } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { formatSessionPath, getJson, IS_FILE } from '../lib/api.ts'
import { useEvents } from '../lib/events.ts'
import { formatAge, formatNumber, formatShortNumber, revealInvisible } from '../lib/format.ts'
import { useKeys } from '../lib/keys.ts'
import { useLoad } from '../lib/load.ts'
import { formatHref, navigate, route, setQuery } from '../lib/route.ts'
import type { Session, SessionList, Totals } from '../lib/wire.ts'
import { Histogram } from '../parts/histogram.tsx'
import { Labels, listLabels } from '../parts/labels.tsx'
import { Chip, Empty, Reward, Sources } from '../parts/parts.tsx'
import { PreviewLine } from '../parts/preview.tsx'
import { VirtualRows } from '../parts/virtual-table.tsx'

/** The number of sessions per request. */
const PAGE = 500

const COLUMNS = [
  { name: '', title: 'Session' },
  { name: 'turns', title: 'Turns' },
  { name: 'tokens', title: 'Sampled' },
  { name: 'reward', title: 'Reward' },
  { name: '', title: 'Metadata, task → last answer' },
  { name: 'changed', title: 'Changed' },
  { name: 'created', title: 'Created' },
] as const

/** The maximum number of labels that are offered as filters. */
const MAX_LABELS = 8

/** The prefix of metadata names in the query. */
const METADATA = 'metadata.'

const CHIPS = [
  { title: 'active', name: 'status', value: 'active', count: (totals: Totals) => totals.active },
  { title: 'completed', name: 'status', value: 'completed', count: (totals: Totals) => totals.completed },
  { title: 'aborted', name: 'status', value: 'aborted', count: (totals: Totals) => totals.aborted },
  { title: 'failed turns', name: 'failed', value: 'true', count: (totals: Totals) => totals.failed },
  { title: 'inexact turns', name: 'inexact', value: 'true', count: (totals: Totals) => totals.inexact },
] as const

/** Loads as many pages of the list as are needed, in sequence: each page contains the cursor of the next. */
function usePages(query: string, refresh: number) {
  const [sessions, setSessions] = useState<readonly Session[]>([])
  const [wanted, setWanted] = useState(PAGE)
  const cursor = useRef<string | null>('')
  const first = useLoad(
    (stop) => getJson<SessionList>(`sessions?limit=${PAGE}&totals=true&${query}`, stop),
    [query, refresh],
  )
  useEffect(() => {
    if (first.value === undefined) return
    cursor.current = first.value.next_cursor
    setSessions(first.value.sessions)
  }, [first.value])
  const loading = useRef(false)
  const [tick, setTick] = useState(0)
  useEffect(() => {
    if (loading.current || !cursor.current || sessions.length >= wanted) return
    loading.current = true
    getJson<SessionList>(`sessions?limit=${PAGE}&${query}&cursor=${cursor.current}`).then(
      (page) => {
        cursor.current = page.next_cursor
        setSessions((before) => [...before, ...page.sessions])
        loading.current = false
        setTick((before) => before + 1)
      },
      () => (loading.current = false),
    )
  }, [wanted, sessions, tick])
  return {
    first,
    sessions,
    totals: first.value?.totals,
    need: (count: number) => setWanted((before) => Math.max(before, count)),
  }
}

function listQuery(): string {
  const wanted = new URLSearchParams()
  for (const [name, value] of route.value.query) if (value !== '') wanted.set(name, value)
  return wanted.toString()
}

export function Sessions() {
  const [refresh, setRefresh] = useState(0)
  useEvents(() => setRefresh((before) => before + 1))
  const query = listQuery()
  const { first, sessions, totals, need } = usePages(query, refresh)
  const [selected, select] = useState(0)
  const search = useRef<HTMLInputElement>(null)
  const count = totals?.sessions ?? sessions.length
  const move = (by: number) => select((index) => Math.max(0, Math.min(count - 1, index + by)))
  const open = () => {
    const session = sessions[selected]
    if (session) navigate(formatHref(['session', session.session_id]))
  }
  useKeys([
    { key: 'j', help: 'Next session', run: () => move(1) },
    { key: 'k', help: 'Previous session', run: () => move(-1) },
    { key: 'ArrowDown', help: 'Next session', run: () => move(1) },
    { key: 'ArrowUp', help: 'Previous session', run: () => move(-1) },
    { key: 'Enter', help: 'Open the session', run: open },
    { key: '/', help: 'Search', run: () => search.current?.focus() },
  ])
  return (
    <div class="sessions">
      {!IS_FILE && <Filters search={search} totals={totals} labels={collectLabels(sessions)} />}
      {totals && <Summary of={totals} />}
      <div class="table sessions-table">
        <div class="head row">
          {COLUMNS.map(({ name, title }) => (
            <Heading key={title} name={name} title={title} />
          ))}
        </div>
        {first.error ? (
          <Empty title="The sessions could not be read">{first.error.message}</Empty>
        ) : count === 0 && !first.loading ? (
          <NoSessions />
        ) : (
          <VirtualRows count={count} selected={selected} onSight={(_from, last) => need(last)}>
            {(index) => <SessionRow session={sessions[index]} selected={index === selected} />}
          </VirtualRows>
        )}
      </div>
      <Sources paths={[`sessions?limit=100${query && `&${query}`}`]} />
    </div>
  )
}

interface FiltersProps {
  /** The search field, which the key `/` focuses. */
  search: RefObject<HTMLInputElement | null>
  /** Totals; undefined: not loaded yet. */
  totals: Totals | undefined
  /** The labels of the sessions that are shown. */
  labels: readonly string[]
}

function Filters({ search, totals, labels }: FiltersProps) {
  const query = route.value.query
  const label = query.get('label')
  const metadata = [...query].filter(([name]) => name.startsWith(METADATA))
  return (
    <div class="filters">
      <input
        ref={search}
        type="search"
        placeholder="Search ids, metadata, notes   /"
        aria-label="Search"
        value={query.get('q') ?? ''}
        onInput={(event) => setQuery({ q: event.currentTarget.value })}
        onKeyDown={(event) => event.key === 'Escape' && event.currentTarget.blur()}
      />
      {CHIPS.map(({ title, name, value, count }) => {
        const on = query.get(name) === value
        return (
          <Chip key={title} on={on} onClick={() => setQuery({ [name]: on ? undefined : value })}>
            {title} {totals && <span>{formatNumber(count(totals))}</span>}
          </Chip>
        )
      })}
      {(label ? [label] : labels).map((each) => (
        <Chip
          key={each}
          on={label === each}
          onClick={() => setQuery({ label: label === each ? undefined : each })}
        >
          ⚑ {revealInvisible(each)}
        </Chip>
      ))}
      {metadata.map(([name, value]) => (
        <Chip key={name} on onClick={() => setQuery({ [name]: undefined })}>
          {name.slice(METADATA.length)} = {revealInvisible(value)} ✕
        </Chip>
      ))}
      {totals && (
        <Histogram
          rewards={totals.rewards}
          min={query.get('reward_min')}
          max={query.get('reward_max')}
          pick={setQuery}
        />
      )}
    </div>
  )
}

function Summary({ of: { sessions, turns, sampled_tokens: sampled, rewards } }: { of: Totals }) {
  return (
    <p class="summary">
      <b>{formatNumber(sessions)}</b> sessions · <b>{formatShortNumber(turns)}</b> turns ·{' '}
      <b>{formatShortNumber(sampled)}</b> tokens sampled · reward {formatNumber(rewards.mean)}
      {rewards.std !== null && ` ± ${formatNumber(rewards.std)}`}
    </p>
  )
}

function NoSessions() {
  const isFiltered = [...route.value.query.keys()].some((name) => name !== 'sort' && name !== 'order')
  if (isFiltered) return <Empty title="No session matches">Remove a filter to see more.</Empty>
  return (
    <Empty title="No sessions yet">
      Give an agent the base URL <code>…/my-session/v1</code> of this proxy; its requests appear here.
    </Empty>
  )
}

function Heading({ name, title }: { name: string; title: string }) {
  if (name === '' || IS_FILE) return <span>{title}</span>
  const { query } = route.value
  const here = (query.get('sort') ?? 'created') === name
  const order = query.get('order') ?? 'desc'
  const turn = () => setQuery({ sort: name, order: here && order === 'desc' ? 'asc' : undefined })
  return (
    <button type="button" class={here ? 'sort here' : 'sort'} onClick={turn}>
      {title}
      {here && (order === 'desc' ? ' ↓' : ' ↑')}
    </button>
  )
}

function SessionRow({ session, selected }: { session: Session | undefined; selected: boolean }) {
  if (session === undefined) return <span class="cells quiet">…</span>
  return (
    <a
      class={selected ? 'cells selected' : 'cells'}
      href={formatHref(['session', session.session_id])}
      title={formatSessionPath(session.session_id)}
    >
      <span class="id">
        <i class={`dot ${session.open_turns > 0 ? 'live' : session.status}`} title={session.status} />
        {revealInvisible(session.session_id)}
      </span>
      <span class="num">
        {session.turn_count}
        {session.failed_turns > 0 && (
          <em class="bad" title="failed turns">
            {' '}
            ✗{session.failed_turns}
          </em>
        )}
        {session.inexact_turns > 0 && (
          <em class="warn" title="inexact turns">
            {' '}
            ≈{session.inexact_turns}
          </em>
        )}
      </span>
      <span class="num">{formatShortNumber(session.sampled_tokens)}</span>
      <span class="num">
        <Reward value={session.reward} />
      </span>
      <span class="meta">
        <Labels of={listLabels(session)} />{' '}
        <span class="metadata">{revealInvisible(formatMetadataLine(session.metadata))}</span>{' '}
        <PreviewLine of={session} />
      </span>
      <span class="time">{formatAge(session.updated_at)}</span>
      <span class="time">{formatAge(session.created_at)}</span>
    </a>
  )
}

function collectLabels(sessions: readonly Session[]): string[] {
  return [...new Set(sessions.flatMap(listLabels))].sort().slice(0, MAX_LABELS)
}

function formatMetadataLine(metadata: Record<string, unknown>): string {
  return Object.entries(metadata)
    .map(([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`)
    .join('  ')
    .slice(0, 300)
}
