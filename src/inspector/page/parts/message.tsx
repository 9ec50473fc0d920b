/** Shows one message, or the response of a turn. Texts of models and tools are never interpreted as HTML. */

import { getContentText, getImages, type MessageWire } from '../../../protocol/transcript/messages.ts'
import { describeMissingText } from '../../../protocol/transcript/missing-text.ts'
import type { ToolCallView } from '../../../protocol/transcript/tool-calls.ts'
import { isBlank, revealInvisible } from '../lib/format.ts'
import type { Turn } from '../lib/wire.ts'
import { Diff, Long } from './long-text.tsx'

/** The parts of messages that are shown. */
export interface MessageDisplayOptions {
  system: boolean
  reasoning: boolean
  tools: boolean
  /** Whether texts are rendered as Markdown, except those of tools. */
  markdown: boolean
}

interface MessageViewProps {
  message: MessageWire
  calls: readonly ToolCallView[]
  shown: MessageDisplayOptions
}

export function MessageView({ message, calls, shown }: MessageViewProps) {
  const { role = '?', content, reasoning_content: reasoning } = message
  if ((role === 'system' || role === 'developer') && !shown.system) return null
  if (role === 'tool' && !shown.tools) return null
  const text = getContentText(content)
  const images = getImages(content)
  const hasReasoning = Boolean(reasoning) && shown.reasoning
  const hasCalls = shown.tools && calls.length > 0
  return (
    <div class={`message ${role}`}>
      <span class="role">
        {revealInvisible(role === 'tool' && message.name ? `tool ${message.name}` : role)}
      </span>
      {hasReasoning && <Long text={reasoning!} kind="reasoning" />}
      {!isBlank(text) && <Long text={text} kind="text" markdown={shown.markdown && role !== 'tool'} />}
      {images.map((url, index) => (
        <img key={index} src={url} alt={`part ${index + 1} of the message`} loading="lazy" />
      ))}
      {hasCalls && calls.map((call, index) => <Call key={index} call={call} />)}
      {isBlank(text) && images.length === 0 && !hasReasoning && !hasCalls && <p class="quiet">no text</p>}
    </div>
  )
}

export function ResponseView({
  turn,
  calls,
  shown,
}: {
  turn: Turn
  calls: readonly ToolCallView[]
  shown: MessageDisplayOptions
}) {
  const hasCalls = shown.tools && calls.length > 0
  // A box without text, tool calls and error would look like a fault of the page, so the reason is shown.
  const missing = hasCalls || turn.error ? undefined : describeMissingText(turn)
  const isInFlight = turn.status === 'open'
  return (
    <div class="message sampled">
      <span class="role">sampled</span>
      {turn.reasoning_content && shown.reasoning && <Long text={turn.reasoning_content} kind="reasoning" />}
      {!isBlank(turn.completion_text) && (
        <Long text={turn.completion_text} kind="text" markdown={shown.markdown} />
      )}
      {hasCalls && calls.map((call, index) => <Call key={index} call={call} />)}
      {turn.error && <p class="bad">{revealInvisible(turn.error.message)}</p>}
      {isInFlight && <p class="quiet">in flight</p>}
      {missing !== undefined && <p class="quiet">{revealInvisible(missing)}</p>}
      {turn.inexact_reason && <p class="warn">{revealInvisible(turn.inexact_reason)}</p>}
      {turn.finish_reason && missing === undefined && (
        <span class="finish quiet">{revealInvisible(turn.finish_reason)}</span>
      )}
    </div>
  )
}

function Call({ call: { name, fields } }: { call: ToolCallView }) {
  return (
    <div class="call">
      <code class="call-name">{revealInvisible(name)}</code>
      <dl class="fields">
        {fields.map((field, index) => (
          <div key={index}>
            <dt>{revealInvisible(field.name)}</dt>
            <dd>
              {'diff' in field ? <Diff lines={field.diff} /> : <Long text={field.text} kind="arguments" />}
            </dd>
          </div>
        ))}
      </dl>
    </div>
  )
}
