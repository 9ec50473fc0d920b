/** The messages that a turn adds to the conversation, and the texts and images of messages. */
import type { ToolCallWire } from './tool-calls.ts'

export interface MessageWire {
  role?: string
  content?: unknown
  reasoning_content?: string | null
  tool_calls?: ToolCallWire[] | null
  name?: string
}

/** The fields of a turn that this module reads, as the API returns them with `messages=new`. */
export interface TurnWire {
  index: number
  request_messages: readonly unknown[]
  request_messages_from?: number
  completion_text: string
  tool_calls: readonly unknown[]
}

/** The messages that a turn adds to the conversation. */
export interface NewMessages {
  /** The number of messages that the conversation already had. */
  from: number
  /**
   * The index of the turn whose completion the request repeats unchanged before the new messages; undefined if there is
   * none.
   */
  echoOf: number | undefined
  /** The new messages, without the repeated completion. */
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

/** Returns whether a message repeats a turn's completion unchanged: it is shown with that turn already. */
function isEcho({ role, content, tool_calls: calls }: MessageWire, before: TurnWire): boolean {
  const formatCalls = (all: readonly ToolCallWire[]) =>
    JSON.stringify(all.map((call) => [call.function?.name, call.function?.arguments]))
  return (
    role === 'assistant' &&
    getContentText(content).trim() === before.completion_text.trim() &&
    formatCalls(calls ?? []) === formatCalls(before.tool_calls as readonly ToolCallWire[])
  )
}

interface ContentPart {
  type?: string
  text?: string
  image_url?: { url?: unknown }
}

/**
 * Returns the text of a message's content. A part that is neither text nor an image of {@link getImages} is represented
 * by its type in brackets.
 */
export function getContentText(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return content === null || content === undefined ? '' : JSON.stringify(content)
  return content
    .flatMap((part: ContentPart | null) => {
      if (typeof part?.text === 'string') return part.text
      return isImage(part?.image_url?.url) ? [] : `[${part?.type ?? 'part'}]`
    })
    .join('\n')
}

/** Returns the images that the content embeds as `data:` URLs. */
export function getImages(content: unknown): string[] {
  if (!Array.isArray(content)) return []
  return content.map((part: ContentPart | null) => part?.image_url?.url).filter(isImage)
}

/** Returns whether a URL embeds a raster image. Other data is not shown, because it might run scripts. */
function isImage(url: unknown): url is string {
  return typeof url === 'string' && /^data:image\/(png|jpeg|gif|webp);base64,/.test(url)
}
