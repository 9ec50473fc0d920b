/** One session: how its turns hang together, and what was said. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { getJson, getLines, IS_FILE, sessionPath } from '../lib/api.ts'
import { useEvents } from '../lib/events.ts'
import { clockTime, duration, number, short, visible } from '../lib/format.ts'
import { useKeys } from '../lib/keys.ts'
import { useLoaded } from '../lib/load.ts'
import { go, href, route, setQuery } from '../lib/route.ts'
import { isBroken, lineKind } from '../lib/turns.ts'
import type { LiveEvent, Row, Tree, TreeTurn, Turn } from '../lib/wire.ts'
import { Await, Reward, Sources, Tag } from '../parts/parts.tsx'
import { type Shown, Transcript } from '../parts/transcript.tsx'
import { TurnList } from '../parts/turn-list.tsx'

interface WithTurns {
  turns: Turn[]
}

export function SessionScreen({ sessionId }: { sessionId: string }) {
  const [refresh, setRefresh] = useState(0)
  useEvents(
    () => setRefresh((before) => before + 1),
    (event) => event.session_id === sessionId,
  )
  const path = sessionPath(sessionId, '/tree')
  const tree = useLoaded((stop) => getJson<Tree>(path, stop), [path, refresh])
  return <Await of={tree}>{(value) => <Session tree={value} refresh={refresh} />}</Await>
}

function Session({ tree, refresh }: { tree: Tree; refresh: number }) {
  const { session_id: sessionId, turns } = tree
  const whole = sessionPath(sessionId, '?messages=new&ids=false')
  const talk = useLoaded((stop) => getJson<WithTurns>(whole, stop), [whole, refresh])
  const rows = useLoaded(
    async (stop) => (await getJson<{ rows: Row[] }>(sessionPath(sessionId, '/rows'), stop)).rows,
    [sessionId, refresh],
  )
  const lines = useMemo(() => [...new Set(turns.map(({ line }) => line))], [turns])
  const asked = route.value.query
  const line = asked.get('line')
  const shownTurns = useMemo(
    () => (line === null ? turns : turns.filter((turn) => turn.line === line)),
    [turns, line],
  )
  const [shown, setShown] = useState<Shown>({ system: false, reasoning: true, tools: true })
  const at = Number(asked.get('turn') ?? shownTurns[0]?.index ?? 0)
  const place = Math.max(
    0,
    shownTurns.findIndex(({ index }) => index === at),
  )
  const select = (to: number) => {
    const turn = shownTurns[Math.max(0, Math.min(shownTurns.length - 1, to))]
    if (turn) setQuery({ turn: turn.index })
  }
  const rowOf = (index: number) => rows.value?.find((row) => row.turns.some((turn) => turn.index === index))
  const openTokens = () => {
    const row = rowOf(at)
    if (row) go(href(['tokens', sessionId, row.row], { turn: at }))
  }
  const toggle = (name: keyof Shown) => setShown((before) => ({ ...before, [name]: !before[name] }))
  useKeys([
    { key: 'j', help: 'Next turn', run: () => select(place + 1) },
    { key: 'k', help: 'Turn before', run: () => select(place - 1) },
    { key: 'n', help: 'Next turn whose prefix broke', run: () => select(nextBroken(shownTurns, place, 1)) },
    {
      key: 'p',
      help: 'Turn before whose prefix broke',
      run: () => select(nextBroken(shownTurns, place, -1)),
    },
    { key: 'Enter', help: 'Tokens of the turn', run: openTokens },
    { key: 's', help: 'Show or hide the system message', run: () => toggle('system') },
    { key: 'r', help: 'Show or hide reasoning', run: () => toggle('reasoning') },
    { key: 't', help: 'Show or hide tools', run: () => toggle('tools') },
  ])
  const inLine = useMemo(() => {
    const indexes = new Set(shownTurns.map(({ index }) => index))
    return talk.value?.turns.filter(({ index }) => indexes.has(index))
  }, [talk.value, shownTurns])
  return (
    <div class="session">
      <Facts tree={tree} rows={rows.value} />
      <div class="switches">
        <button
          type="button"
          class={line === null ? 'chip on' : 'chip'}
          onClick={() => setQuery({ line: undefined, turn: undefined })}
        >
          all lines <span>{turns.length}</span>
        </button>
        {lines.map((name) => (
          <button
            type="button"
            key={name}
            class={line === name ? 'chip on' : 'chip'}
            onClick={() => setQuery({ line: name, turn: undefined })}
          >
            <i class={`line-dot ${lineKind(name)}`} /> {visible(name)}{' '}
            <span>{turns.filter((turn) => turn.line === name).length}</span>
          </button>
        ))}
        <span class="space" />
        {(['system', 'reasoning', 'tools'] as const).map((name) => (
          <button
            type="button"
            key={name}
            class={shown[name] ? 'chip on' : 'chip'}
            aria-pressed={shown[name]}
            onClick={() => toggle(name)}
          >
            {name}
          </button>
        ))}
      </div>
      <div class="split">
        <TurnList turns={shownTurns} selected={place} select={select} />
        <div class="talk">
          <Await of={talk}>
            {() => (
              <Transcript
                turns={inLine ?? []}
                selected={at}
                shown={shown}
                tokensOf={(index) => tokensHref(sessionId, rowOf(index), index)}
              />
            )}
          </Await>
          {turns.some(({ status }) => status === 'open') && <Live sessionId={sessionId} />}
        </div>
      </div>
      <Sources
        paths={[
          sessionPath(sessionId, '/tree'),
          sessionPath(sessionId, `/turns/${at}`),
          sessionPath(sessionId, '/rows'),
        ]}
      />
    </div>
  )
}

function tokensHref(sessionId: string, row: Row | undefined, turn: number): string | undefined {
  return row && href(['tokens', sessionId, row.row], { turn })
}

function nextBroken(turns: readonly TreeTurn[], from: number, step: 1 | -1): number {
  for (let at = from + step; at >= 0 && at < turns.length; at += step) if (isBroken(turns[at]!)) return at
  return from
}

function Facts({ tree, rows }: { tree: Tree; rows: readonly Row[] | undefined }) {
  const prompt = tree.turns.reduce((sum, turn) => sum + turn.prompt_tokens, 0)
  const shared = tree.turns.reduce((sum, turn) => sum + turn.shared_tokens, 0)
  const broken = tree.turns.filter(isBroken).length
  const trained = rows?.reduce((sum, row) => sum + row.trained_tokens, 0)
  const versions = [
    ...new Set(
      tree.turns.flatMap(({ weight_version_start: start, weight_version_end: end }) => [start, end]),
    ),
  ].filter((version) => version !== null)
  const components = Object.entries(tree.reward_components)
  return (
    <header class="facts">
      <h1>
        <i class={`dot ${tree.open_turns > 0 ? 'live' : tree.status}`} /> {visible(tree.session_id)}
      </h1>
      <dl>
        <Fact name="status">
          {tree.open_turns > 0 ? <Tag kind="live">running</Tag> : <Tag kind={tree.status}>{tree.status}</Tag>}
        </Fact>
        <Fact name="reward">
          <Reward value={tree.reward} />
          {components.length > 0 && (
            <small>
              {' '}
              {components.map(([name, value]) => `${visible(name)} ${number(value)}`).join(' · ')}
            </small>
          )}
        </Fact>
        <Fact name="turns">
          {number(tree.turn_count)}
          {tree.failed_turns > 0 && <em class="bad"> {tree.failed_turns} failed</em>}
          {tree.inexact_turns > 0 && <em class="warn"> {tree.inexact_turns} inexact</em>}
        </Fact>
        <Fact name="sampled">{number(tree.sampled_tokens)}</Fact>
        <Fact name="prompts re-used">
          {prompt === 0 ? '–' : `${((shared / prompt) * 100).toFixed(1)} %`} <small>of {short(prompt)}</small>
        </Fact>
        <Fact name="prefix broke">{broken === 0 ? 'never' : <em class="warn">{broken} ×</em>}</Fact>
        <Fact name="rows">
          {rows === undefined
            ? '…'
            : rows
                .map((row) => (
                  <a
                    key={row.row}
                    class="rowlink"
                    href={href(['tokens', tree.session_id, row.row])}
                    title={`${row.line}: ${number(row.response_tokens)} tokens`}
                  >
                    {row.row}
                  </a>
                ))
                .slice(0, 12)}
          {rows !== undefined && <small> {short(trained ?? 0)} trained</small>}
        </Fact>
        {versions.length > 0 && (
          <Fact name="weights">{versions.map((version) => visible(version!)).join(' → ')}</Fact>
        )}
        <Fact name="created">
          {clockTime(tree.created_at)} <small>{duration((tree.updated_at - tree.created_at) * 1000)}</small>
        </Fact>
        {Object.entries(tree.metadata).map(([name, value]) => (
          <Fact key={name} name={visible(name)}>
            {IS_FILE ? (
              metadataText(value)
            ) : (
              <a href={groupHref(name, value)} title="sessions of this value">
                {metadataText(value)}
              </a>
            )}
          </Fact>
        ))}
      </dl>
    </header>
  )
}

function metadataText(value: unknown): string {
  return visible(typeof value === 'string' ? value : JSON.stringify(value)).slice(0, 160)
}

function groupHref(name: string, value: unknown): string {
  return href(['group', name, JSON.stringify(value)])
}

function Fact({ name, children }: { name: string; children: preact.ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  )
}

/** What turns in flight say, as they say it. */
function Live({ sessionId }: { sessionId: string }) {
  const [texts, setTexts] = useState<ReadonlyMap<number, string>>(new Map())
  const end = useRef<HTMLDivElement>(null)
  useEffect(() => {
    const controller = new AbortController()
    const follow = async () => {
      for await (const event of getLines<LiveEvent>(sessionPath(sessionId, '/live'), controller.signal)) {
        const { type, index } = event
        if (index === undefined) continue
        setTexts((before) => {
          const now = new Map(before)
          if (type === 'turn_closed') now.delete(index)
          else
            now.set(
              index,
              (type === 'turn' ? '' : (before.get(index) ?? '')) +
                (event.reasoning ?? '') +
                (event.text ?? ''),
            )
          return now
        })
      }
    }
    follow().catch(() => {})
    return () => controller.abort()
  }, [sessionId])
  useEffect(() => end.current?.scrollIntoView({ block: 'nearest' }), [texts])
  return (
    <div class="live-tail">
      {[...texts].map(([index, text]) => (
        <section class="turn" key={index}>
          <header>
            <i class="dot live" /> turn {index} <span class="quiet">is being answered</span>
          </header>
          <pre class="text">
            {visible(text)}
            <span class="caret" />
          </pre>
        </section>
      ))}
      <div ref={end} />
    </div>
  )
}
