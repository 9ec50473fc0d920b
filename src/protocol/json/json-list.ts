/**
 * Finds values, and the elements of a list, in the bytes of JSON without parsing them. It does not validate: the
 * results are correct only if the bytes are JSON.
 */

const [QUOTE, BACKSLASH, COMMA, COLON] = [0x22, 0x5c, 0x2c, 0x3a]
const [LIST, LIST_END, OBJECT, OBJECT_END] = [0x5b, 0x5d, 0x7b, 0x7d]
const [SPACE, TAB, LINE_FEED, CARRIAGE_RETURN] = [0x20, 0x09, 0x0a, 0x0d]

/** The bytes that delimit the members of an object. */
export const DELIMITERS = {
  quote: QUOTE,
  comma: COMMA,
  colon: COLON,
  list: LIST,
  object: OBJECT,
  objectEnd: OBJECT_END,
} as const

interface ElementOffsets {
  /** The offset of the byte after each element. */
  ends: number[]
  /** The offset of the closing bracket. */
  close: number
}

/** Up to this distance the end of a string is searched for byte by byte; beyond it `Buffer.indexOf` is faster. */
const NEAR_BYTES = 32

/** The maximum number of elements of a list; no conversation has as many messages. */
const MAX_ELEMENTS = 100_000

/**
 * Finds the elements of a list from an offset on.
 * @param from the offset after the opening bracket, or after an element
 * @param afterElement whether `from` is the offset after an element
 * @returns the elements; undefined if it is not a list, or has more than 100,000 elements
 */
export function findElements(json: Buffer, from: number, afterElement: boolean): ElementOffsets | undefined {
  const ends: number[] = []
  let comma = afterElement
  let offset = skipSpace(json, from)
  while (json[offset] !== LIST_END) {
    if (comma && json[offset] !== COMMA) return undefined
    const element = comma ? skipSpace(json, offset + 1) : offset
    const end = findValueEnd(json, element)
    if (end === element || ends.length === MAX_ELEMENTS) return undefined
    ends.push(end)
    offset = skipSpace(json, end)
    comma = true
  }
  return { ends, close: offset }
}

/** Returns the offset of the byte after a value. */
export function findValueEnd(json: Buffer, start: number): number {
  const first = json[start]
  if (first === QUOTE) return findStringEnd(json, start)
  if (first === OBJECT || first === LIST) return findNestedEnd(json, start)
  let offset = start
  while (offset < json.length && !isScalarEnd(json[offset]!)) offset += 1
  return offset
}

function isScalarEnd(byte: number): boolean {
  return byte <= SPACE || byte === COMMA || byte === LIST_END || byte === OBJECT_END
}

function findNestedEnd(json: Buffer, start: number): number {
  let depth = 0
  let offset = start
  do {
    const byte = json[offset]!
    if (byte === QUOTE) {
      offset = findStringEnd(json, offset)
      continue
    }
    if (byte === OBJECT || byte === LIST) depth += 1
    else if (byte === OBJECT_END || byte === LIST_END) depth -= 1
    offset += 1
  } while (depth > 0 && offset < json.length)
  return offset
}

/** Finds the end of a string. @param start the opening quote @returns the offset after the closing one, or the end */
export function findStringEnd(json: Buffer, start: number): number {
  let offset = start + 1
  while (offset < json.length) {
    const near = Math.min(offset + NEAR_BYTES, json.length)
    while (offset < near) {
      const byte = json[offset]
      if (byte === QUOTE) return offset + 1
      offset += byte === BACKSLASH ? 2 : 1
    }
    const quote = json.indexOf(QUOTE, offset)
    if (quote === -1) return json.length
    let slashes = 0
    while (quote - slashes > offset && json[quote - slashes - 1] === BACKSLASH) slashes += 1
    // An odd number of backslashes escapes the quote.
    if (slashes % 2 === 0) return quote + 1
    offset = quote + 1
  }
  return json.length
}

export function skipSpace(json: Buffer, start: number): number {
  let offset = start
  while (offset < json.length && isSpace(json[offset]!)) offset += 1
  return offset
}

function isSpace(byte: number): boolean {
  return byte === SPACE || byte === LINE_FEED || byte === TAB || byte === CARRIAGE_RETURN
}
