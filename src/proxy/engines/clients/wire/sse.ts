/**
 * Parser of server-sent events, limited to what inference servers use: the `data` of each event. It follows
 * https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation: lines end with LF, CR or
 * CRLF, comments and other fields are skipped, several data lines are joined with LF, and a leading BOM and an
 * incomplete event at the end of the stream are dropped.
 *
 * It works on bytes, because a read of the socket may end anywhere, even within a character. Only complete lines are
 * decoded, and long lines are returned as bytes: an engine's first event contains all ids of the prompt.
 */
import { createResponseTooLargeError } from './failures.ts'
import { copyIfShared, joinChunks } from './join-chunks.ts'

const LF = 0x0a
const CR = 0x0d
const COLON = 0x3a
const SPACE = 0x20
const [D, A, T] = [0x64, 0x61, 0x74]

/** The length from which data is returned as bytes. */
const LONG_BYTES = 16 * 1024

/**
 * The data of an event, as UTF-8 bytes if it is one long line; {@link SseParser.push} states how long the bytes are
 * valid.
 */
export type EventData = string | Buffer

export class SseParser {
  readonly #engine: string
  readonly #maxBytes: number
  /** Chunks of an incomplete line. They are joined once, so that a long line does not take quadratic time. */
  #chunks: Buffer[] = []
  #chunkBytes = 0
  #data: EventData | undefined
  /** Whether the last chunk ended with CR, to which an LF at the start of the next chunk belongs. */
  #afterCr = false
  #atStart = true

  /**
   * @param engine the engine's name, for errors
   * @param maxBytes the limit for one event
   */
  constructor(engine: string, maxBytes = Number.POSITIVE_INFINITY) {
    this.#engine = engine
    this.#maxBytes = maxBytes
  }

  /**
   * Parses a chunk.
   * @throws ProxyError `engine_failed` for an event that exceeds the limit
   * @returns the data of each event that `chunk` completes. The parser retains no reference to the chunk. Bytes must be
   *   read immediately: the next response that is read may reuse their buffer.
   */
  push(chunk: Uint8Array): EventData[] {
    const bytes = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)
    const events: EventData[] = []
    if (bytes.length === 0) return events
    let index = this.#afterCr && bytes[0] === LF ? 1 : 0
    let lf = bytes.indexOf(LF, index)
    let cr = bytes.indexOf(CR, index)
    while (lf !== -1 || cr !== -1) {
      const end = cr === -1 || (lf !== -1 && lf < cr) ? lf : cr
      this.#endLine(bytes, index, end, events)
      index = end === cr && bytes[end + 1] === LF ? end + 2 : end + 1
      if (cr !== -1 && cr < index) cr = bytes.indexOf(CR, index)
      if (lf !== -1 && lf < index) lf = bytes.indexOf(LF, index)
    }
    this.#afterCr = bytes[bytes.length - 1] === CR
    if (index < bytes.length) {
      this.#chunks.push(bytes.subarray(index))
      this.#chunkBytes += bytes.length - index
    }
    if (typeof this.#data === 'object') this.#data = copyIfShared(this.#data)
    const bufferedBytes = this.#chunkBytes + (this.#data?.length ?? 0)
    if (bufferedBytes > this.#maxBytes) throw createResponseTooLargeError(this.#engine, this.#maxBytes)
    return events
  }

  #endLine(bytes: Buffer, start: number, end: number, events: EventData[]): void {
    if (this.#chunks.length === 0 && !this.#atStart) {
      this.#readLine(bytes, start, end, events)
      return
    }
    // Only the first line of a chunk may have begun in an earlier one.
    const line = joinChunks([...this.#chunks, bytes.subarray(start, end)])
    this.#chunks = []
    this.#chunkBytes = 0
    const hasBom = this.#atStart && line[0] === 0xef && line[1] === 0xbb && line[2] === 0xbf
    this.#atStart = false
    this.#readLine(line, hasBom ? 3 : 0, line.length, events)
  }

  #readLine(bytes: Buffer, start: number, end: number, events: EventData[]): void {
    if (start === end) {
      if (this.#data !== undefined) events.push(this.#data)
      this.#data = undefined
      return
    }
    const isData =
      bytes[start] === D && bytes[start + 1] === A && bytes[start + 2] === T && bytes[start + 3] === A
    const nameEnd = start + 4
    if (!isData || (nameEnd !== end && bytes[nameEnd] !== COLON)) return
    let valueStart = Math.min(nameEnd + 1, end)
    if (valueStart < end && bytes[valueStart] === SPACE) valueStart += 1
    const isLong = end - valueStart >= LONG_BYTES
    const value = isLong ? bytes.subarray(valueStart, end) : bytes.toString('utf8', valueStart, end)
    this.#data = this.#data === undefined ? value : `${this.#data}\n${value}`
  }
}
