/** Searches the text of turns, and shows the context of a match. */
import { ProxyError } from '../../../base/errors.ts'
import { parseJson } from '../../../base/json.ts'
import type { SearchHit } from './turn-store.ts'

/** The minimum length of a text to search for: shorter ones are in almost every turn. */
export const MIN_SEARCHED_CHARS = 3

/** The limit on the text of a request, and on that of a completion; text beyond it is not found. */
const MAX_TEXT_CHARS = 1024 * 1024

/** The length of the context shown before and after a match. */
const AROUND_CHARS = 80

/** The content that a turn adds to its session. */
export interface TurnContent {
  /** The messages, as JSON, and the prompt texts that no earlier turn has. */
  messages: readonly string[]
  completionText: string | null
  reasoning: string | null
  /** A JSON array. */
  toolCalls: string | null
}

/** The searchable text of a turn. */
export interface TurnText {
  request: string
  completion: string
}

export function extractTurnText({ messages, completionText, reasoning, toolCalls }: TurnContent): TurnText {
  const sampled = [reasoning, completionText, ...(toolCalls === null ? [] : extractStrings(toolCalls))]
  return {
    request: limitTexts(messages.flatMap(extractStrings)),
    completion: limitTexts(sampled.filter((text) => text !== null)),
  }
}

/** Finds the first occurrence of a text, in the completion before the request. @param wanted in lower case */
export function findMatch(
  text: TurnText,
  wanted: string,
): Pick<SearchHit, 'foundIn' | 'before' | 'match' | 'after'> | undefined {
  for (const foundIn of ['completion', 'request'] as const) {
    const lower = text[foundIn].toLowerCase()
    const start = lower.indexOf(wanted)
    if (start === -1) continue
    // A few letters change their length with their case. The context is then shown in lower case.
    const shown = lower.length === text[foundIn].length ? text[foundIn] : lower
    const end = start + wanted.length
    return {
      foundIn,
      before: shown.slice(Math.max(0, start - AROUND_CHARS), start).toWellFormed(),
      match: shown.slice(start, end).toWellFormed(),
      after: shown.slice(end, end + AROUND_CHARS).toWellFormed(),
    }
  }
  return undefined
}

export function encodeSearchCursor(turn: number): string {
  return Buffer.from(JSON.stringify(['search', turn])).toString('base64url')
}

/**
 * Parses a cursor.
 * @returns the row id of the turn before which the search continues
 * @throws ProxyError `invalid_request`
 */
export function decodeSearchCursor(cursor: string | undefined): number {
  if (cursor === undefined) return Number.MAX_SAFE_INTEGER
  const [, turn] = /^\["search",(\d{1,16})\]$/.exec(Buffer.from(cursor, 'base64url').toString()) ?? []
  if (turn !== undefined) return Number(turn)
  throw new ProxyError('invalid_request', 'cursor is not one that a search returned', { param: 'cursor' })
}

/** The fields whose string values are not searched. */
const UNSEARCHED_FIELDS = new Set([
  'role',
  'type',
  'id',
  'call_id',
  'tool_call_id',
  'url',
  'file_data',
  'data',
  'signature',
])

/** Returns the decoded strings of a message or of tool calls; arguments, which are JSON within JSON, are parsed too. */
function extractStrings(json: string): string[] {
  const full = json.length > MAX_TEXT_CHARS ? undefined : parse(json)
  if (full === undefined) return [json.slice(0, MAX_TEXT_CHARS)]
  const texts: string[] = []
  const left: unknown[] = [full]
  while (left.length > 0) {
    const value = left.pop()
    if (typeof value === 'string') texts.push(value)
    else if (Array.isArray(value)) left.push(...value.toReversed())
    else if (typeof value === 'object' && value !== null) left.push(...selectMembers(value).reverse())
  }
  return texts
}

function selectMembers(value: object): unknown[] {
  return Object.entries(value).flatMap(([name, member]) => {
    if (UNSEARCHED_FIELDS.has(name) && typeof member === 'string') return []
    return [name === 'arguments' && typeof member === 'string' ? (parse(member) ?? member) : member]
  })
}

/** Parses JSON. @returns undefined unless it is an object, an array or a string */
function parse(json: string): object | string | undefined {
  return /^\s*[[{"]/.test(json) ? (parseJson(json) as object | string | undefined) : undefined
}

function limitTexts(texts: readonly string[]): string {
  return texts.join('\n').slice(0, MAX_TEXT_CHARS)
}
