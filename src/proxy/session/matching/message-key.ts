/**
 * What makes two messages the same message. The rule differs by who speaks.
 *
 * An assistant message is an echo of what was sampled, and clients tidy echoes: white space at the ends of the text,
 * text cut into parts, tool-call ids, the writing of arguments, reasoning left out in whole or in part, metadata
 * attached. Only role, name, text, tool calls and reasoning count: its tokens are those that were sampled, so that no
 * template will ever see its other fields.
 *
 * Any other message is the agent's own and counts as a template would see it, to the last space. Only what means
 * nothing is passed over: null, absent and empty fields, one text part for a text, `cache_control`, which agents
 * move to the newest messages on every call, and members whose name begins with an underscore: clients keep their own
 * bookkeeping there (Copilot CLI: `__copilotMessageSource` after a resume), and no template or engine reads them. Text
 * in several parts is not the same as one text: what a template puts between them is its own affair.
 */
import { hash } from 'node:crypto'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import { canonicalJson } from './canonical-json.ts'
import { readArguments, type ToolArguments } from './tool-arguments.ts'
import { isProxyToolCallId, restoreId } from './tool-call-ids.ts'

export interface MessageKey {
  /** Equal for equal messages. Of an assistant message it leaves the reasoning out. */
  readonly digest: string
  /** Of assistant messages only. */
  readonly assistant?: AssistantKey
}

/** What an echo may leave out or write in its own way. */
export interface AssistantKey {
  /** Without white space at its ends; undefined when there is none. */
  readonly reasoning: string | undefined
  readonly arguments: readonly ToolArguments[]
  readonly toolCallIds: readonly (string | undefined)[]
  /** Names its set of calls, whatever their order, where a proxy drew all their ids; undefined: it did not. */
  readonly drawnCalls: string | undefined
  readonly message: LooseMessage
}

/** How an assistant message is written, as far as clients change it: tells equal samples apart. */
export interface Wording {
  readonly toolCallIds: string
  readonly arguments: string
  /** How much white space there is at both ends of the text. */
  readonly margins: string
}

/** A message as it may come: the types of OpenAI's package say what should be there. */
interface LooseMessage {
  role?: unknown
  content?: unknown
  name?: unknown
  tool_calls?: unknown
  tool_call_id?: unknown
  function_call?: unknown
  [field: string]: unknown
}

interface LooseToolCall {
  id?: unknown
  type?: unknown
  function?: { name?: unknown; arguments?: unknown } | null
  custom?: unknown
}

/** Names that engines and clients have for the reasoning of a message. */
const REASONING_FIELDS = ['reasoning_content', 'reasoning', 'thinking']

/** 256 bits, so that nobody finds two messages with one key. */
export function computeDigest(text: string): string {
  return hash('sha256', text, 'base64')
}

/**
 * @param answeredCall for the result of a tool call: which of the conversation's calls it answers. Where the id was not
 *   drawn by a proxy, its place stands for it, because clients rename such ids.
 */
export function messageKey(message: ChatMessage, answeredCall?: number | string): MessageKey {
  const loose = message as LooseMessage
  return loose.role === 'assistant'
    ? assistantKey(loose)
    : { digest: computeDigest(othersText(loose, answeredCall)) }
}

function othersText(message: LooseMessage, answeredCall: number | string | undefined): string {
  const { content, ...fields } = message
  if (answeredCall !== undefined) delete fields.tool_call_id
  const meaningful = shownMembers(fields).filter(([, value]) => !isEmpty(value))
  return `${partsText(normalizeParts(content))}${canonicalJson([Object.fromEntries(meaningful), answeredCall])}`
}

/** The members that a prompt can show. */
function shownMembers(fields: object): [string, unknown][] {
  return Object.entries(fields).filter(([name]) => name !== 'cache_control' && !name.startsWith('_'))
}

function isEmpty(value: unknown): boolean {
  if (value === null || value === undefined || value === '') return true
  return typeof value === 'object' && Object.keys(value).length === 0
}

/** Texts as strings, other parts by value; nothing at all for empty content, however it is written. */
function normalizeParts(content: unknown): unknown[] {
  const parts = Array.isArray(content) ? content.map(normalizePart) : [content]
  return parts.length === 1 && isEmpty(parts[0]) ? [] : parts
}

function normalizePart(part: unknown): unknown {
  if (typeof part !== 'object' || part === null) return part
  const fields = Object.fromEntries(shownMembers(part))
  if (fields.type === 'text' && typeof fields.text === 'string') return fields.text
  if (fields.type === 'refusal' && typeof fields.refusal === 'string') return fields.refusal
  return fields
}

