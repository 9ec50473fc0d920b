/** Longer answers are put together in a buffer of their own: nobody should keep that much for them. */
const MAX_BYTES = 4 * 1024 * 1024

/** What pieces are put together in. With each call an engine sends half a megabyte of ids that nobody keeps. */
let scratch = Buffer.allocUnsafeSlow(64 * 1024)

/**
 * The pieces as one, for whoever reads them at once: the bytes are good until the next call of this function, for whatever
 * answer that is. A buffer for each would have V8 collect all garbage after every twenty answers to long prompts.
 */
export function joinForNow(pieces: readonly Buffer[]): Buffer {
  if (pieces.length === 1) return pieces[0]!
  const length = pieces.reduce((sum, piece) => sum + piece.length, 0)
  if (length > MAX_BYTES) return Buffer.concat(pieces, length)
  if (length > scratch.length) scratch = Buffer.allocUnsafeSlow(Math.min(2 * length, MAX_BYTES))
  let at = 0
  for (const piece of pieces) at += piece.copy(scratch, at)
  return scratch.subarray(0, length)
}

/** The same bytes, good for ever. */
export function kept(bytes: Buffer): Buffer {
  return bytes.buffer === scratch.buffer ? Buffer.from(bytes) : bytes
}
