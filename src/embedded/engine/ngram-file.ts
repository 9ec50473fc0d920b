/**
 * Encodes and decodes the file of an n-gram model. It contains counts of token sequences, little-endian, and every block
 * is aligned to four bytes.
 *
 *     "NGM1"  order:u32  vocabularySize:u32  unigram counts:u32[vocabularySize]
 *     then for each n from 2 to order:
 *       contextCount:u32  entryCount:u32
 *       contexts:u16[contextCount × (n-1)]   in ascending order
 *       ends:u32[contextCount]               offset after a context's last entry, and of the next context's first one
 *       tokens:u16[entryCount]               ascending within a context
 *       counts:u16[entryCount]
 */

/** The counts of the tokens that follow contexts of n-1 tokens. */
export interface NgramLevel {
  contexts: Uint16Array
  ends: Uint32Array
  tokens: Uint16Array
  counts: Uint16Array
}

/** The contents of the file. */
export interface NgramCounts {
  order: number
  vocabularySize: number
  unigrams: Uint32Array
  /** The levels for n from 2 to `order`. */
  levels: NgramLevel[]
}

const MAGIC = 0x314d474e

/** Encodes an n-gram file. */
export function encodeNgrams(counts: NgramCounts): Buffer {
  const head = Uint32Array.of(MAGIC, counts.order, counts.vocabularySize)
  const blocks: ArrayBufferView[] = [head, counts.unigrams]
  for (const level of counts.levels) {
    blocks.push(Uint32Array.of(level.ends.length, level.tokens.length))
    blocks.push(level.contexts, level.ends, level.tokens, level.counts)
  }
  return Buffer.concat(blocks.map(toAlignedBytes))
}

function toAlignedBytes(block: ArrayBufferView): Buffer {
  const bytes = Buffer.alloc(Math.ceil(block.byteLength / 4) * 4)
  bytes.set(new Uint8Array(block.buffer, block.byteOffset, block.byteLength))
  return bytes
}

/** Decodes an n-gram file. @throws Error if the bytes are not a complete file of this format */
export function decodeNgrams(file: Uint8Array): NgramCounts {
  // The bytes are copied, because the views below require aligned offsets.
  const bytes = new Uint8Array(file).buffer
  let offset = 0
  const u32 = (length: number) => new Uint32Array(bytes, advance(length * 4), length)
  const u16 = (length: number) => new Uint16Array(bytes, advance(length * 2), length)
  const advance = (byteLength: number) => {
    const from = offset
    offset += Math.ceil(byteLength / 4) * 4
    if (offset > bytes.byteLength) throw new Error('n-gram file ends too early')
    return from
  }
  const [magic, order, vocabularySize] = u32(3)
  if (magic !== MAGIC) throw new Error('not an n-gram file')
  const unigrams = u32(vocabularySize!)
  const levels: NgramLevel[] = []
  for (let n = 2; n <= order!; n++) {
    const [contextCount, entryCount] = u32(2)
    const contexts = u16(contextCount! * (n - 1))
    levels.push({ contexts, ends: u32(contextCount!), tokens: u16(entryCount!), counts: u16(entryCount!) })
  }
  return { order: order!, vocabularySize: vocabularySize!, unigrams, levels }
}
