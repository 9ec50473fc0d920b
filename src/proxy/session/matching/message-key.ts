/**
 * Message equality. The rule depends on the role.
 *
 * An assistant message is an echo of a completion, and clients normalize echoes: they trim the text, split it into
 * parts, change tool-call ids, reformat arguments, omit reasoning in whole or in part and attach metadata. Only role,
 * name, text, tool calls and reasoning are compared: the prompt contains the sampled tokens, so a template never
 * renders the other fields.
 *
 * Any other message originates from the agent and is compared as a template would render it, including white space.
 * Only insignificant differences are ignored: null, absent and empty fields, one text part in place of a string,
 * `cache_control`, which agents move to the newest messages on every request, and members whose name begins with an
 * underscore: clients store their own data there (Copilot CLI: `__copilotMessageSource` after a resume), and no
 * template or engine reads them. Text in several parts differs from one string, since templates choose the separator.
 */
import { hash } from 'node:crypto'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import { toCanonicalJson } from './canonical-json.ts'
import { readArguments, type ToolArguments } from './tool-arguments.ts'
import { isProxyToolCallId, restoreId } from './tool-call-ids.ts'

export interface MessageKey {
  /** A digest that is equal for equal messages. It excludes the reasoning of an assistant message. */
  readonly digest: string
  /** Set for assistant messages only. */
  readonly assistant?: AssistantKey
}

/** The parts of an assistant message that an echo may omit or reformat. */
export interface AssistantKey {
  /** The trimmed reasoning; undefined if there is none. */
  readonly reasoning: string | undefined
  readonly arguments: readonly ToolArguments[]
  readonly toolCallIds: readonly (string | undefined)[]
  /** Order-independent key of the set of tool calls; undefined unless a proxy generated all their ids. */
  readonly drawnCalls: string | undefined
  readonly message: LooseMessage
}

/** The client-changeable form of an assistant message. It distinguishes completions that are otherwise equal. */
export interface Wording {
  readonly toolCallIds: string
  readonly arguments: string
  /** Amount of white space at both ends of the text. */
  readonly margins: string
}

/** A message as received, unvalidated: the types of OpenAI's package describe valid messages only. */
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

/** Field names that engines and clients use for the reasoning of a message. */
const REASONING_FIELDS = ['reasoning_content', 'reasoning', 'thinking']

/** Returns a SHA-256 digest: 256 bits make collisions infeasible. */
export function computeDigest(text: string): string {
  return hash('sha256', text, 'base64')
}

/**
 * Computes the key of a message.
 * @param answeredCall for a tool result: the tool call that it answers, by id if a proxy generated the id, otherwise by
 *   index, because clients rename other ids
 */
export function computeMessageKey(message: ChatMessage, answeredCall?: number | string): MessageKey {
  const loose = message as LooseMessage
  return loose.role === 'assistant'
    ? computeAssistantKey(loose)
    : { digest: computeDigest(serializeOther(loose, answeredCall)) }
}

function serializeOther(message: LooseMessage, answeredCall: number | string | undefined): string {
  const { content, ...fields } = message
  // Most messages are one text of a role.
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

/** Returns the members that a template can render. */
function listShownMembers(fields: object): [string, unknown][] {
  return Object.entries(fields).filter(([name]) => name !== 'cache_control' && !name.startsWith('_'))
}

function isEmpty(value: unknown): boolean {
  if (value === null || value === undefined || value === '') return true
  return typeof value === 'object' && Object.keys(value).length === 0
}

/** Converts content to parts: texts as strings, others by value. Every form of empty content yields no parts. */
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
 * Serializes parts unambiguously. Text is length-prefixed rather than escaped, since escaping a long text takes longer
 * than hashing it. Lone surrogates are escaped, because hashing would map all of them to the same character.
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

/** Returns the key of a set of tool calls; undefined if an id occurs twice or was not generated by a proxy. */
function toToolCallKey(ids: readonly (string | undefined)[]): string | undefined {
  const isDrawnSet = ids.length > 0 && ids.every((id) => id !== undefined && isProxyToolCallId(id))
  return isDrawnSet && new Set(ids).size === ids.length ? ids.toSorted().join(' ') : undefined
}

/**
 * Counts the letters and digits in the text and tool calls of an assistant message. Other characters are excluded
 * because clients change white space, quotes and escapes.
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

/** Serializes an assistant message without reasoning and arguments. Computed on demand: it is as long as the text. */
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

/** Computes the digest of the parts that an echo preserves when the message's arguments are malformed. */
export function computeDigestWithoutArguments({ message }: AssistantKey): string {
  return computeDigest(serializeWithoutArguments(message))
}

function getToolCalls({ tool_calls: calls }: LooseMessage): LooseToolCall[] {
  return Array.isArray(calls) ? (calls as LooseToolCall[]) : []
}

/** Joins adjacent text parts: one text was sampled, and an echo may split it. */
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

/** Returns the wording of a message. Needed once per recorded message, and to distinguish similar completions. */
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
