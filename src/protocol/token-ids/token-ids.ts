/** Operations on lists of token ids that are fast for prompts of 100,000 ids, which are common. */

export type TokenIds = readonly number[] | Int32Array

/**
 * The number of ids in a block. Blocks are compared by `Buffer.equals` before single ids, because prompts usually
 * differ near their end.
 */
const BLOCK = 1024

/** The largest id. Ids are stored in 32 bits, in which a larger number would become another token's id. */
export const MAX_TOKEN_ID = 2 ** 31 - 1

export function isTokenId(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_TOKEN_ID
}

/** Returns the number of leading ids that two lists have in common. */
export function getSharedLength(a: Int32Array, b: Int32Array): number {
  const end = Math.min(a.length, b.length)
  let index = 0
  while (index + BLOCK <= end && toBytes(a, index).equals(toBytes(b, index))) index += BLOCK
  while (index < end && a[index] === b[index]) index += 1
  return index
}

function toBytes(ids: Int32Array, from: number): Buffer {
  return Buffer.from(ids.buffer, ids.byteOffset + from * ids.BYTES_PER_ELEMENT, BLOCK * ids.BYTES_PER_ELEMENT)
}

/** Concatenates ids into a new list. Its memory is not zero-filled, which would take longer than the rest. */
export function concatIds(...parts: readonly TokenIds[]): Int32Array<ArrayBuffer> {
  const length = parts.reduce((sum, part) => sum + part.length, 0)
  const ids = new Int32Array(Buffer.allocUnsafeSlow(length * Int32Array.BYTES_PER_ELEMENT).buffer)
  let index = 0
  for (const part of parts) {
    ids.set(part, index)
    index += part.length
  }
  return ids
}
