/**
 * The layout of values in the database: text, token ids, logprobs. Each blob begins with a format byte, so that later
 * layouts can coexist. Numbers are little-endian, as on every platform that Node supports.
 */

/** The value of a text column: TEXT if UTF-8 can represent it, otherwise (lone surrogates) a blob of UTF-16LE. */
export type TextColumn = string | Buffer

export function packText(text: string): TextColumn {
  return text.isWellFormed() ? text : Buffer.from(text, 'utf16le')
}

export function unpackText(stored: TextColumn): string {
  return typeof stored === 'string' ? stored : stored.toString('utf16le')
}

export function packOptionalText(text: string | null): TextColumn | null {
  return text === null ? null : packText(text)
}

export function unpackOptionalText(stored: TextColumn | null): string | null {
  return stored === null ? null : unpackText(stored)
}

/** The format bytes of packed ids. */
const ids = { varint: 1, int32: 2, float64: 3 } as const
/** The format bytes of packed logprobs. */
const logprobs = { float32: 1, float64: 2 } as const
const MAX_VARINT_BYTES = 5
const MAX_UINT32 = 0xffff_ffff

/** Packs ids as LEB128, with two or three bytes for a token of current vocabularies, or as int32 if that is shorter. */
export function packIds(tokenIds: Int32Array): Buffer {
  const packed = Buffer.allocUnsafe(1 + tokenIds.length * MAX_VARINT_BYTES)
  let end = 0
  packed[end++] = ids.varint
  for (const tokenId of tokenIds) {
    // Read as unsigned: a negative id, which no engine should send, takes five bytes and is preserved.
    let rest = tokenId >>> 0
    while (rest > 0x7f) {
      packed[end++] = (rest & 0x7f) | 0x80
      rest >>>= 7
    }
    packed[end++] = rest
  }
  const rawBytes = 1 + tokenIds.byteLength
  return end <= rawBytes ? Buffer.from(packed.subarray(0, end)) : tag(ids.int32, tokenIds)
}

/** Returns the number of ids that {@link packIds} packed. */
export function countIds(packed: Buffer): number {
  if (packed[0] === ids.int32) return (packed.length - 1) / Int32Array.BYTES_PER_ELEMENT
  let count = 0
  // The last byte of a number is the one whose high bit is clear.
  for (let index = 1; index < packed.length; index += 1) if (packed[index]! <= 0x7f) count += 1
  return count
}

export function unpackIds(packed: Buffer): Int32Array {
  if (packed[0] === ids.int32) return new Int32Array(untag(packed))
  if (packed[0] !== ids.varint) throw new Error(`unknown layout ${packed[0]} of ids`)
  const tokenIds = new Int32Array(packed.length - 1)
  let count = 0
  for (let index = 1; index < packed.length; ) {
    let byte = packed[index++]!
    let tokenId = byte & 0x7f
    for (let shift = 7; byte > 0x7f; shift += 7) {
      byte = packed[index++]!
      tokenId |= (byte & 0x7f) << shift
    }
    tokenIds[count++] = tokenId
  }
  return tokenIds.slice(0, count)
}

/**
 * Packs row ids. In PostgreSQL, a node assigns every 1,024th id, so they soon exceed 32 bits; only then do they take
 * eight bytes each, in a layout that releases up to 0.1 reject.
 */
export function packRowIds(rows: readonly number[]): Buffer {
  if (rows.every((row) => row <= MAX_UINT32)) return packIds(Int32Array.from(rows))
  return tag(ids.float64, Float64Array.from(rows))
}

export function unpackRowIds(packed: Buffer): number[] {
  if (packed[0] === ids.float64) return [...new Float64Array(untag(packed))]
  return Array.from(unpackIds(packed), (row) => row >>> 0)
}

/** Packs logprobs as float32 if that is lossless for all of them (engines sample in float32), otherwise as float64. */
export function packLogprobs(values: Float64Array): Buffer {
  const halved = new Float32Array(values)
  const lossless = toBytes(new Float64Array(halved)).equals(toBytes(values))
  return lossless ? tag(logprobs.float32, halved) : tag(logprobs.float64, values)
}

export function unpackLogprobs(packed: Buffer): Float64Array {
  if (packed[0] === logprobs.float32) return new Float64Array(new Float32Array(untag(packed)))
  if (packed[0] === logprobs.float64) return new Float64Array(untag(packed))
  throw new Error(`unknown layout ${packed[0]} of logprobs`)
}

function toBytes(array: Int32Array | Float32Array | Float64Array): Buffer {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength)
}

function tag(format: number, array: Int32Array | Float32Array | Float64Array): Buffer {
  return Buffer.concat([Uint8Array.of(format), toBytes(array)])
}

/** Returns the bytes after the format byte, copied to the alignment of typed arrays. */
function untag(packed: Buffer): ArrayBuffer {
  return Uint8Array.from(packed.subarray(1)).buffer
}
