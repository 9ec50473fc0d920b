/**
 * Sentinels are words that are rendered in place of contents to show where a template writes each content. Templates
 * have no reason to change them, because they contain no spaces, no markup and nothing to escape. Clients cannot guess
 * them.
 */
import { randomBytes } from 'node:crypto'

/** The random letters with which every sentinel begins, created when the process starts. */
const SECRET = Array.from(randomBytes(12), (byte) => String.fromCharCode(97 + (byte % 26))).join('')

/** The field that a sentinel replaces. Templates may omit the reasoning of earlier messages, but no other field. */
type SentinelField = 'message' | 'reasoning'

const LETTER: Record<SentinelField, string> = { message: 'm', reasoning: 'r' }
const SENTINEL = new RegExp(`${SECRET}[mr]\\d+x`, 'g')

export function createSentinel(field: SentinelField, number: number): string {
  return `${SECRET}${LETTER[field]}${number}x`
}

export function hasSentinel(text: string): boolean {
  return text.includes(SECRET)
}

/** Returns the text before the first sentinel. */
export function getTextBeforeSentinel(text: string): string {
  const index = text.indexOf(SECRET)
  return index === -1 ? text : text.slice(0, index)
}

/**
 * Splits a rendered conversation after the echo.
 * @param sentinels the sentinels of the echo: those of its content, its tool calls and its reasoning
 * @returns undefined if the text contains neither of the first two
 */
export function splitAfterSentinels(
  text: string | undefined,
  sentinels: readonly string[],
): { past: string; rest: string } | undefined {
  // The end of reasoning is not necessarily the end of the message.
  const isShown = text !== undefined && sentinels.slice(0, 2).some((sentinel) => text.includes(sentinel))
  const end = isShown ? findSentinelsEnd(text, sentinels) : undefined
  return end === undefined ? undefined : { past: text!.slice(0, end), rest: text!.slice(end) }
}

/** Returns the offset after the last of these sentinels; undefined if the text contains none of them. */
export function findSentinelsEnd(text: string, sentinels: readonly string[]): number | undefined {
  const ends = sentinels.map((sentinel) => text.lastIndexOf(sentinel) + sentinel.length)
  const found = ends.filter((end, index) => end >= sentinels[index]!.length)
  return found.length === 0 ? undefined : Math.max(...found)
}

/**
 * Returns whether a history of sentinels is unchanged when messages follow it. Reasoning may be omitted together with
 * its markup, because recorded ids contain it as the engine received it. Any other removal, move or addition is a
 * change.
 */
export function isSameHistory(before: string, after: string): boolean {
  if (before === after) return true
  const kept = after.match(SENTINEL) ?? []
  const left = new Set(kept)
  const stays = (sentinel: string) => left.has(sentinel) || !sentinel.startsWith(SECRET + LETTER.reasoning)
  const stayed = (before.match(SENTINEL) ?? []).filter(stays)
  if (stayed.length !== kept.length || stayed.some((sentinel, index) => sentinel !== kept[index]))
    return false
  const pieces = (text: string) => {
    const ends: string[] = []
    let from = 0
    for (const sentinel of kept) {
      const index = text.indexOf(sentinel, from)
      ends.push(text.slice(from, index))
      from = index + sentinel.length
    }
    return [...ends, text.slice(from)]
  }
  const was = pieces(before)
  return pieces(after).every((piece, index) => isWithoutOnePart(was[index]!, piece))
}

/**
 * Returns whether a history without sentinels changed only by removals; whether the removed text was reasoning must be
 * determined with a dummy history. White space is ignored, because templates strip it next to reasoning but not if the
 * reasoning is omitted.
 */
export function hasOnlyRemovals(before: string, after: string): boolean {
  const kept = after.replaceAll(/\s+/g, '')
  let found = 0
  for (let index = 0; index < before.length && found < kept.length; index += 1)
    if (before[index] === kept[found]) found += 1
  return found === kept.length
}

/** Returns whether `rest` is `full` without one contiguous part. */
function isWithoutOnePart(full: string, rest: string): boolean {
  return rest.length <= full.length && full.endsWith(rest.slice(countSharedChars(rest, full)))
}

export function countSharedChars(left: string, right: string): number {
  let length = 0
  while (length < left.length && left[length] === right[length]) length += 1
  return length
}
