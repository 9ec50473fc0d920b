/** Shows a conversation turn by turn; each turn with its new messages only. */
import { memo } from 'preact/compat'
import { useEffect, useMemo, useRef } from 'preact/hooks'
import { diffLines } from '../../../protocol/transcript/diff-lines.ts'
import { getNewMessages, type NewMessages } from '../../../protocol/transcript/messages.ts'
import {
  ToolCallReader,
  type ToolCallView,
  type ToolCallWire,
} from '../../../protocol/transcript/tool-calls.ts'
import { formatClockTime, formatDuration, formatNumber, revealInvisible } from '../lib/format.ts'
import { getEngineRequests } from '../lib/turns.ts'
import type { TreeTurn, Turn, TurnLabels } from '../lib/wire.ts'
import { type LabelsEditor, type LabelsTarget, LabelsView } from './labels.tsx'
import { Diff } from './long-text.tsx'
import { type MessageDisplayOptions, MessageView, ResponseView } from './message.tsx'
import { Empty, Reward, Tag } from './parts.tsx'
import { TurnSettings } from './turn-settings.tsx'

/** The reason why a turn begins a new row. */
type RowSplit = NonNullable<TreeTurn['new_row']>

interface TranscriptProps {
  turns: readonly Turn[]
  /** The index of the turn that is scrolled into view. */
  selected: number
  shown: MessageDisplayOptions
  /** Returns the link to the tokens of a turn; undefined: no row contains it. */
  tokensOf(index: number): string | undefined
  /** Rewards of turns by index; turns without one are absent. */
  rewards: Readonly<Record<string, number>>
  /** Labels and notes of turns by index; turns without any are absent. */
  labels: Readonly<Record<string, TurnLabels>>
  labelsEditor: LabelsEditor
  /** The session or turn for which the form is open. */
  labelsTarget: LabelsTarget | undefined
  /** Returns why the turn splits a row; undefined if it does not. */
  splitOf(index: number): RowSplit | undefined
  /** Returns the kinds of changes that the agent made to tool calls of earlier completions. */
  changedCallsOf(index: number): readonly string[]
  /** Returns the special tokens in texts of the turn's new messages. */
  specialTokensOf(index: number): readonly string[]
}

/** The number of frames in which turns near the viewport are painted, and their heights replace estimates. */
const PAINTED_FRAMES = 3

/** Scrolls to a turn, again after each frame that may change the heights of other turns. @returns a function that stops */
function scrollToTurn(turn: Element): () => void {
  let framesLeft = PAINTED_FRAMES
  let request = 0
  const scroll = () => {
    turn.scrollIntoView({ block: 'start' })
    if (framesLeft-- > 0) request = requestAnimationFrame(scroll)
  }
  scroll()
  return () => cancelAnimationFrame(request)
}

export function Transcript(props: TranscriptProps) {
  const { turns, selected, shown, tokensOf, rewards, labels, labelsEditor, labelsTarget } = props
  const { splitOf, changedCallsOf, specialTokensOf } = props
  const box = useRef<HTMLDivElement>(null)
  const first = useRef(true)
  useEffect(() => {
    // Initially scroll only if a turn was requested.
    const isRequested = !first.current || selected !== turns[0]?.index
    first.current = false
    const turn = isRequested ? box.current?.querySelector(`[data-turn="${selected}"]`) : undefined
    return turn ? scrollToTurn(turn) : undefined
  }, [selected])
  const read = useMemo(() => readTurns(turns), [turns])
  if (turns.length === 0) {
    return <Empty title="No turns yet">The agent of this session has sent no request.</Empty>
  }
  return (
    <div class="transcript" ref={box}>
      {read.map((each) => (
        <TurnView
          key={each.turn.turn_id}
          read={each}
          selected={each.turn.index === selected}
          shown={shown}
          tokens={tokensOf(each.turn.index)}
          reward={rewards[each.turn.index]}
          labels={labels[each.turn.index] ?? UNLABELED}
          labelsEditor={labelsEditor}
          edits={labelsTarget === each.turn.index}
          split={splitOf(each.turn.index)}
          changedCalls={changedCallsOf(each.turn.index).join(', ')}
          specialTokens={specialTokensOf(each.turn.index).join(' ')}
        />
      ))}
    </div>
  )
}

/** A turn, with its new messages and their tool calls in the form that is shown. */
interface TurnWithMessages {
  turn: Turn
  added: NewMessages
  /** The tool calls of each added message. */
  calls: readonly (readonly ToolCallView[])[]
  /** The tool calls of the response. */
  sampled: readonly ToolCallView[]
}

