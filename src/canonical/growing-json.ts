/**
 * JSON of a list that grows at its end, in UTF-8, with commas and without brackets. What is behind an end that something
 * else follows already begins a piece of its own, so that what was given out stays what it is.
 */

/** A list up to one of its elements: the piece that this stands in, and by that the pieces before. */
export interface JsonSoFar {
  readonly piece: JsonPiece
  /** The byte after the element. */
  readonly end: number
}

const MIN_CAPACITY = 1024
const COMMA = 0x2c

/** @param json of one or more elements, with commas between them @returns the list up to the last of them */
export function jsonAfter(before: JsonSoFar | undefined, json: string | Buffer): JsonSoFar {
  const piece =
    before !== undefined && before.piece.length === before.end ? before.piece : new JsonPiece(before)
  piece.append(json)
  return { piece, end: piece.length }
}

/** Not to be changed. */
export function piecesOf(list: JsonSoFar): Buffer[] {
  const pieces: Buffer[] = []
  for (let at: JsonSoFar | undefined = list; at !== undefined; at = at.piece.before) {
    pieces.push(at.piece.upTo(at.end))
  }
  return pieces.reverse()
}

export class JsonPiece {
  readonly before: JsonSoFar | undefined
  #bytes: Buffer = Buffer.alloc(0)
  length = 0

  constructor(before: JsonSoFar | undefined) {
    this.before = before
  }

  get capacity(): number {
    return this.#bytes.length
  }

  append(json: string | Buffer): void {
    const comma = this.length === 0 && this.before === undefined ? 0 : 1
    const end = this.length + comma + Buffer.byteLength(json)
    if (end > this.#bytes.length) this.#grow(Math.max(MIN_CAPACITY, end + (end >> 1)))
    if (comma === 1) this.#bytes[this.length] = COMMA
    if (typeof json === 'string') this.#bytes.write(json, this.length + comma)
    else json.copy(this.#bytes, this.length + comma)
    this.length = end
  }

  upTo(end: number): Buffer {
    return this.#bytes.subarray(0, end)
  }

  #grow(capacity: number): void {
    // Not from the pool that small buffers share, and not filled with zeros first.
    const larger = Buffer.allocUnsafeSlow(capacity)
    this.#bytes.copy(larger, 0, 0, this.length)
    this.#bytes = larger
  }
}
