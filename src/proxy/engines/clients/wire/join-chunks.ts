import { detachBuffer } from '../../../../protocol/json/detach-buffer.ts'

/** The largest reused buffer. Larger responses are joined in a new buffer, so that their memory is not retained. */
const MAX_BYTES = 4 * 1024 * 1024

/**
 * The reused buffer: an engine sends up to half a megabyte of ids with each response, which are discarded after
 * reading.
 */
let scratch = Buffer.allocUnsafeSlow(64 * 1024)

/**
 * Joins chunks for immediate reading: the result is valid until the next call of this function, for any response. Two
 * or more chunks are detached; a single one is returned.
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

/** Returns the bytes, copied if they are in the reused buffer, so that they stay valid. */
export function copyIfShared(bytes: Buffer): Buffer {
  return bytes.buffer === scratch.buffer ? Buffer.from(bytes) : bytes
}
