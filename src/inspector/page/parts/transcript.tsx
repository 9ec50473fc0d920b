/** What was said, turn by turn: only what is new in each. Text of models and tools is text, whatever is in it. */
import { memo } from 'preact/compat'
import { useEffect, useRef, useState } from 'preact/hooks'
import { clockTime, duration, number, visible } from '../lib/format.ts'
import type { Turn } from '../lib/wire.ts'
import { Empty, Tag } from './parts.tsx'

export interface Shown {
  system: boolean
  reasoning: boolean
  tools: boolean
}

interface TranscriptProps {
  turns: readonly Turn[]
  /** Index of the turn that is kept in sight. */
  selected: number
  shown: Shown
  tokensOf(index: number): string | undefined
}

export function Transcript({ turns, selected, shown, tokensOf }: TranscriptProps) {
  const box = useRef<HTMLDivElement>(null)
  const first = useRef(true)
  useEffect(() => {
    // Not on arrival, unless a turn was asked for.
    if (!first.current || selected !== turns[0]?.index) {
      box.current?.querySelector(`[data-turn="${selected}"]`)?.scrollIntoView({ block: 'start' })
    }
    first.current = false
  }, [selected])
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  if (turns.length === 0) {
    return <Empty title="No turns yet">The agent of this session has made no call.</Empty>
  }
  return (
    <div class="transcript" ref={box}>
      {turns.map((turn) => (
        <TurnView
          key={turn.turn_id}
          turn={turn}
          before={byId.get(turn.request_messages_of ?? '')}
          selected={turn.index === selected}
          shown={shown}
          tokens={tokensOf(turn.index)}
        />
      ))}
    </div>
  )
}

interface TurnViewProps {
  turn: Turn
  /** The turn that it goes on from. */
  before: Turn | undefined
  selected: boolean
  shown: Shown
  tokens: string | undefined
}

const TurnView = memo(function TurnView({ turn, before, selected, shown, tokens }: TurnViewProps) {
  const from = turn.request_messages_from ?? 0
  const messages = turn.request_messages as unknown as Message[]
  const echoes = before !== undefined && messages[0] !== undefined && isEcho(messages[0], before)
  return (
    <section class={selected ? 'turn selected' : 'turn'} data-turn={turn.index}>
      <header>
        <b>turn {turn.index}</b>
        <span class="quiet">{visible(turn.line)}</span>
        <span class="quiet" title={clockTime(turn.started_at)}>
          {duration(turn.latency_ms)}
        </span>
        {turn.error && <Tag kind="bad">{turn.error.code}</Tag>}
        {!turn.exact && turn.status === 'completed' && <Tag kind="warn">inexact</Tag>}
        {turn.status === 'open' && <Tag kind="live">open</Tag>}
        <span class="space" />
        {turn.model && <span class="quiet">{visible(turn.model)}</span>}
        {tokens && <a href={tokens}>tokens</a>}
      </header>
      {from > 0 && (
        <p class="goes-on quiet">
          … after {number(from)} {from === 1 ? 'message that was' : 'messages that were'} said before
          {echoes && `, and what turn ${before.index} sampled`}
        </p>
      )}
      {messages.slice(echoes ? 1 : 0).map((message, place) => (
        <MessageView key={place} message={message} shown={shown} />
      ))}
      <Answer turn={turn} shown={shown} />
    </section>
  )
})

/** Agents send back what was sampled; it stands above already. */
function isEcho({ role, content, tool_calls: calls }: Message, before: Turn): boolean {
  const sampled = before.tool_calls as unknown as ToolCallWire[]
  const argumentsOf = (all: ToolCallWire[]) =>
    JSON.stringify(all.map((call) => [call.function?.name, call.function?.arguments]))
  return (
    role === 'assistant' &&
    textOf(content).trim() === before.completion_text.trim() &&
    argumentsOf(calls ?? []) === argumentsOf(sampled)
  )
}

interface ToolCallWire {
  id?: string
  function?: { name?: string; arguments?: string }
}

interface Message {
  role?: string
  content?: unknown
  reasoning_content?: string | null
  tool_calls?: ToolCallWire[] | null
  name?: string
}

function MessageView({ message, shown }: { message: Message; shown: Shown }) {
  const { role = '?', content, reasoning_content: reasoning, tool_calls: calls } = message
  if ((role === 'system' || role === 'developer') && !shown.system) return null
  if (role === 'tool' && !shown.tools) return null
  const text = textOf(content)
  return (
    <div class={`message ${role}`}>
      <span class="role">{visible(role === 'tool' && message.name ? `tool ${message.name}` : role)}</span>
      {reasoning && shown.reasoning && <Long text={reasoning} kind="reasoning" />}
      {text !== '' && <Long text={text} kind="text" />}
      {shown.tools && calls?.map((call, place) => <Call key={place} call={call} />)}
    </div>
  )
}

function Answer({ turn, shown }: { turn: Turn; shown: Shown }) {
  const calls = turn.tool_calls as unknown as ToolCallWire[]
  const isEmpty = turn.completion_text === '' && calls.length === 0 && !turn.reasoning_content
  return (
    <div class="message sampled">
      <span class="role">sampled</span>
      {turn.reasoning_content && shown.reasoning && <Long text={turn.reasoning_content} kind="reasoning" />}
      {turn.completion_text !== '' && <Long text={turn.completion_text} kind="text" />}
      {shown.tools && calls.map((call, place) => <Call key={place} call={call} />)}
      {turn.error && <p class="bad">{visible(turn.error.message)}</p>}
      {isEmpty && !turn.error && turn.status !== 'open' && <p class="quiet">nothing</p>}
      {turn.inexact_reason && <p class="warn">{visible(turn.inexact_reason)}</p>}
      {turn.finish_reason && <span class="finish quiet">{visible(turn.finish_reason)}</span>}
    </div>
  )
}

function Call({ call }: { call: ToolCallWire }) {
  return (
    <div class="call">
      <code class="call-name">{visible(call.function?.name ?? '?')}</code>
      <Long text={call.function?.arguments ?? ''} kind="arguments" />
    </div>
  )
}

/** What is shown of a text before it is asked for. A line of a megabyte would keep the browser busy for seconds. */
const MAX_SHOWN = 20_000

function Long({ text, kind }: { text: string; kind: string }) {
  const [limit, setLimit] = useState(MAX_SHOWN)
  return (
    <>
      <pre class={kind}>{visible(text.slice(0, limit))}</pre>
      {text.length > limit && (
        <button type="button" class="more" onClick={() => setLimit((before) => before * 10)}>
          {number(text.length - limit)} more characters
        </button>
      )}
    </>
  )
}

function textOf(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return content === null || content === undefined ? '' : JSON.stringify(content)
  return content
    .map((part: { type?: string; text?: string }) =>
      typeof part.text === 'string' ? part.text : `[${part.type ?? 'part'}]`,
    )
    .join('\n')
}
