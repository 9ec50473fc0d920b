/** Shows one session: the list of its turns, and its conversation. */
import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { formatSessionPath, getJson, getLines } from '../lib/api.ts'
import { useEvents } from '../lib/events.ts'
import { formatDuration, revealInvisible } from '../lib/format.ts'
import { useKeys } from '../lib/keys.ts'
import { useLoad } from '../lib/load.ts'
import { formatHref, navigate, route, setQuery } from '../lib/route.ts'
import { getRoleKind, getTimeSpan, isRowSplit, type Span } from '../lib/turns.ts'
import type { LiveEvent, Row, Tree, TreeTurn, Turn } from '../lib/wire.ts'
import type { LabelsEditor, LabelsTarget } from '../parts/labels.tsx'
import type { MessageDisplayOptions } from '../parts/message.tsx'
import { Await, Chip, Sources } from '../parts/parts.tsx'
import { SessionFacts } from '../parts/session-facts.tsx'
import { Transcript } from '../parts/transcript.tsx'
import { TurnList } from '../parts/turn-list.tsx'

export function SessionScreen({ sessionId }: { sessionId: string }) {
  const [refresh, setRefresh] = useState(0)
  const reload = useCallback(() => setRefresh((before) => before + 1), [])
  useEvents(reload, (event) => event.session_id === sessionId)
  const path = formatSessionPath(sessionId, '/tree')
  const tree = useLoad((stop) => getJson<Tree>(path, stop), [path, refresh])
  return <Await of={tree}>{(value) => <Session tree={value} refresh={refresh} reload={reload} />}</Await>
}

function Session({ tree, refresh, reload }: { tree: Tree; refresh: number; reload(): void }) {
  const { session_id: sessionId, turns } = tree
  const full = formatSessionPath(sessionId, '?messages=new&ids=false')
  const conversation = useLoad((stop) => getJson<{ turns: Turn[] }>(full, stop), [full, refresh])
  const rows = useLoad(
    async (stop) => (await getJson<{ rows: Row[] }>(formatSessionPath(sessionId, '/rows'), stop)).rows,
    [sessionId, refresh],
  )
  const query = route.value.query
  const line = query.get('line')
  const shownTurns = useMemo(
    () => (line === null ? turns : turns.filter((turn) => turn.agent_role === line)),
    [turns, line],
  )
  const [shown, setShown] = useState<MessageDisplayOptions>({
    system: false,
    reasoning: true,
    tools: true,
    markdown: false,
  })
  const toggle = (name: keyof MessageDisplayOptions) =>
    setShown((before) => ({ ...before, [name]: !before[name] }))
  const i = Number(query.get('turn') ?? shownTurns[0]?.index ?? 0)
  const position = Math.max(
    0,
    shownTurns.findIndex(({ index }) => index === i),
  )
  const getTokens = (index: number) => {
    const row = rows.value?.find((each) => each.turns.some((turn) => turn.index === index))
    return row && formatHref(['tokens', sessionId, row.row], { turn: index })
  }
  const splits = useMemo(
    () => new Map(turns.filter(isRowSplit).map(({ index, new_row: begins }) => [index, begins])),
    [turns],
  )
  const changedCalls = useMemo(
    () => new Map(turns.map(({ index, changed_calls: kinds }) => [index, kinds])),
    [turns],
  )
  const specialTokens = useMemo(
    () => new Map(turns.map(({ index, special_tokens: tokens = [] }) => [index, tokens])),
    [turns],
  )
  const isTimed = query.get('bars') === 'time'
  const span = useMemo(
    () => (isTimed ? getTimeSpan(shownTurns, Date.now()) : undefined),
    [shownTurns, isTimed],
  )
  const [labelsTarget, setLabelsTarget] = useState<LabelsTarget | undefined>()
  const labelsEditor = useMemo(
    (): LabelsEditor => ({ sessionId, edit: setLabelsTarget, changed: reload }),
    [sessionId, reload],
  )
  useSessionKeys({
    turns: shownTurns,
    place: position,
    tokens: getTokens(i),
    toggle,
    isTimed,
    editLabels: setLabelsTarget,
  })
  const inLine = useMemo(() => {
    const indexes = new Set(shownTurns.map(({ index }) => index))
    return conversation.value?.turns.filter(({ index }) => indexes.has(index))
  }, [conversation.value, shownTurns])
  return (
    <div class="session">
      <SessionFacts
        tree={tree}
        rows={rows.value}
        labelsEditor={labelsEditor}
        edits={labelsTarget === 'session'}
      />
      <Switches turns={turns} line={line} shown={shown} span={span} toggle={toggle} />
      <div class="split">
        <TurnList
          turns={shownTurns}
          rewards={tree.reward_turns}
          selected={position}
          span={span}
          select={(to) => selectTurn(shownTurns, to)}
        />
        <div class="conversation">
          <Await of={conversation}>
            {() => (
              <Transcript
                turns={inLine ?? []}
                selected={i}
                shown={shown}
                tokensOf={getTokens}
                rewards={tree.reward_turns}
                labels={tree.turn_labels}
                labelsEditor={labelsEditor}
                labelsTarget={labelsTarget}
                splitOf={(index) => splits.get(index) ?? undefined}
                changedCallsOf={(index) => changedCalls.get(index) ?? []}
                specialTokensOf={(index) => specialTokens.get(index) ?? []}
              />
            )}
          </Await>
          {turns.some(({ status }) => status === 'open') && <LiveTail sessionId={sessionId} />}
        </div>
      </div>
      <Sources
        paths={[
          formatSessionPath(sessionId, '/tree'),
          formatSessionPath(sessionId, `/turns/${i}`),
          formatSessionPath(sessionId, '/rows'),
        ]}
      />
    </div>
  )
}

