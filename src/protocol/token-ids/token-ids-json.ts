/** Token ids as JSON: lists with commas between the ids, without brackets. */

const [COMMA, ZERO] = [0x2c, 0x30]
/** The maximum number of digits of an id that is read: every such number fits in 32 bits. */
const MAX_DIGITS = 9
/** The length of the longest id and a comma. */
const MAX_BYTES = 11

/**
 * A reused buffer for reading lists. The number of ids in a list is not known in advance, so an array for each list
 * would be larger than needed, which makes the garbage collector run three times as often.
 */
let idsRead = new Int32Array(1024)

/** Reads ids from one offset up to another. @returns undefined if the bytes are not a list of ids */
export function readIds(bytes: Buffer, start: number, end: number): Int32Array | undefined {
  let ids = idsRead
  let count = 0
  for (let offset = start; offset <= end; offset += 1) {
    const first = offset
    let id = 0
    // The digits are the bytes from 0x30 to 0x39.
    for (let digit = bytes[offset]! ^ ZERO; digit <= 9; digit = bytes[offset]! ^ ZERO) {
      id = (id * 10 + digit) | 0
      offset += 1
    }
    const digits = offset - first
    const isId = digits === 1 || (digits > 1 && digits <= MAX_DIGITS && bytes[first] !== ZERO)
    if (!isId || (offset < end && bytes[offset] !== COMMA)) return undefined
    if (count === ids.length) ids = idsRead = grow(ids)
    ids[count] = id
    count += 1
  }
  return ids.slice(0, count)
}

function grow(ids: Int32Array): Int32Array<ArrayBuffer> {
  const larger = new Int32Array(ids.length * 2)
  larger.set(ids)
  return larger
}

/** A reused buffer for writing ids; see {@link idsRead}. */
let textWritten = Buffer.allocUnsafeSlow(1024 * MAX_BYTES)

/**
 * Writes ids as JSON, separated by commas. `JSON.stringify` of a list of them takes four times as long, and blocks for
 * five milliseconds for 128,000.
 */
export function writeIds(ids: Int32Array): Buffer {
  if (textWritten.length < ids.length * MAX_BYTES)
    textWritten = Buffer.allocUnsafeSlow(ids.length * MAX_BYTES)
  let end = 0
  // A loop by index: the iterator of a typed array takes more time than all the rest.
  for (let index = 0; index < ids.length; index += 1) {
    const id = ids[index]!
    // No tokenizer has negative ids, but the engine must receive them as they are.
    if (id < 0) return Buffer.from(ids.join(','))
    end = writeId(textWritten, end, id)
    textWritten[end] = COMMA
    end += 1
  }
  return Buffer.from(textWritten.subarray(0, Math.max(0, end - 1)))
}

/** Writes one id. @returns the offset of the byte after it */
function writeId(bytes: Buffer, start: number, id: number): number {
  let end = start + 1
  for (let bound = 10; bound <= id; bound *= 10) end += 1
  let rest = id
  for (let index = end - 1; index >= start; index -= 1) {
    const tens = (rest / 10) | 0
    bytes[index] = ZERO + rest - tens * 10
    rest = tens
  }
  return end
}
