/**
 * Message equality. The rule depends on the role.
 *
 * An assistant message is the echo of a completion, and clients normalize echoes: they trim the text, split it into
 * parts, change tool-call ids, reformat arguments, omit all or some of the reasoning and add metadata. Only role, name,
 * text, tool calls and reasoning are compared. Other fields do not matter, because the prompt contains the sampled
 * tokens instead of a rendered echo.
 *
 * Any other message originates from the agent and is compared as a template would render it, including white space.
 * These differences are ignored: null, absent and empty fields; one text part in place of a string; `cache_control`,
 * which agents move to the newest messages on every request; and members whose name begins with an underscore, in which
 * clients store their own data (Copilot CLI: `__copilotMessageSource` after a resume) and which no template or engine
 * reads. Text in several parts differs from one string, since templates choose the separator.
 */
import { hash } from 'node:crypto'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import { toCanonicalJson } from './canonical-json.ts'
import { readArguments, type ToolArguments } from './tool-arguments.ts'
import { isProxyToolCallId, restoreId } from './tool-call-ids.ts'

/** The key of a message, by which it is compared. */
export interface MessageKey {
  /** A digest that is equal for equal messages. It excludes the reasoning of an assistant message. */
  readonly digest: string
  /** Set for assistant messages only. */
  readonly assistant?: AssistantKey
}

/** The parts of an assistant message that are compared less strictly, because an echo may omit or reformat them. */
export interface AssistantKey {
  /** The trimmed reasoning; undefined if there is none. */
  readonly reasoning: string | undefined
  readonly arguments: readonly ToolArguments[]
  readonly toolCallIds: readonly (string | undefined)[]
  /** A key of the set of tool-call ids, in any order; undefined unless a proxy generated all of them. */
  readonly drawnCalls: string | undefined
  readonly message: LooseMessage
}

/**
 * The details of an assistant message that clients normalize. They distinguish completions that are otherwise equal.
 */
export interface Wording {
  readonly toolCallIds: string
  readonly arguments: string
  /** The numbers of white-space characters before and after the text. */
  readonly margins: string
}

/** A message as received, before validation. The types of OpenAI's package describe only valid messages. */
interface LooseMessage {
  role?: unknown
  content?: unknown
  name?: unknown
  tool_calls?: unknown
  tool_call_id?: unknown
  function_call?: unknown
  [field: string]: unknown
}

/** A tool call as received, before validation. */
interface LooseToolCall {
  id?: unknown
  type?: unknown
  function?: { name?: unknown; arguments?: unknown } | null
  custom?: unknown
}

/** The names that engines and clients use for the field with a message's reasoning. */
const REASONING_FIELDS = ['reasoning_content', 'reasoning', 'thinking']

/** Returns a SHA-256 digest: 256 bits make collisions infeasible. */
export function computeDigest(text: string): string {
  return hash('sha256', text, 'base64')
}

/**
 * Computes the key of a message.
 * @param answeredCall for a tool result: the id of its tool call if a proxy generated it, otherwise the index of the
 *   tool call, because clients rename other ids
 */
export function computeMessageKey(message: ChatMessage, answeredCall?: number | string): MessageKey {
  const loose = message as LooseMessage
  return loose.role === 'assistant'
    ? computeAssistantKey(loose)
    : { digest: computeDigest(serializeOther(loose, answeredCall)) }
}

function serializeOther(message: LooseMessage, answeredCall: number | string | undefined): string {
  const { content, ...fields } = message
  // A shortcut with the same result for most messages, which only have a role and a text.
  if (typeof content === 'string' && content !== '' && answeredCall === undefined && hasRoleOnly(fields))
    return `${serializeParts([content])}[{"role":${JSON.stringify(fields.role)}},null]`
  if (answeredCall !== undefined) delete fields.tool_call_id
  const meaningful = listShownMembers(fields).filter(([, value]) => !isEmpty(value))
  return `${serializeParts(normalizeParts(content))}${toCanonicalJson([Object.fromEntries(meaningful), answeredCall])}`
}

function hasRoleOnly(fields: LooseMessage): boolean {
  for (const name in fields) if (name !== 'role') return false
  return typeof fields.role === 'string' && fields.role !== ''
}

/** Returns the members of a message or a part that a template can render. */
function listShownMembers(fields: object): [string, unknown][] {
  return Object.entries(fields).filter(([name]) => name !== 'cache_control' && !name.startsWith('_'))
}

function isEmpty(value: unknown): boolean {
  if (value === null || value === undefined || value === '') return true
  return typeof value === 'object' && Object.keys(value).length === 0
}

/** Converts content to a list of parts, texts as strings. Every form of empty content becomes the empty list. */
function normalizeParts(content: unknown): unknown[] {
  const parts = Array.isArray(content) ? content.map(normalizePart) : [content]
  return parts.length === 1 && isEmpty(parts[0]) ? [] : parts
}

