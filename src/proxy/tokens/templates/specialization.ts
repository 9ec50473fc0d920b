/**
 * A specialization is a template's text for messages of one shape: constant texts, and slots for the contents of the
 * messages. It is valid for contents that meet its conditions. `python/specialize.py` derives it from one rendering, and
 * `python/encoder_tracing.py` from one call of a prompt encoder.
 */
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'

/** A template's text for messages of one shape, and the conditions under which it is valid. */
export interface Specialization {
  pieces: readonly (string | Slot)[]
  conditions: readonly Condition[]
}

/** The index of a content, and the strips to apply to it; index -1: the date. */
type Slot = readonly [index: number, strips: readonly Strip[]]
/**
 * A side of a text, and the characters to remove from it (null: white space); or `last`, and the number of last characters
 * that remain.
 */
type Strip = readonly [side: 'l' | 'r', characters: string | null] | readonly [side: 'last', count: number]
/** A comparison of a stripped content with a text or another slot, and its required result. */
type Condition = readonly [
  index: number,
  strips: readonly Strip[],
  ...(
    | [kind: 'equals' | 'contains' | 'starts' | 'ends', text: string]
    /** The content equals another slot. */
    | [kind: 'same', other: Slot]
  ),
  holds: boolean,
]

/** The path of a text: keys and indices, starting at the list of messages. */
export type TextPath = readonly (string | number)[]

/** The shape of messages, and their contents. */
export interface ContentSplit {
  /** A key that is equal for messages that differ only in contents. */
  key: string
  contents: readonly string[]
  /** The path of each content. */
  paths: readonly TextPath[]
}

/** The maximum length of all messages: parsing longer ones on the event loop would cost more than it saves. */
const MAX_CHARS = 64 * 1024
/** The maximum number of messages: shapes of more messages rarely occur again. */
const MAX_MESSAGES = 8
/** The fields that are contents. */
const CONTENTS: ReadonlySet<string> = new Set(['content', 'tool_call_id'])
/** The fields that belong to the shape. */
const OTHERS: ReadonlySet<string> = new Set(['role', 'name'])

/**
 * Separates the contents of messages from their shape.
 * @param from the index of the first message in the conversation that is rendered
 * @returns undefined if a message has a field other than role, name, content and tool call id, or a value that is not a
 *   text, and if the messages are too many or too long
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

/** Returns whether the template writes the date. */
export function writesDate({ pieces }: Specialization): boolean {
  return pieces.some((piece) => typeof piece !== 'string' && piece[0] === -1)
}

/**
 * Returns whether a specialization and the template yield the same text for the contents from which the specialization
 * was derived, and for variants of them. They should by construction; this check is independent of it.
 * @param render renders messages with these contents; returns undefined if the template rejects them
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

/** Variants of a content. Many meet the conditions, because they preserve its beginning, its end or its words. */
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

/** Increases the indices of contents in conditions. @param offset the number of contents that precede them */
export function shiftConditions(conditions: readonly Condition[], offset: number): readonly Condition[] {
  return conditions.map(([index, strips, ...comparison]) =>
    comparison[0] === 'same'
      ? [index + offset, strips, 'same', [comparison[1][0] + offset, comparison[1][1]], comparison[2]]
      : [index + offset, strips, ...comparison],
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
    if (PREDICATES[kind](readSlot([index, strips]), compared) !== holds) return undefined
  }
  let text = ''
  for (const piece of pieces) text += typeof piece === 'string' ? piece : readSlot(piece)
  return text
}

const PREDICATES = {
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
