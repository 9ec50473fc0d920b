/**
 * The worker's side of a response: numbers its frames and retains each until the proxy has acknowledged it, so that a
 * reconnected worker can resend lost frames. Performs no I/O: its functions accept and return the text of frames.
 */
import { ProxyError } from '../base/errors.ts'
import { MAX_FRAME_BYTES } from '../protocol/worker/protocol.ts'

/** A frame that the proxy has not acknowledged. */
interface UnacknowledgedFrame {
  seq: number
  text: string
  bytes: number
}

/** The numbered frames of one response, which are retained until the proxy has acknowledged them. */
export class ResendBuffer {
  /** The unacknowledged frames, in order. */
  #kept: UnacknowledgedFrame[] = []
  #keptBytes = 0
  #lastSeq = 0
  #hasEnded = false

  /**
   * Numbers and retains a frame.
   * @param write returns the text of the frame with this number
   * @returns the text, which the caller sends
   * @throws ProxyError `engine_failed` for a text that exceeds the frame limit: the proxy would close the connection on
   *   receiving it, and again after each reconnect
   */
  add(write: (seq: number) => string): string {
    const text = write(this.#lastSeq + 1)
    const bytes = Buffer.byteLength(text)
    if (bytes > MAX_FRAME_BYTES) {
      throw new ProxyError('engine_failed', 'one batch of the engine exceeds the frame limit')
    }
    this.#lastSeq += 1
    this.#kept.push({ seq: this.#lastSeq, text, bytes })
    this.#keptBytes += bytes
    return text
  }

  /** Numbers the last frame, as {@link add} does. After an error, the response has not ended. */
  end(write: (seq: number) => string): string {
    const text = this.add(write)
    this.#hasEnded = true
    return text
  }

  /**
   * Drops the frames up to `seq`, whose events the proxy has consumed. Old and repeated acknowledgements have no
   * effect.
   */
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
   * Returns whether another frame may be sent. Frames are not split, so the last one may cross the limit. The window
   * bounds the bytes that a proxy buffers for an agent that does not read.
   */
  hasRoom(windowBytes: number): boolean {
    return this.#keptBytes < windowBytes
  }

  /**
   * Returns the texts of the frames after `received`, the number of the last frame that the proxy has received.
   * Unacknowledged frames up to it still count towards the window.
   */
  listAfter(received: number): string[] {
    return this.#kept.filter((frame) => frame.seq > received).map((frame) => frame.text)
  }

  /** Whether the last frame has been numbered. */
  get hasEnded(): boolean {
    return this.#hasEnded
  }

  /** Whether the proxy has acknowledged all frames of an ended response. */
  get isDelivered(): boolean {
    return this.#hasEnded && this.#kept.length === 0
  }
}
