/**
 * JSON of a list that grows at its end, in UTF-8, with commas and without brackets. Appending after an element that
 * already has a successor starts a new chunk, so that returned chunks are immutable.
 */

/** A list up to and including one of its elements: the chunk with the element, which links to the chunks before it. */
export interface JsonList {
  readonly chunk: JsonChunk
  /** The offset of the byte after the element. */
  readonly end: number
}

const MIN_CAPACITY = 1024
/**
 * A buffer grows to an eighth more than it needs, so that each byte is copied about eight times while a list grows.
 * That takes less time than reading the byte from the socket did.
 */
const SPARE_SHIFT = 3
const COMMA = Buffer.from(',')
const NOTHING = Buffer.alloc(0)

/**
 * Appends the JSON of one or more elements, separated by commas.
 * @returns the list up to and including the last of them
 */
export function appendJson(before: JsonList | undefined, json: string | Buffer): JsonList {
  const chunk =
    before !== undefined && before.chunk.length === before.end ? before.chunk : new JsonChunk(before)
  chunk.append(json)
  return { chunk, end: chunk.length }
}

/** Returns the JSON of a list in chunks that must not be modified. */
export function getChunks(list: JsonList): Buffer[] {
  const chunks: Buffer[] = []
  for (let at: JsonList | undefined = list; at !== undefined; at = at.chunk.before) {
    chunks.push(at.chunk.upTo(at.end))
  }
  return chunks.reverse()
}

class JsonChunk {
  readonly before: JsonList | undefined
  readonly #bytes = new GrowableBuffer()

  constructor(before: JsonList | undefined) {
    this.before = before
  }

  get length(): number {
    return this.#bytes.length
  }

  get capacity(): number {
    return this.#bytes.capacity
  }

  append(json: string | Buffer): void {
    const isFirst = this.length === 0 && this.before === undefined
    this.#bytes.append(isFirst ? NOTHING : COMMA, json)
  }

  upTo(end: number): Buffer {
    return this.#bytes.upTo(end)
  }
}

/** Bytes that grow at their end in a single buffer. Views of it that were returned stay valid and unchanged. */
export class GrowableBuffer {
  #bytes: Buffer = NOTHING
  #length = 0

  get length(): number {
    return this.#length
  }

  get capacity(): number {
    return this.#bytes.length
  }

  append(...parts: readonly (string | Buffer)[]): void {
    const end = parts.reduce((sum, part) => sum + Buffer.byteLength(part), this.#length)
    if (end > this.#bytes.length) this.#grow(Math.max(MIN_CAPACITY, end + (end >> SPARE_SHIFT)))
    for (const part of parts) {
      this.#length +=
        typeof part === 'string'
          ? this.#bytes.write(part, this.#length)
          : part.copy(this.#bytes, this.#length)
    }
  }

  upTo(end: number): Buffer {
    return this.#bytes.subarray(0, end)
  }

  #grow(capacity: number): void {
    // This memory is neither from the pool that small buffers share nor zero-filled.
    const larger = Buffer.allocUnsafeSlow(capacity)
    this.#bytes.copy(larger, 0, 0, this.#length)
    this.#bytes = larger
  }
}
