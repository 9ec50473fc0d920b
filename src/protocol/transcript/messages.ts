/** The messages that a turn adds to the conversation, and the texts and images of messages. */
import type { ToolCallWire } from './tool-calls.ts'

export interface MessageWire {
  role?: string
  content?: unknown
  reasoning_content?: string | null
  tool_calls?: ToolCallWire[] | null
  name?: string
}

/** The fields read here of a turn as the API returns it with `messages=new`. */
export interface TurnWire {
  index: number
  request_messages: readonly unknown[]
  request_messages_from?: number
  completion_text: string
  tool_calls: readonly unknown[]
}

export interface NewMessages {
  /** The number of messages that the conversation already had. */
  from: number
  /** Index of the turn whose completion comes next, as sampled; undefined if another message does. */
  echoOf: number | undefined
  /** The messages that are new. */
  messages: readonly MessageWire[]
}

/** Returns the messages that a turn adds. @param before the turn that its request continues */
export function getNewMessages(turn: TurnWire, before: TurnWire | undefined): NewMessages {
  const messages = turn.request_messages as readonly MessageWire[]
  const from = turn.request_messages_from ?? 0
  const isEchoed = before !== undefined && messages[0] !== undefined && isEcho(messages[0], before)
  return isEchoed
    ? { from, echoOf: before.index, messages: messages.slice(1) }
    : { from, echoOf: undefined, messages }
}

/** Returns whether a message is the echo of a turn's completion, which is shown above already. */
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

/**
 * Returns the text of a message's content. A part that is neither text nor an image of {@link getImages} is its kind.
 */
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

/** Returns the images that the content embeds as `data:` URLs. */
export function getImages(content: unknown): string[] {
  if (!Array.isArray(content)) return []
  return content.map((part: PlainPart | null) => part?.image_url?.url).filter(isImage)
}

/** Accepts no other data: an image cannot run scripts. */
function isImage(url: unknown): url is string {
  return typeof url === 'string' && /^data:image\/(png|jpeg|gif|webp);base64,/.test(url)
}
