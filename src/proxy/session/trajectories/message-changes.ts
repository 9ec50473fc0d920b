/** Describes for people how an agent changed messages that it had sent or received. */
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { ToolCall } from '../../../protocol/canonical/messages.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import type { EchoAnnotation } from '../prompts/echo-annotation.ts'

/** One change. The texts are excerpts that begin one line before the first difference; null: the text did not exist. */
export interface MessageChange {
  /** The changed element, in a few words. */
  readonly what: string
  readonly before: string | null
  readonly now: string | null
  /** The line of the first difference, from 1. */
  readonly line: number
}

/** The maximum length of an excerpt, which limits the size of API responses. */
const MAX_CHARS = 800

/** Describes the difference between two texts. @param what the changed element, in a few words */
export function describeChange(what: string, before: string, now: string): MessageChange {
  const [line, start] = findFirstChange(before, now)
  return { what, before: toExcerpt(before, start), now: toExcerpt(now, start), line }
}

/** Returns the line of the first difference, and the offset at which the line before it begins. */
function findFirstChange(before: string, now: string): [line: number, start: number] {
  let index = 0
  let line = 1
  let starts: [number, number] = [0, 0]
  while (index < before.length && before[index] === now[index]) {
    index += 1
    if (before[index - 1] === '\n') [line, starts] = [line + 1, [starts[1], index]]
  }
  return [line, starts[0]]
}

function toExcerpt(text: string, start: number): string {
  const end = start + MAX_CHARS
  return text.length <= end ? text.slice(start) : `${text.slice(start, end)}…`.toWellFormed()
}

/** Returns a message's text, followed by its tool calls, one per line. */
export function getMessageText({ value }: Message): string {
  const { content } = value
  const contentText = typeof content === 'string' ? content : content ? JSON.stringify(content, null, 2) : ''
  const calls = value.role === 'assistant' ? (value.tool_calls as ToolCall[] | undefined) : undefined
  return withCalls(contentText, calls)
}

/** Returns a turn's completion in the format of {@link getMessageText}. */
export function getCompletionText(turn: Pick<TurnRecord, 'completionText' | 'toolCalls'>): string {
  return withCalls(turn.completionText ?? '', JSON.parse(turn.toolCalls) as ToolCall[])
}

function withCalls(contentText: string, calls: readonly ToolCall[] | undefined): string {
  const lines = (calls ?? []).map(({ function: of }) => `${of?.name}(${of?.arguments})`)
  return [...(contentText === '' ? [] : [contentText]), ...lines].join('\n')
}

/** Returns the names of tools in their order, one per line. @param tools JSON text; null: there are none */
export function getToolNames(tools: string | null): string {
  const all = JSON.parse(tools ?? '[]') as { type?: string; name?: string; function?: { name?: string } }[]
  return all.map(({ type, name, function: own }) => own?.name ?? name ?? type).join('\n')
}

/**
 * Returns whether `now` is an edited version of `before`, and not the beginning of another conversation: the messages
 * share at least half of their text at the beginning and the end, or both conversations continue with the same message.
 * @param turn the turn whose request contains `before`
 * @param lastNow the last message of the request that contains `now`
 */
export function isEdited(
  before: Message,
  now: Message,
  turn: TurnMessages,
  lastNow: Message | undefined,
): boolean {
  const follows = getNext(now, lastNow)
  if (follows !== undefined && isFollowedBy(before, follows, turn)) return true
  const [old, text] = [getMessageText(before), getMessageText(now)]
  const [shorter, longer] = [Math.min(old.length, text.length), Math.max(old.length, text.length)]
  let head = 0
  while (head < shorter && old[head] === text[head]) head += 1
  let tail = 0
  while (tail < shorter - head && old.at(-1 - tail) === text.at(-1 - tail)) tail += 1
  return (head + tail) * 2 >= longer
}

/** The messages of a turn's request, and its completion. */
type TurnMessages = Pick<TurnRecord, 'lastMessage' | 'completionText' | 'toolCalls'>

/**
 * Returns whether `next` equals what follows the message in the turn: the next message of its request, or its
 * completion.
 */
export function isFollowedBy(message: Message, next: Message, turn: TurnMessages): boolean {
  if (message === turn.lastMessage) return isResponseTo(turn, next)
  return getNext(message, turn.lastMessage)?.json === next.json
}

/** Returns whether a message is the turn's completion. */
export function isResponseTo(turn: TurnMessages, message: Message): boolean {
  const text = getCompletionText(turn)
  return message.value.role === 'assistant' && text !== '' && text === getMessageText(message)
}

/** Returns the message after this one in the conversation that ends with `last`. */
export function getNext(message: Message, last: Message | undefined): Message | undefined {
  let current = last
  while (current !== undefined && current.parent !== message) current = current.parent
  return current
}

/**
 * Describes how an agent changed the tool calls of a turn, as one text and as changes. Values of arguments are JSON or
 * text.
 */
export function findToolCallChanges(
  { changes: noted = [] }: EchoAnnotation,
  { index, toolCalls }: Pick<TurnRecord, 'index' | 'toolCalls'>,
): { text: string; changes: MessageChange[] } {
  const names = new Map((JSON.parse(toolCalls) as ToolCall[]).map(({ id, function: of }) => [id, of.name]))
  /** The changed members of the arguments, by changed part of a tool call. */
  const changedMembers = new Map<string, string[]>()
  const changes = noted.map(({ kind, call, path, sampled, echoed }): MessageChange => {
    const name = names.get(call ?? '') ?? 'a call'
    const element = call === undefined ? `the ${kind} of its calls` : `${name}'s ${kind}`
    const mark = sampled === null ? '+ ' : echoed === null ? '− ' : ''
    changedMembers.set(element, [
      ...(changedMembers.get(element) ?? []),
      ...(path === undefined ? [] : [mark + path]),
    ])
    const what = path === undefined ? element : `${name}.${path}`
    return { what, before: toReadable(sampled), now: toReadable(echoed), line: 1 }
  })
  const words = [...changedMembers].map(([element, paths]) =>
    paths.length === 0 ? element : `${element}: ${paths.join(', ')}`,
  )
  return { text: `${words.length === 0 ? 'its calls' : words.join('; ')} (turn ${index})`, changes }
}

/** Decodes a JSON string. Returns other values unchanged. */
function toReadable(value: string | null): string | null {
  if (value === null || !value.startsWith('"')) return value
  try {
    return String(JSON.parse(value))
  } catch {
    // The value was truncated, so it is not valid JSON.
    return value.replaceAll('\\n', '\n')
  }
}
