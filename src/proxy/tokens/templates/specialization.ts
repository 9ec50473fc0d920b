/**
 * A template's text for messages of one shape, whatever their contents are: constant texts, and slots for the contents.
 * It holds for contents that meet its conditions. `python/specialize.py` derives it from one rendering, and
 * `python/encoder_tracing.py` from one call of a prompt encoder.
 */
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'

export interface Specialization {
  pieces: readonly (string | Slot)[]
  conditions: readonly Condition[]
}

/** A content whose ends were stripped; index -1: the date. */
type Slot = readonly [index: number, strips: readonly Strip[]]
/** Removes characters from an end, null: white space; or all but the last ones. */
type Strip = readonly [side: 'l' | 'r', characters: string | null] | readonly [side: 'last', count: number]
type Condition = readonly [
  index: number,
  strips: readonly Strip[],
  ...(
    | [kind: 'equals' | 'contains' | 'starts' | 'ends', text: string]
    /** Whether the content equals another one. */
    | [kind: 'same', other: Slot]
  ),
  holds: boolean,
]

/** Keys and indices from the list of messages to a text. */
export type TextPath = readonly (string | number)[]

/** Messages without their contents, and the contents. */
export interface ContentSplit {
  /** Equal for messages that differ in contents only. */
  key: string
  contents: readonly string[]
  /** The place of each content. */
  paths: readonly TextPath[]
}

/** Longer messages are not worth parsing on the event loop, and shapes of more messages rarely occur again. */
const MAX_CHARS = 64 * 1024
const MAX_MESSAGES = 8
const CONTENTS: ReadonlySet<string> = new Set(['content', 'tool_call_id'])
const OTHERS: ReadonlySet<string> = new Set(['role', 'name'])

/**
 * Separates messages from their contents.
 * @param from the index of the first message in the conversation that is rendered
 * @returns undefined if a message has other fields than texts, or the messages are too many or too long
 */
export function splitContents(
  messages: readonly (ChatMessage | string)[],
  from = 0,
): ContentSplit | undefined {
  if (messages.length > MAX_MESSAGES) return undefined
  const chars = messages.reduce((sum, one) => sum + (typeof one === 'string' ? one.length : 0), 0)
  if (chars > MAX_CHARS) return undefined
  const contents: string[] = []
  const paths: TextPath[] = []
  const shapes: object[] = []
  for (const [index, message] of messages.entries()) {
    const shape: Record<string, string> = {}
    for (const [name, value] of Object.entries(typeof message === 'string' ? JSON.parse(message) : message)) {
      if (typeof value !== 'string' || !value.isWellFormed()) return undefined
      if (CONTENTS.has(name)) {
        contents.push(value)
        paths.push([from + index, name])
        shape[name] = ''
      } else if (OTHERS.has(name)) shape[name] = value
      else return undefined
    }
    shapes.push(shape)
  }
  return { key: JSON.stringify(shapes), contents, paths }
}

/** Returns whether the date is part of the text. */
export function writesDate({ pieces }: Specialization): boolean {
  return pieces.some((piece) => typeof piece !== 'string' && piece[0] === -1)
}

/**
 * Returns whether a specialization writes what the template writes, for the contents that it was derived from and for
 * variants of them. It must by construction; this check does not depend on how it was derived.
 * @param render renders messages with these contents; undefined: the template rejects them
 */
export function isVerified(
  specialization: Specialization,
  sample: readonly string[],
  render: (contents: readonly string[]) => string | undefined,
): boolean {
  if (fillSlots(specialization, sample) !== render(sample)) return false
  if (sample.length === 0) return true
  return VARIANTS.every((vary) => {
    const contents = sample.map(vary)
    const filled = fillSlots(specialization, contents)
    return filled === undefined || filled === render(contents)
  })
}

/** Variants that many conditions allow: they keep the beginning, the end or the words of a content. */
const VARIANTS: readonly ((content: string, index: number) => string)[] = [
  (content) => `${content}z`,
  (content) => `z${content}`,
  (content) => ` \n${content}`,
  (content) => `${content}\u3000\n`,
  (content, index) => (index % 2 === 0 ? `${content}${content}` : `1${content}`),
  () => '',
  () => ' \n',
  (_, index) => `{"a": ${index}} <b> 'c' "d" \\ %s`,
  (_, index) => (index % 2 === 0 ? 'z' : ''),
  () => '<think>\nz\n</think>\n\n<tool_response>\nz\n</tool_response>',
]

/** Returns conditions on contents that follow others. @param offset the number of those */
export function shiftConditions(conditions: readonly Condition[], offset: number): readonly Condition[] {
  return conditions.map(([index, strips, ...question]) =>
    question[0] === 'same'
      ? [index + offset, strips, 'same', [question[1][0] + offset, question[1][1]], question[2]]
      : [index + offset, strips, ...question],
  )
}

/** Returns the template's text for these contents; undefined if a condition does not hold. */
export function fillSlots(
  { pieces, conditions }: Specialization,
  contents: readonly string[],
): string | undefined {
  const readSlot = ([index, strips]: Slot) => strip(contents[index]!, strips)
  for (const [index, strips, kind, other, holds] of conditions) {
    const compared = typeof other === 'string' ? other : readSlot(other)
    if (ANSWERS[kind](readSlot([index, strips]), compared) !== holds) return undefined
  }
  let text = ''
  for (const piece of pieces) text += typeof piece === 'string' ? piece : readSlot(piece)
  return text
}

const ANSWERS = {
  equals: (text: string, other: string) => text === other,
  same: (text: string, other: string) => text === other,
  contains: (text: string, other: string) => text.includes(other),
  starts: (text: string, other: string) => text.startsWith(other),
  ends: (text: string, other: string) => text.endsWith(other),
}

/** The characters that Python's `str.strip` removes. JavaScript's `trim` removes others. */
const WHITE_SPACE =
  '\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000'

function strip(content: string, strips: readonly Strip[]): string {
  let text = content
  for (const [side, characters] of strips) {
    if (side === 'last') {
      text = [...text].slice(-characters).join('')
      continue
    }
    const removed = characters ?? WHITE_SPACE
    let begin = 0
    let end = text.length
    if (side === 'l') while (begin < end && removed.includes(text[begin]!)) begin += 1
    else while (end > begin && removed.includes(text[end - 1]!)) end -= 1
    text = text.slice(begin, end)
  }
  return text
}
