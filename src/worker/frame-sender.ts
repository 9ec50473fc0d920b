/**
 * The worker's side of a call's answer: numbers its frames and keeps each until the proxy has acknowledged it, so that
 * a reconnected worker can send again what was lost with the socket. No I/O: frames come in as text, and what is to be
 * sent comes out.
 */
import { ProxyError } from '../base/errors.ts'
import { MAX_FRAME_BYTES } from '../protocol/worker/protocol.ts'

interface UnacknowledgedFrame {
  seq: number
  text: string
  bytes: number
}

export class FrameSender {
  /** Sent and not acknowledged, in order. */
  #kept: UnacknowledgedFrame[] = []
  #keptBytes = 0
  #lastSeq = 0
  #hasEnded = false

  /**
   * Numbers a frame.
   * @param write makes its text with the number in it
   * @returns the text, to be sent now
   * @throws ProxyError `engine_failed` for a text that no frame holds: the proxy would end the connection over it, again
   *   after each reconnect
   */
  add(write: (seq: number) => string): string {
    const text = write(this.#lastSeq + 1)
    const bytes = Buffer.byteLength(text)
    if (bytes > MAX_FRAME_BYTES) {
      throw new ProxyError('engine_failed', 'the engine sent more at once than a frame to the proxy holds')
    }
    this.#lastSeq += 1
    this.#kept.push({ seq: this.#lastSeq, text, bytes })
    this.#keptBytes += bytes
    return text
  }

  /** Numbers the last frame. */
  end(write: (seq: number) => string): string {
    this.#hasEnded = true
    return this.add(write)
  }

  /** The proxy has handed on everything up to `seq`. Old and repeated acknowledgements do no harm. */
  acknowledge(seq: number): void {
    let count = 0
    for (const frame of this.#kept) {
      if (frame.seq > seq) break
      this.#keptBytes -= frame.bytes
      count += 1
    }
    this.#kept.splice(0, count)
  }

  /**
   * Whether another frame may be sent. A frame is never split, so the last one may overshoot the window; what counts
   * is that a proxy whose agent does not read holds a bounded number of bytes.
   */
  hasRoom(windowBytes: number): boolean {
    return this.#keptBytes < windowBytes
  }

  /** The frames that a proxy lacks which has received all up to `received`; what it has still counts for the window. */
  after(received: number): string[] {
    return this.#kept.filter((frame) => frame.seq > received).map((frame) => frame.text)
  }

  /** The last frame has been made. */
  get hasEnded(): boolean {
    return this.#hasEnded
  }

  /** The proxy has everything: nothing needs to be kept of this call. */
  get isDelivered(): boolean {
    return this.#hasEnded && this.#kept.length === 0
  }
}
