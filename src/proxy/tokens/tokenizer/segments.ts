/**
 * Splits prompts into segments and encodes them. Some encoders (Kimi K3's) declare for each segment whether special
 * tokens are recognized in it: they are in segments of markup, but not in segments of users' and tools' text. Each
 * segment is tokenized separately.
 *
 * A prompt of segments is represented by one string with a mark before each segment, so that two prompts are equal only
 * if their segments are. The marks are unpaired surrogates, which no segment contains (`model_encoder.py`). In the text
 * before the first mark, special tokens are recognized. A prompt that does not consist of segments contains no marks,
 * but may contain unpaired surrogates from a client.
 */
import { yieldToEventLoop } from '../../../base/yield-to-event-loop.ts'
import { concatIds } from '../../../protocol/token-ids/token-ids.ts'
import { type AddedToken, AddedTokenFinder, type TokenMatch } from './added-tokens.ts'

const TEXT_MARK = '\udc00'
const SPECIAL_MARK = '\udc01'
// With the flag `u`, the second half of a surrogate pair does not match.
const MARKS = new RegExp(`[${TEXT_MARK}${SPECIAL_MARK}]`, 'gu')

/** A segment of a marked text. */
interface Segment {
  text: string
  /** The index of the segment's first character in the marked text. */
  begin: number
  /** Whether special tokens are recognized in the segment. */
  allowsSpecial: boolean
}

/** Splits a marked text into its segments, without empty ones. */
export function splitSegments(marked: string): Segment[] {
  const segments: Segment[] = []
  let begin = 0
  let allowsSpecial = true
  const add = (end: number) => {
    if (end > begin) segments.push({ text: marked.slice(begin, end), begin, allowsSpecial })
  }
  for (const { 0: mark, index } of marked.matchAll(MARKS)) {
    add(index)
    begin = index + 1
    allowsSpecial = mark === SPECIAL_MARK
  }
  add(marked.length)
  return segments
}

/** Returns a marked text without its marks. */
export function removeMarks(marked: string): string {
  return marked.replace(MARKS, '')
}

/** Returns a segment in which special tokens are text. @param text well-formed */
export function createTextSegment(text: string): string {
  return TEXT_MARK + text
}

/** Returns a segment in which special tokens are recognized. @param text well-formed */
export function createSpecialSegment(text: string): string {
  return SPECIAL_MARK + text
}

/** A search for added tokens in a prompt's text. */
export class PromptAddedTokenFinder {
  readonly #finder: AddedTokenFinder
  readonly #hasSegments: boolean

  /**
   * @param ids the ids of added tokens by text
   * @param hasSegments whether texts are marked. If not, a client's unpaired surrogate must not be mistaken for a mark
   */
  constructor(ids: ReadonlyMap<string, number>, hasSegments: boolean) {
    this.#finder = new AddedTokenFinder(ids)
    this.#hasSegments = hasSegments
  }

  /** Generates the added tokens in segments that allow them, from left to right. */
  *find(text: string): Generator<TokenMatch> {
    if (!this.#hasSegments) {
      yield* this.#finder.find(text)
      return
    }
    for (const { text: ofSegment, begin: from, allowsSpecial } of splitSegments(text)) {
      if (!allowsSpecial) continue
      for (const { id, begin, end } of this.#finder.find(ofSegment))
        yield { id, begin: from + begin, end: from + end }
    }
  }

  /** Returns the text without marks, if texts are marked. */
  removeMarks(text: string): string {
    return this.#hasSegments ? removeMarks(text) : text
  }
}

/**
 * The number of segments to encode before yielding to the event loop. Encoding them takes about a millisecond if their
 * ids are cached.
 */
const SEGMENTS_PER_SLICE = 256

type EncodeText = (text: string) => Promise<ArrayLike<number>>

/** The encoders of both kinds of segments. */
interface SegmentEncoders {
  /** Encodes a text in which special tokens are recognized. */
  special: EncodeText
  /** Encodes a text in which no added token is recognized. */
  text: EncodeText
}

/** An encoder of the segments of a marked text, one by one. */
export class SegmentEncoder {
  readonly #encoders: SegmentEncoders
  readonly #addedIds: ReadonlyMap<string, number>
  readonly #mayContainToken: (text: string) => boolean

  constructor(encoders: SegmentEncoders, addedTokens: readonly AddedToken[]) {
    this.#encoders = encoders
    this.#addedIds = new Map(addedTokens.map(({ content, id }) => [content, id]))
    const finder = new AddedTokenFinder(this.#addedIds)
    // A token that is searched for in normalized text may be spelled differently in the text itself.
    this.#mayContainToken = addedTokens.some(({ normalized }) => normalized)
      ? () => true
      : (text) => !finder.find(text).next().done
  }

  /** Encodes the segments of a marked text. @throws errors of the encoders */
  async encode(marked: string): Promise<Int32Array> {
    const parts: Int32Array[] = []
    for (const segment of splitSegments(marked)) {
      parts.push(await this.#encodeSegment(segment))
      if (parts.length < SEGMENTS_PER_SLICE) continue
      parts.splice(0, parts.length, concatIds(...parts))
      await yieldToEventLoop()
    }
    return concatIds(...parts)
  }

  async #encodeSegment({ text, allowsSpecial }: Segment): Promise<Int32Array> {
    const id = allowsSpecial ? this.#addedIds.get(text) : undefined
    if (id !== undefined) return Int32Array.of(id)
    // If the text contains no added token, both encoders return the same ids, and only the ids of `special` are cached.
    const { special, text: plain } = this.#encoders
    return Int32Array.from(await (allowsSpecial || !this.#mayContainToken(text) ? special : plain)(text))
  }
}