/** The state and the actions of the keyboard commands. */
interface SessionKeyState {
  turns: readonly TreeTurn[]
  /** The position of the selected turn in `turns`. */
  place: number
  /** The link to the tokens of the selected turn; undefined: no row contains it. */
  tokens: string | undefined
  toggle(name: keyof MessageDisplayOptions): void
  isTimed: boolean
  editLabels(target: LabelsTarget): void
}

function useSessionKeys({ turns, place: index, tokens, toggle, isTimed, editLabels }: SessionKeyState): void {
  const selectSplit = (step: 1 | -1) => selectTurn(turns, findNextSplit(turns, index, step))
  useKeys([
    { key: 'j', help: 'Next turn', run: () => selectTurn(turns, index + 1) },
    { key: 'k', help: 'Previous turn', run: () => selectTurn(turns, index - 1) },
    { key: 'n', help: 'Next turn that splits a row', run: () => selectSplit(1) },
    { key: 'p', help: 'Previous turn that splits a row', run: () => selectSplit(-1) },
    { key: 'Enter', help: 'Tokens of the turn', run: () => tokens !== undefined && navigate(tokens) },
    {
      key: 'l',
      help: 'Labels and note of the turn',
      run: () => turns[index] && editLabels(turns[index].index),
    },
    { key: 'L', help: 'Labels and note of the session', run: () => editLabels('session') },
    { key: 'w', help: 'Show times or tokens of the turns', run: () => showTime(!isTimed) },
    { key: 's', help: 'Show or hide the system message', run: () => toggle('system') },
    { key: 'r', help: 'Show or hide reasoning', run: () => toggle('reasoning') },
    { key: 't', help: 'Show or hide tools', run: () => toggle('tools') },
    { key: 'm', help: 'Show texts as Markdown, or as they are', run: () => toggle('markdown') },
  ])
}

function showTime(isTimed: boolean): void {
  setQuery({ bars: isTimed ? 'time' : undefined })
}

/** Selects a turn by its index in `turns`; an index out of range selects the first or last one. */
function selectTurn(turns: readonly TreeTurn[], index: number): void {
  const turn = turns[Math.max(0, Math.min(turns.length - 1, index))]
  if (turn) setQuery({ turn: turn.index })
}

function findNextSplit(turns: readonly TreeTurn[], from: number, step: 1 | -1): number {
  for (let index = from + step; index >= 0 && index < turns.length; index += step)
    if (isRowSplit(turns[index]!)) return index
  return from
}

interface SwitchesProps {
  turns: readonly TreeTurn[]
  /** The selected agent role; null: all. */
  line: string | null
  shown: MessageDisplayOptions
  /** The time span of bars that show times; undefined: bars show tokens. */
  span: Span | undefined
  toggle(name: keyof MessageDisplayOptions): void
}

function Switches({ turns, line, shown, span, toggle }: SwitchesProps) {
  const lines = useMemo(() => Map.groupBy(turns, (turn) => turn.agent_role), [turns])
  return (
    <div class="switches">
      <Chip on={line === null} onClick={() => setQuery({ line: undefined, turn: undefined })}>
        all roles <span>{turns.length}</span>
      </Chip>
      {[...lines].map(([name, { length }]) => (
        <Chip key={name} on={line === name} onClick={() => setQuery({ line: name, turn: undefined })}>
          <i class={`line-dot ${getRoleKind(name)}`} /> {revealInvisible(name)} <span>{length}</span>
        </Chip>
      ))}
      <span class="space" />
      <Chip on={span !== undefined} onClick={() => showTime(span === undefined)}>
        waterfall{span && ` of ${formatDuration(span.toMs - span.fromMs)}`}
      </Chip>
      {(['system', 'reasoning', 'tools', 'markdown'] as const).map((name) => (
        <Chip key={name} on={shown[name]} onClick={() => toggle(name)}>
          {name}
        </Chip>
      ))}
    </div>
  )
}

/** Shows the output of in-flight turns while it is streamed. */
function LiveTail({ sessionId }: { sessionId: string }) {
  const [texts, setTexts] = useState<ReadonlyMap<number, string>>(new Map())
  const end = useRef<HTMLDivElement>(null)
  useEffect(() => {
    const controller = new AbortController()
    const follow = async () => {
      for await (const event of getLines<LiveEvent>(
        formatSessionPath(sessionId, '/live'),
        controller.signal,
      )) {
        const { type, index } = event
        if (index === undefined) continue
        setTexts((before) => {
          const now = new Map(before)
          const soFar = type === 'turn' ? '' : (before.get(index) ?? '')
          if (type === 'turn_closed') now.delete(index)
          else now.set(index, soFar + (event.reasoning ?? '') + (event.text ?? ''))
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
            <i class="dot live" /> turn {index} <span class="quiet">is in flight</span>
          </header>
          <pre class="text">
            {revealInvisible(text)}
            <span class="caret" />
          </pre>
        </section>
      ))}
      <div ref={end} />
    </div>
  )
}
