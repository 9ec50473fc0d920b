/**
 * Words that stand for what was said, so that a text shows where each thing went. A template has no reason to change
 * them: no space, no markup, nothing to escape. No agent can know them.
 */
import { randomBytes } from 'node:crypto'

/** Letters only, drawn when the process starts. */
const SECRET = Array.from(randomBytes(12), (byte) => String.fromCharCode(97 + (byte % 26))).join('')

/** Of what, in order: templates may leave reasoning out later, and nothing else. */
type SentinelField = 'message' | 'reasoning'

const LETTER: Record<SentinelField, string> = { message: 'm', reasoning: 'r' }
const MARK = new RegExp(`${SECRET}[mr]\\d+x`, 'g')

export function createSentinel(marked: SentinelField, number: number): string {
  return `${SECRET}${LETTER[marked]}${number}x`
}

export function hasSentinel(text: string): boolean {
  return text.includes(SECRET)
}

/** What stands before the first mark. */
export function getTextBeforeSentinel(text: string): string {
  const index = text.indexOf(SECRET)
  return index === -1 ? text : text.slice(0, index)
}

/** Where the last of these marks ends; undefined if the text has none of them. */
export function findSentinelsEnd(text: string, marks: readonly string[]): number | undefined {
  const ends = marks.map((mark) => text.lastIndexOf(mark) + mark.length)
  const found = ends.filter((end, index) => end >= marks[index]!.length)
  return found.length === 0 ? undefined : Math.max(...found)
}

/**
 * Whether a past that was rendered again, with more behind it, says what it said before. Reasoning may be left out, and
 * the markup around it: recorded ids keep it, as the engine saw it. What else goes, moves or comes does not stay.
 */
export function isSameHistory(before: string, after: string): boolean {
  if (before === after) return true
  const kept = after.match(MARK) ?? []
  const left = new Set(kept)
  const stays = (mark: string) => left.has(mark) || !mark.startsWith(SECRET + LETTER.reasoning)
  const stayed = (before.match(MARK) ?? []).filter(stays)
  if (stayed.length !== kept.length || stayed.some((mark, index) => mark !== kept[index])) return false
  const pieces = (text: string) => {
    const ends: string[] = []
    let from = 0
    for (const mark of kept) {
      const index = text.indexOf(mark, from)
      ends.push(text.slice(from, index))
      from = index + mark.length
    }
    return [...ends, text.slice(from)]
  }
  const was = pieces(before)
  return pieces(after).every((piece, index) => isWithoutOnePart(was[index]!, piece))
}

/**
 * Whether a past that has no marks lost something at most: nothing came and nothing moved, but for white space, which
 * templates strip beside reasoning and leave where that has gone. That it was reasoning that went, a past of marks shows.
 */
export function losesAtMost(before: string, after: string): boolean {
  const kept = after.replaceAll(/\s+/g, '')
  let found = 0
  for (let at = 0; at < before.length && found < kept.length; at += 1)
    if (before[at] === kept[found]) found += 1
  return found === kept.length
}

/** Whether `rest` is `whole` less one piece. */
function isWithoutOnePart(whole: string, rest: string): boolean {
  return rest.length <= whole.length && whole.endsWith(rest.slice(sharedLength(rest, whole)))
}

export function sharedLength(left: string, right: string): number {
  let length = 0
  while (length < left.length && left[length] === right[length]) length += 1
  return length
}
