/**
 * Frees the memory of bytes that nobody will read again, if no others share it. V8 would find them too, but it collects all
 * garbage there is as soon as 64 MB of buffers have come, however few of them are left: after a few dozen calls of long
 * conversations. Buffers that are given back do not count.
 */
export function detachBuffer({ buffer, length }: Buffer): void {
  // Of a part, the rest may be in use: reads of a socket are cut where one chunk of HTTP ends and the next one begins.
  if (buffer instanceof ArrayBuffer && length > 0 && buffer.byteLength === length) buffer.transfer(0)
}
