/**
 * Frees the memory of bytes that will not be read again, if no other buffer shares it. V8 would collect them too, but
 * it runs a full garbage collection whenever 64 MB of buffers have been allocated, however few are still in use: every
 * few dozen requests of long conversations. Detached buffers do not count towards that.
 */
export function detachBuffer({ buffer, length }: Buffer): void {
  // Skip a partial view: the rest may be in use, since one socket read may contain the end and start of two HTTP
  // chunks.
  if (buffer instanceof ArrayBuffer && length > 0 && buffer.byteLength === length) buffer.transfer(0)
}