function readTurns(turns: readonly Turn[]): TurnWithMessages[] {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  const reader = new ToolCallReader()
  const readAll = (calls: readonly unknown[]) => calls.map((call) => reader.read(call as ToolCallWire))
  return turns.map((turn) => {
    const added = getNewMessages(turn, byId.get(turn.request_messages_of ?? ''))
    const calls = added.messages.map((message) => readAll(message.tool_calls ?? []))
    return { turn, added, calls, sampled: readAll(turn.tool_calls) }
  })
}

interface TurnViewProps {
  read: TurnWithMessages
  selected: boolean
  shown: MessageDisplayOptions
  tokens: string | undefined
  reward: number | undefined
  labels: TurnLabels
  labelsEditor: LabelsEditor
  edits: boolean
  split: RowSplit | undefined
  /** The kinds of changes to tool calls; empty: none. */
  changedCalls: string
  /** The special tokens in texts; empty: none. */
  specialTokens: string
}

/** A tag for a turn whose response was continued, with its engine requests and why each ended. */
function ContinuedTag({ turn }: { turn: Turn }) {
  const requests = getEngineRequests(turn)
  if (requests.length === 0) return null
  const parts = requests.map(({ start, end, engine, weight_version: version, end_reason: reason }) =>
    [`tokens ${start} to ${end}`, engine, version && `weights ${version}`, reason]
      .filter(Boolean)
      .map((each) => revealInvisible(each!))
      .join(', '),
  )
  return (
    <span title={parts.join('\n')}>
      <Tag kind="plain">{requests.length} engine requests</Tag>
    </span>
  )
}

const UNLABELED: TurnLabels = { labels: [], note: null }

const TurnView = memo(function TurnView(props: TurnViewProps) {
  const { read, selected, shown, tokens, reward, labels, labelsEditor, edits, split } = props
  const { changedCalls, specialTokens } = props
  const { turn, added, calls, sampled } = read
  const { from, echoOf, messages } = added
  return (
    <section class={selected ? 'turn selected' : 'turn'} data-turn={turn.index}>
      <header>
        <b>turn {turn.index}</b>
        <span class="quiet">{revealInvisible(turn.agent_role)}</span>
        <span class="quiet" title={formatClockTime(turn.started_at)}>
          {formatDuration(turn.latency_ms)}
        </span>
        {turn.error && <Tag kind="bad">{turn.error.code}</Tag>}
        {!turn.exact && turn.status === 'completed' && <Tag kind="warn">inexact</Tag>}
        {turn.status === 'open' && <Tag kind="live">open</Tag>}
        <ContinuedTag turn={turn} />
        {changedCalls !== '' && (
          <Tag kind="warn">tool calls changed by the agent: {revealInvisible(changedCalls)}</Tag>
        )}
        {specialTokens !== '' && (
          <Tag kind="warn">special tokens in texts: {revealInvisible(specialTokens)}</Tag>
        )}
        {reward !== undefined && (
          <span>
            reward <Reward value={reward} />
          </span>
        )}
        <LabelsView of={turn.index} values={labels} editor={labelsEditor} edits={edits} />
        <span class="space" />
        {turn.model && <span class="quiet">{revealInvisible(turn.model)}</span>}
        {tokens && <a href={tokens}>tokens</a>}
      </header>
      <TurnSettings turn={turn} />
      {split && <SplitWhy split={split} />}
      {from > 0 && (
        <p class="goes-on quiet">
          … {formatNumber(from)} earlier {from === 1 ? 'message' : 'messages'}
          {echoOf !== undefined && ` and the completion of turn ${echoOf}`} not repeated
        </p>
      )}
      {messages.map((message, index) => (
        <MessageView key={index} message={message} calls={calls[index]!} shown={shown} />
      ))}
      <ResponseView turn={turn} calls={sampled} shown={shown} />
    </section>
  )
})

function SplitWhy({ split: { text, changes } }: { split: RowSplit }) {
  return (
    <div class="split-why">
      ✂ a new row: {revealInvisible(text)}
      {changes.map(({ what, before, now }, index) => (
        <figure key={index}>
          <figcaption>{revealInvisible(what)}</figcaption>
          <Diff lines={diffLines(before ?? '', now ?? '')} />
        </figure>
      ))}
    </div>
  )
}
