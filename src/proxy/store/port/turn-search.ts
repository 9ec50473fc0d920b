/** Finding what was said and sampled: the text of a turn, and where in it something stands. */
import { ProxyError } from '../../../base/errors.ts'
import { parseJson } from '../../../base/json.ts'
import type { SearchHit } from './turn-store.ts'

/** Shorter texts are in almost every turn. */
export const MIN_SEARCHED_CHARS = 3

/** Of each half of a turn; what is beyond is not found. */
const MAX_TEXT_CHARS = 1024 * 1024

/** What is shown of the text before and after what was found. */
const AROUND_CHARS = 80

/** What a turn adds to its session, as JSON texts but for the completion's. */
export interface SpokenTurn {
  /** Messages and prompt pieces that no turn before has. */
  messages: readonly string[]
  completionText: string | null
  reasoning: string | null
  /** A JSON array. */
  toolCalls: string | null
}

export interface SpokenText {
  request: string
  completion: string
}

export function spokenText({ messages, completionText, reasoning, toolCalls }: SpokenTurn): SpokenText {
  const sampled = [reasoning, completionText, ...(toolCalls === null ? [] : textsIn(toolCalls))]
  return {
    request: bounded(messages.flatMap(textsIn)),
    completion: bounded(sampled.filter((text) => text !== null)),
  }
}

/** @param wanted in lower case */
export function findIn(
  text: SpokenText,
  wanted: string,
): Pick<SearchHit, 'foundIn' | 'before' | 'match' | 'after'> | undefined {
  for (const foundIn of ['completion', 'request'] as const) {
    const lower = text[foundIn].toLowerCase()
    const start = lower.indexOf(wanted)
    if (start === -1) continue
    // Few letters change their length with their case: then the text is shown in lower case.
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

/** @returns the turn before which the search goes on. @throws ProxyError `invalid_request` */
export function decodeSearchCursor(cursor: string | undefined): number {
  if (cursor === undefined) return Number.MAX_SAFE_INTEGER
  const [, turn] = /^\["search",(\d{1,16})\]$/.exec(Buffer.from(cursor, 'base64url').toString()) ?? []
  if (turn !== undefined) return Number(turn)
  throw new ProxyError('invalid_request', 'cursor is not one that a search returned', { param: 'cursor' })
}

/** Nobody searches for what these say. */
const UNSPOKEN = new Set([
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

/** The strings of a message or of calls, as they are written there: arguments, which are JSON in JSON, as their values. */
function textsIn(json: string): string[] {
  const whole = json.length > MAX_TEXT_CHARS ? undefined : parsed(json)
  if (whole === undefined) return [json.slice(0, MAX_TEXT_CHARS)]
  const texts: string[] = []
  const left: unknown[] = [whole]
  while (left.length > 0) {
    const value = left.pop()
    if (typeof value === 'string') texts.push(value)
    else if (Array.isArray(value)) left.push(...value.toReversed())
    else if (typeof value === 'object' && value !== null) left.push(...spokenMembers(value).reverse())
  }
  return texts
}

function spokenMembers(value: object): unknown[] {
  return Object.entries(value).flatMap(([name, member]) => {
    if (UNSPOKEN.has(name) && typeof member === 'string') return []
    return [name === 'arguments' && typeof member === 'string' ? (parsed(member) ?? member) : member]
  })
}

/** @returns undefined for what is no JSON, or a number */
function parsed(json: string): object | string | undefined {
  return /^\s*[[{"]/.test(json) ? (parseJson(json) as object | string | undefined) : undefined
}

function bounded(texts: readonly string[]): string {
  return texts.join('\n').slice(0, MAX_TEXT_CHARS)
}