/**
 * Parts as text that no other parts have. Text stands in it as it is, with its length: to escape a long one takes
 * longer than to hash it. Lone surrogates are escaped, because hashing would take all of them for the same character.
 */
function partsText(parts: readonly unknown[]): string {
  const texts = parts.map((part) =>
    typeof part === 'string' && part.isWellFormed() ? `${part.length}:${part}` : canonicalJson(part),
  )
  return `${texts.join(',')}\n`
}

function assistantKey(message: LooseMessage): MessageKey {
  const calls = getToolCalls(message)
  const args = calls.map((call) => readArguments(call.function?.arguments))
  const ids = calls.map(({ id }) => (typeof id === 'string' && id !== '' ? restoreId(id) : undefined))
  return {
    digest: computeDigest(`assistant${JSON.stringify(args.map(({ text }) => text))}${formatFrame(message)}`),
    assistant: {
      reasoning: getReasoning(message),
      arguments: args,
      toolCallIds: ids,
      drawnCalls: toToolCallKey(ids),
      message,
    },
  }
}

/** An id that comes twice names no call. */
function toToolCallKey(ids: readonly (string | undefined)[]): string | undefined {
  const isDrawnSet = ids.length > 0 && ids.every((id) => id !== undefined && isProxyToolCallId(id))
  return isDrawnSet && new Set(ids).size === ids.length ? ids.toSorted().join(' ') : undefined
}

/**
 * How much an assistant message says in its text and its calls: letters and digits alone, for clients change white space,
 * quotes and escapes.
 */
export function countLetters({ message, arguments: args }: AssistantKey): number {
  const names = getToolCalls(message).map((call) => String(call.function?.name ?? ''))
  const texts = normalizeParts(message.content).map((part) =>
    typeof part === 'string' ? part : canonicalJson(part),
  )
  return [...texts, ...names, ...args.map(({ text }) => text)].reduce(
    (count, text) => count + text.replace(/[^\p{L}\p{N}]+/gu, '').length,
    0,
  )
}

/** All of an assistant message that is neither reasoning nor arguments: as long as its text, and so made when it is needed. */
function formatFrame(message: LooseMessage): string {
  const fields = canonicalJson([
    isEmpty(message.name) ? null : message.name,
    isEmpty(message.function_call) ? null : message.function_call,
    getToolCalls(message).map(({ type, function: called, custom }) => [
      type ?? 'function',
      called?.name,
      custom,
    ]),
  ])
  return `${partsText(trimEnds(joinTexts(normalizeParts(message.content))))}${fields}`
}

/** Of what an echo of a message keeps whose arguments are malformed. */
export function computeFrameDigest({ message }: AssistantKey): string {
  return computeDigest(formatFrame(message))
}

function getToolCalls({ tool_calls: calls }: LooseMessage): LooseToolCall[] {
  return Array.isArray(calls) ? (calls as LooseToolCall[]) : []
}

/** One text was sampled: parts of an echo are pieces of it. */
function joinTexts(parts: readonly unknown[]): unknown[] {
  const joined: unknown[] = []
  for (const part of parts) {
    const last = joined.at(-1)
    if (typeof part === 'string' && typeof last === 'string') joined[joined.length - 1] = last + part
    else joined.push(part)
  }
  return joined
}

function trimEnds(parts: readonly unknown[]): unknown[] {
  const trimmed = [...parts]
  if (typeof trimmed[0] === 'string') trimmed[0] = trimmed[0].trimStart()
  const last = trimmed.at(-1)
  if (typeof last === 'string') trimmed[trimmed.length - 1] = last.trimEnd()
  return trimmed.filter((part) => part !== '')
}

function getReasoning(message: LooseMessage): string | undefined {
  for (const field of REASONING_FIELDS) {
    const value = message[field]
    if (typeof value === 'string' && value.trim() !== '') return value.trim()
  }
  return undefined
}

/** How this very message is written. Needed once per recorded message, and where samples are hard to tell apart. */
export function readWording({ message, toolCallIds }: AssistantKey): Wording {
  const args = getToolCalls(message).map((call) => call.function?.arguments ?? null)
  const text = joinTexts(normalizeParts(message.content))
  return {
    toolCallIds: toolCallIds.join(' '),
    arguments: args.length === 0 ? '' : computeDigest(JSON.stringify(args)),
    margins: `${leadingSpace(text[0])} ${trailingSpace(text.at(-1))}`,
  }
}

function leadingSpace(text: unknown): number {
  return typeof text === 'string' ? text.length - text.trimStart().length : 0
}

function trailingSpace(text: unknown): number {
  return typeof text === 'string' ? text.length - text.trimEnd().length : 0
}
