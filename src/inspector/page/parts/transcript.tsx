/** What was said, turn by turn: only what is new in each. Text of models and tools is text, whatever is in it. */
import { memo } from 'preact/compat'
import { useEffect, useRef, useState } from 'preact/hooks'
import { clockTime, duration, number, visible } from '../lib/format.ts'
import type { Turn } from '../lib/wire.ts'
import { Empty, Reward, Tag } from './parts.tsx'

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
  /** By index, of turns that have their own. */
  rewards: Readonly<Record<string, number>>
  /** Why the turn splits a row; undefined: it does not. */
  splitOf(index: number): string | undefined
}

export function Transcript({ turns, selected, shown, tokensOf, rewards, splitOf }: TranscriptProps) {
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
          reward={rewards[turn.index]}
          split={splitOf(turn.index)}
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
  reward: number | undefined
  split: string | undefined
}

const TurnView = memo(function TurnView(props: TurnViewProps) {
  const { turn, before, selected, shown, tokens, reward, split } = props
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
        {reward !== undefined && (
          <span>
            reward <Reward value={reward} />
          </span>
        )}
        <span class="space" />
        {turn.model && <span class="quiet">{visible(turn.model)}</span>}
        {tokens && <a href={tokens}>tokens</a>}
      </header>
      {split && <p class="split-why">✂ a new row: {visible(split)}</p>}
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
      <Images content={content} />
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
  const { name = '?', arguments: given = '' } = call.function ?? {}
  const fields = fieldsOf(given)
  return (
    <div class="call">
      <code class="call-name">{visible(name)}</code>
      {fields === undefined ? <Long text={given} kind="arguments" /> : <Fields of={fields} />}
    </div>
  )
}

/** Members by their names; undefined: the arguments are no object. */
function fieldsOf(given: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(given)
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    return isObject ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}

/** The old text of an edit and the new one, by the names that agents' tools have for them. */
const EDITS = [
  ['old_string', 'new_string'],
  ['old_str', 'new_str'],
  ['oldText', 'newText'],
] as const

function Fields({ of }: { of: Record<string, unknown> }) {
  const edit = EDITS.find(([old, now]) => typeof of[old] === 'string' && typeof of[now] === 'string')
  const others = Object.entries(of).filter(([name]) => !edit?.some((own) => own === name))
  return (
    <dl class="fields">
      {others.map(([name, value]) => (
        <Field key={name} name={name} value={value} />
      ))}
      {edit && (
        <>
          <dt>
            {edit[0]} → {edit[1]}
          </dt>
          <dd>
            <Diff text={diffText(of[edit[0]] as string, of[edit[1]] as string)} />
          </dd>
        </>
      )}
    </dl>
  )
}

function Field({ name, value }: { name: string; value: unknown }) {
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2)
  return (
    <>
      <dt>{visible(name)}</dt>
      <dd>
        {/^(\*\*\* Begin Patch|diff --git |--- )/.test(text) ? (
          <Diff text={text} />
        ) : (
          <Long text={text} kind="arguments" />
        )}
      </dd>
    </>
  )
}

/** Lines that both have at their beginning and their end stand once. */
function diffText(old: string, now: string): string {
  const [before, after] = [old.split('\n'), now.split('\n')]
  let head = 0
  while (head < before.length && head < after.length && before[head] === after[head]) head += 1
  let tail = 0
  const most = Math.min(before.length, after.length) - head
  while (tail < most && before.at(-1 - tail) === after.at(-1 - tail)) tail += 1
  const marked = (lines: string[], mark: string) => lines.map((line) => mark + line)
  return [
    ...marked(before.slice(0, head), ' '),
    ...marked(before.slice(head, before.length - tail), '-'),
    ...marked(after.slice(head, after.length - tail), '+'),
    ...marked(tail === 0 ? [] : before.slice(-tail), ' '),
  ].join('\n')
}

/** Lines that begin with a plus or a minus, as such. */
function Diff({ text }: { text: string }) {
  const [limit, setLimit] = useState(MAX_SHOWN)
  return (
    <>
      <pre class="diff">
        {text
          .slice(0, limit)
          .split('\n')
          .map((line, place) => (
            <span key={place} class={DIFF_CLASSES[line[0] ?? '']}>
              {visible(line)}
              {'\n'}
            </span>
          ))}
      </pre>
      <More rest={text.length - limit} show={() => setLimit((before) => before * 10)} />
    </>
  )
}

const DIFF_CLASSES: Record<string, string> = { '+': 'added', '-': 'removed' }

/** What is shown of a text before it is asked for. A line of a megabyte would keep the browser busy for seconds. */
const MAX_SHOWN = 20_000

function Long({ text, kind }: { text: string; kind: string }) {
  const [limit, setLimit] = useState(MAX_SHOWN)
  return (
    <>
      <pre class={kind}>{visible(text.slice(0, limit))}</pre>
      <More rest={text.length - limit} show={() => setLimit((before) => before * 10)} />
    </>
  )
}

/** @param rest characters that are not shown */
function More({ rest, show }: { rest: number; show(): void }) {
  if (rest <= 0) return null
  return (
    <button type="button" class="more" onClick={show}>
      {number(rest)} more characters
    </button>
  )
}

/** Images that the record has itself; of others the kind of part is named. */
function Images({ content }: { content: unknown }) {
  if (!Array.isArray(content)) return null
  const urls = content.map((part: { image_url?: { url?: unknown } }) => part?.image_url?.url)
  return (
    <>
      {urls.map((url, place) =>
        isImage(url) ? (
          <img key={place} src={url} alt={`part ${place + 1} of the message`} loading="lazy" />
        ) : null,
      )}
    </>
  )
}

/** No other data: a picture cannot run anything. */
function isImage(url: unknown): url is string {
  return typeof url === 'string' && /^data:image\/(png|jpeg|gif|webp);base64,/.test(url)
}

function textOf(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return content === null || content === undefined ? '' : JSON.stringify(content)
  return content
    .flatMap((part: { type?: string; text?: string; image_url?: { url?: unknown } }) => {
      if (typeof part.text === 'string') return part.text
      return isImage(part.image_url?.url) ? [] : `[${part.type ?? 'part'}]`
    })
    .join('\n')
}
