import { detachBuffer } from '../../../../protocol/json/detach-buffer.ts'

/** Longer answers are put together in a buffer of their own: nobody should keep that much for them. */
const MAX_BYTES = 4 * 1024 * 1024

/** With each call an engine sends half a megabyte of ids that nobody keeps. */
let scratch = Buffer.allocUnsafeSlow(64 * 1024)

/**
 * The pieces as one, for whoever reads them at once: the bytes are good until the next call of this function, for whatever
 * answer that is. What was joined is gone.
 */
export function joinForNow(pieces: readonly Buffer[]): Buffer {
  if (pieces.length === 1) return pieces[0]!
  const length = pieces.reduce((sum, piece) => sum + piece.length, 0)
  const joined = length > MAX_BYTES ? Buffer.allocUnsafeSlow(length) : scratchOf(length)
  let at = 0
  for (const piece of pieces) at += piece.copy(joined, at)
  for (const piece of pieces) detachBuffer(piece)
  return joined
}

function scratchOf(length: number): Buffer {
  if (length > scratch.length) scratch = Buffer.allocUnsafeSlow(Math.min(2 * length, MAX_BYTES))
  return scratch.subarray(0, length)
}

/** The same bytes, good for ever. */
export function kept(bytes: Buffer): Buffer {
  return bytes.buffer === scratch.buffer ? Buffer.from(bytes) : bytes
}
