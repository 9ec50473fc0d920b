/** What a turn adds to what was said before, and the texts and pictures of messages. */
import type { ToolCallWire } from './tool-calls.ts'

export interface MessageWire {
  role?: string
  content?: unknown
  reasoning_content?: string | null
  tool_calls?: ToolCallWire[] | null
  name?: string
}

/** Of a turn as the API shows it with `messages=new`, what is read of it here. */
export interface TurnWire {
  index: number
  request_messages: readonly unknown[]
  request_messages_from?: number
  completion_text: string
  tool_calls: readonly unknown[]
}

export interface NewMessages {
  /** How many messages were said before. */
  from: number
  /** Index of the turn whose answer comes next, as it was sampled; undefined: something else does. */
  echoOf: number | undefined
  /** What nobody said before. */
  messages: readonly MessageWire[]
}

/** @param before the turn that its request goes on from */
export function getNewMessages(turn: TurnWire, before: TurnWire | undefined): NewMessages {
  const messages = turn.request_messages as readonly MessageWire[]
  const from = turn.request_messages_from ?? 0
  const isEchoed = before !== undefined && messages[0] !== undefined && isEcho(messages[0], before)
  return isEchoed
    ? { from, echoOf: before.index, messages: messages.slice(1) }
    : { from, echoOf: undefined, messages }
}

/** Agents send back what was sampled; it stands above already. */
function isEcho({ role, content, tool_calls: calls }: MessageWire, before: TurnWire): boolean {
  const saidIn = (all: readonly ToolCallWire[]) =>
    JSON.stringify(all.map((call) => [call.function?.name, call.function?.arguments]))
  return (
    role === 'assistant' &&
    getContentText(content).trim() === before.completion_text.trim() &&
    saidIn(calls ?? []) === saidIn(before.tool_calls as readonly ToolCallWire[])
  )
}

interface PlainPart {
  type?: string
  text?: string
  image_url?: { url?: unknown }
}

/** The text of a message's content; parts that are neither text nor a picture of {@link getImages} by their kind. */
export function getContentText(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return content === null || content === undefined ? '' : JSON.stringify(content)
  return content
    .flatMap((part: PlainPart | null) => {
      if (typeof part?.text === 'string') return part.text
      return isImage(part?.image_url?.url) ? [] : `[${part?.type ?? 'part'}]`
    })
    .join('\n')
}

/** Pictures that the record has itself, as `data:` URLs. */
export function getImages(content: unknown): string[] {
  if (!Array.isArray(content)) return []
  return content.map((part: PlainPart | null) => part?.image_url?.url).filter(isImage)
}

/** No other data: a picture cannot run anything. */
function isImage(url: unknown): url is string {
  return typeof url === 'string' && /^data:image\/(png|jpeg|gif|webp);base64,/.test(url)
}