function normalizePart(part: unknown): unknown {
  if (typeof part !== 'object' || part === null) return part
  const fields = Object.fromEntries(listShownMembers(part))
  if (fields.type === 'text' && typeof fields.text === 'string') return fields.text
  if (fields.type === 'refusal' && typeof fields.refusal === 'string') return fields.refusal
  return fields
}

/**
 * Serializes parts unambiguously. A text is prefixed with its length instead of being escaped, since escaping a long
 * text takes longer than hashing it. A text with lone surrogates is escaped, because hashing would map all of them to
 * one character.
 */
function serializeParts(parts: readonly unknown[]): string {
  const texts = parts.map((part) =>
    typeof part === 'string' && part.isWellFormed() ? `${part.length}:${part}` : toCanonicalJson(part),
  )
  return `${texts.join(',')}\n`
}

function computeAssistantKey(message: LooseMessage): MessageKey {
  const calls = getToolCalls(message)
  const args = calls.map((call) => readArguments(call.function?.arguments))
  const ids = calls.map(({ id }) => (typeof id === 'string' && id !== '' ? restoreId(id) : undefined))
  return {
    digest: computeDigest(
      `assistant${JSON.stringify(args.map(({ text }) => text))}${serializeWithoutArguments(message)}`,
    ),
    assistant: {
      reasoning: getReasoning(message),
      arguments: args,
      toolCallIds: ids,
      drawnCalls: toToolCallKey(ids),
      message,
    },
  }
}

/** Returns a key of a set of tool-call ids; undefined if an id occurs twice or was not generated by a proxy. */
function toToolCallKey(ids: readonly (string | undefined)[]): string | undefined {
  const isDrawnSet = ids.length > 0 && ids.every((id) => id !== undefined && isProxyToolCallId(id))
  return isDrawnSet && new Set(ids).size === ids.length ? ids.toSorted().join(' ') : undefined
}

/**
 * Counts the letters and digits in the text and the tool calls of an assistant message. Other characters are not
 * counted, because clients change white space, quotes and escapes.
 */
export function countLetters({ message, arguments: args }: AssistantKey): number {
  const names = getToolCalls(message).map((call) => String(call.function?.name ?? ''))
  const texts = normalizeParts(message.content).map((part) =>
    typeof part === 'string' ? part : toCanonicalJson(part),
  )
  return [...texts, ...names, ...args.map(({ text }) => text)].reduce(
    (count, text) => count + text.replace(/[^\p{L}\p{N}]+/gu, '').length,
    0,
  )
}

/**
 * Serializes an assistant message without its reasoning and arguments. The result is computed when needed, because it
 * is as long as the text.
 */
function serializeWithoutArguments(message: LooseMessage): string {
  const { content, name, function_call: legacyCall } = message
  const calls = getToolCalls(message)
  const isTextOnly = calls.length === 0 && isEmpty(name) && isEmpty(legacyCall)
  const fields = isTextOnly
    ? '[null,null,[]]'
    : toCanonicalJson([
        isEmpty(name) ? null : name,
        isEmpty(legacyCall) ? null : legacyCall,
        calls.map(({ type, function: called, custom }) => [type ?? 'function', called?.name, custom]),
      ])
  return `${serializeParts(trimEnds(joinTexts(normalizeParts(content))))}${fields}`
}

/**
 * Computes a digest of an assistant message without its reasoning and arguments, which an echo preserves even if it
 * replaces malformed arguments.
 */
export function computeDigestWithoutArguments({ message }: AssistantKey): string {
  return computeDigest(serializeWithoutArguments(message))
}

function getToolCalls({ tool_calls: calls }: LooseMessage): LooseToolCall[] {
  return Array.isArray(calls) ? (calls as LooseToolCall[]) : []
}

/** Joins adjacent text parts, because an echo may split the text that was sampled. */
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

/** Returns the wording of an assistant message. */
export function readWording({ message, toolCallIds }: AssistantKey): Wording {
  const args = getToolCalls(message).map((call) => call.function?.arguments ?? null)
  const text = joinTexts(normalizeParts(message.content))
  return {
    toolCallIds: toolCallIds.join(' '),
    arguments: args.length === 0 ? '' : computeDigest(JSON.stringify(args)),
    margins: `${countLeadingSpace(text[0])} ${countTrailingSpace(text.at(-1))}`,
  }
}

function countLeadingSpace(text: unknown): number {
  return typeof text === 'string' ? text.length - text.trimStart().length : 0
}

function countTrailingSpace(text: unknown): number {
  return typeof text === 'string' ? text.length - text.trimEnd().length : 0
}
