/**
 * The n-gram model's file: counts of token sequences, little-endian, every block aligned to four bytes.
 *
 *     "NGM1"  order:u32  vocabularySize:u32  unigram counts:u32[vocabularySize]
 *     then for each n from 2 to order:
 *       contextCount:u32  entryCount:u32
 *       contexts:u16[contextCount × (n-1)]   in ascending order
 *       ends:u32[contextCount]               where a context's entries end; they begin where the last one's ended
 *       tokens:u16[entryCount]               ascending within a context
 *       counts:u16[entryCount]
 */

/** The tokens that followed each context of n-1 tokens. */
export interface NgramLevel {
  contexts: Uint16Array
  ends: Uint32Array
  tokens: Uint16Array
  counts: Uint16Array
}

export interface NgramCounts {
  order: number
  vocabularySize: number
  unigrams: Uint32Array
  /** One per n, from 2 to `order`. */
  levels: NgramLevel[]
}

const MAGIC = 0x314d474e

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
  // Copied, because the views below need aligned offsets.
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
