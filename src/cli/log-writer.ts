import { constants, fstatSync, openSync, write, writeSync } from 'node:fs'

/** The size of a write. Docker's log driver reads 16 KiB at a time, and divides the lines of longer writes. */
const CHUNK_BYTES = 16 * 1024

/**
 * The maximum size of lines that wait for a slow reader; further lines are lost. These are about 50,000 lines, which
 * outlast a restart of a log collector, and little beside the memory of a proxy.
 */
const MAX_WAITING_BYTES = 16 * 1024 * 1024

/** The delay before a write to a full pipe is repeated. A pipe has 64 KiB, so that this is some 6 MB/s. */
const RETRY_MS = 10

/** The maximum time for which the exit waits for a slow reader: a stopped one must not prevent it. */
const MAX_EXIT_DELAY_MS = 500

const LINE_BREAK = 0x0a

/** Lines that are written together. */
interface Chunk {
  text: string
  bytes: number
}

/**
 * Writes a log asynchronously, so that a slow reader does not block the process. A line that cannot be written, such as
 * to a full disk, to a closed terminal, or to a reader that is far behind, is lost; the number of lost lines is reported
 * once there is room again. At exit the rest is written, except for what would block.
 */
export class LogWriter {
  readonly #sharedFd: number
  readonly #reportLost: (lines: number) => void
  #fd: number | undefined
  /** The lines that no write has taken yet. */
  readonly #chunks: Chunk[] = []
  #waitingBytes = 0
  #lostLines = 0
  #isWriting = false
  /** The rest of a chunk while the writer waits for room in a full pipe. */
  #delayed: Buffer | undefined
  /** Whether the last write ended within a line. If its rest is lost, a line break has to precede the next chunk. */
  #isLineCut = false

  /**
   * @param fd the descriptor, which other processes may share
   * @param reportLost receives the number of lost lines; it may write a line
   */
  constructor(fd: number, reportLost: (lines: number) => void) {
    this.#sharedFd = fd
    this.#reportLost = reportLost
  }

  /** Writes a line, which ends with a line break. */
  write(line: string): void {
    const bytes = Buffer.byteLength(line)
    if (this.#waitingBytes + bytes > MAX_WAITING_BYTES) {
      this.#lostLines += 1
      return
    }
    this.#waitingBytes += bytes
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
    if (chunk === undefined) return
    this.#waitingBytes -= chunk.bytes
    this.#send(this.#toBuffer(chunk))
  }

  #toBuffer({ text }: Chunk): Buffer {
    return Buffer.from(this.#isLineCut ? `\n${text}` : text)
  }

  #send(buffer: Buffer): void {
    this.#delayed = undefined
    write(this.#getFd(), buffer, (error, written) => {
      if (isFull(error)) {
        this.#delayed = buffer
        setTimeout(() => this.#send(buffer), RETRY_MS).unref()
        return
      }
      if (error === null) this.#isLineCut = buffer[written - 1] !== LINE_BREAK
      if (error === null && written < buffer.length) {
        this.#send(buffer.subarray(written))
        return
      }
      if (error === null) this.#reportAnyLost()
      else this.#lostLines += countLines(buffer)
      this.#writeNext()
    })
  }

  /** Reports lost lines, as soon as half of the room is free: a reader that stays slow receives few reports. */
  #reportAnyLost(): void {
    if (this.#lostLines === 0 || this.#waitingBytes > MAX_WAITING_BYTES / 2) return
    const lines = this.#lostLines
    this.#lostLines = 0
    this.#reportLost(lines)
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
    if (this.#delayed !== undefined) {
      if (!writeBefore(deadline, fd, this.#delayed)) return
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

/**
 * Writes a buffer synchronously, and gives up on any error but a full pipe.
 * @returns whether it was written before the deadline
 */
function writeBefore(deadline: number, fd: number, buffer: Buffer): boolean {
  let rest = buffer
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(fd, rest))
    } catch (error) {
      if (!isFull(error) || performance.now() >= deadline) return false
      // Without an event loop, only this waits without using the CPU.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, RETRY_MS)
    }
  }
  return true
}

/** Whether a write failed because the reader has not read the previous ones. */
function isFull(error: unknown): boolean {
  return error instanceof Error && 'code' in error && (error.code === 'EAGAIN' || error.code === 'EBUSY')
}

/** Counts the lines that end in a buffer. A line break at its start belongs to a line before it. */
function countLines(buffer: Buffer): number {
  return buffer.subarray(1).reduce((count, byte) => (byte === LINE_BREAK ? count + 1 : count), 0)
}
