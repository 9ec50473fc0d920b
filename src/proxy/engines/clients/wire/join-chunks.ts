import { detachBuffer } from '../../../../protocol/json/detach-buffer.ts'

/** Larger responses get their own buffer, so that this memory is not retained. */
const MAX_BYTES = 4 * 1024 * 1024

/** A reused buffer: with each response an engine sends half a megabyte of ids that are not kept. */
let scratch = Buffer.allocUnsafeSlow(64 * 1024)

/**
 * Joins chunks for immediate reading: the result is valid until the next call of this function, for any response. The
 * chunks are detached.
 */
export function joinChunks(chunks: readonly Buffer[]): Buffer {
  if (chunks.length === 1) return chunks[0]!
  const length = chunks.reduce((sum, chunk) => sum + chunk.length, 0)
  const joined = length > MAX_BYTES ? Buffer.allocUnsafeSlow(length) : getScratchBuffer(length)
  let index = 0
  for (const chunk of chunks) index += chunk.copy(joined, index)
  for (const chunk of chunks) detachBuffer(chunk)
  return joined
}

function getScratchBuffer(length: number): Buffer {
  if (length > scratch.length) scratch = Buffer.allocUnsafeSlow(Math.min(2 * length, MAX_BYTES))
  return scratch.subarray(0, length)
}

/** Returns the same bytes with unlimited validity. */
export function copyIfShared(bytes: Buffer): Buffer {
  return bytes.buffer === scratch.buffer ? Buffer.from(bytes) : bytes
}
