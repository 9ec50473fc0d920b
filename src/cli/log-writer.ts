import { constants, fstatSync, openSync, write, writeSync } from 'node:fs'

/** The size of a write. Docker's log driver reads 16 KiB at a time, and divides the lines of longer writes. */
const CHUNK_BYTES = 16 * 1024

/** The delay before a write to a full pipe is repeated. */
const RETRY_MS = 100

/** The maximum time for which the exit waits for a slow reader: a stopped one must not prevent it. */
const MAX_EXIT_DELAY_MS = 500

/** The delay before a write is repeated during the exit. */
const EXIT_RETRY_MS = 10

const LINE_BREAK = 0x0a

/** Lines that are written together. */
interface Chunk {
  text: string
  bytes: number
}

/**
 * Writes a log asynchronously, so that a slow reader does not block the process. A line that cannot be written, such as
 * to a full disk or a closed terminal, is lost without any other effect. At exit the rest is written, except for what
 * would block.
 */
export class LogWriter {
  readonly #sharedFd: number
  #fd: number | undefined
  /** The lines that no write has taken yet. */
  readonly #chunks: Chunk[] = []
  #isWriting = false
  /** The rest of a chunk while the writer waits for room in a full pipe. */
  #waiting: Buffer | undefined
  /** Whether the last write ended within a line. If its rest is lost, a line break has to precede the next chunk. */
  #isLineCut = false

  /** @param fd the descriptor, which other processes may share */
  constructor(fd: number) {
    this.#sharedFd = fd
  }

  /** Writes a line, which ends with a line break. */
  write(line: string): void {
    const bytes = Buffer.byteLength(line)
    const last = this.#chunks.at(-1)
    if (last !== undefined && last.bytes + bytes <= CHUNK_BYTES) {
      last.text += line
      last.bytes += bytes
    } else {
      this.#chunks.push({ text: line, bytes })
    }
    if (!this.#isWriting) this.#writeNext()
  }

  #writeNext(): void {
    const chunk = this.#chunks.shift()
    this.#isWriting = chunk !== undefined
    if (chunk !== undefined) this.#send(this.#toBuffer(chunk))
  }

  #toBuffer({ text }: Chunk): Buffer {
    return Buffer.from(this.#isLineCut ? `\n${text}` : text)
  }

  #send(buffer: Buffer): void {
    this.#waiting = undefined
    write(this.#getFd(), buffer, (error, written) => {
      if (isFull(error)) {
        this.#waiting = buffer
        setTimeout(() => this.#send(buffer), RETRY_MS).unref()
        return
      }
      if (error === null) this.#isLineCut = buffer[written - 1] !== LINE_BREAK
      if (error === null && written < buffer.length) this.#send(buffer.subarray(written))
      else this.#writeNext()
    })
  }

  #getFd(): number {
    if (this.#fd === undefined) {
      const fd = openNonBlocking(this.#sharedFd)
      process.once('exit', () => this.#writeRest(fd))
      this.#fd = fd
    }
    return this.#fd
  }

  /** Writes the rest when the process exits. Node.js completes a write that is in progress. */
  #writeRest(fd: number): void {
    const deadline = performance.now() + MAX_EXIT_DELAY_MS
    if (this.#waiting !== undefined) {
      if (!writeBefore(deadline, fd, this.#waiting)) return
      this.#isLineCut = false
    }
    for (const chunk of this.#chunks) if (!writeBefore(deadline, fd, this.#toBuffer(chunk))) return
  }
}

/**
 * Opens the file of a descriptor again, so that a write to a full pipe or a stopped terminal fails and does not block:
 * the process could not exit before a blocked write ends. The flag applies to the new descriptor only, not to that of
 * other processes. Without `/dev/fd`, or for a socket, the descriptor itself is returned, which Node.js makes
 * non-blocking if it is a pipe or a socket.
 */
function openNonBlocking(fd: number): number {
  const { O_WRONLY, O_NONBLOCK, O_NOCTTY } = constants
  try {
    // A regular file never blocks, and a separate descriptor would have a separate position in it.
    return fstatSync(fd).isFile() ? fd : openSync(`/dev/fd/${fd}`, O_WRONLY | O_NONBLOCK | O_NOCTTY)
  } catch {
    return fd
  }
}

/** Writes a buffer synchronously, and gives up on any error but a full pipe. @returns whether it was written before the deadline */
function writeBefore(deadline: number, fd: number, buffer: Buffer): boolean {
  let rest = buffer
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(fd, rest))
    } catch (error) {
      if (!isFull(error) || performance.now() >= deadline) return false
      // Without an event loop, only this waits without using the CPU.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, EXIT_RETRY_MS)
    }
  }
  return true
}

/** Whether a write failed because the reader has not read the previous ones. */
function isFull(error: unknown): boolean {
  return error instanceof Error && 'code' in error && (error.code === 'EAGAIN' || error.code === 'EBUSY')
}
