/**
 * The worker's side of a response: numbers its frames and keeps each until the proxy has acknowledged it, so that a
 * reconnected worker can send lost frames again. Performs no I/O: takes and returns the text of frames.
 */
import { ProxyError } from '../base/errors.ts'
import { MAX_FRAME_BYTES } from '../protocol/worker/protocol.ts'

interface UnacknowledgedFrame {
  seq: number
  text: string
  bytes: number
}

export class FrameSender {
  /** Frames that were sent and not acknowledged, in order. */
  #kept: UnacknowledgedFrame[] = []
  #keptBytes = 0
  #lastSeq = 0
  #hasEnded = false

  /**
   * Numbers a frame.
   * @param write returns the text of the frame with this number
   * @returns the text, to be sent now
   * @throws ProxyError `engine_failed` for a text that exceeds the frame limit: the proxy would close the connection
   * because of it, again after each reconnect
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

  /** Numbers the last frame. */
  end(write: (seq: number) => string): string {
    this.#hasEnded = true
    return this.add(write)
  }

  /** Drops the frames up to `seq`, which the proxy has delivered. Old and repeated acknowledgements are harmless. */
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
   * Returns whether another frame may be sent. A frame is never split, so the last one may exceed the window; the limit
   * bounds the bytes that a proxy buffers for an agent that does not read.
   */
  hasRoom(windowBytes: number): boolean {
    return this.#keptBytes < windowBytes
  }

  /**
   * Returns the frames after `received`, the last one that the proxy has received. Unacknowledged frames before it
   * still count against the window.
   */
  listAfter(received: number): string[] {
    return this.#kept.filter((frame) => frame.seq > received).map((frame) => frame.text)
  }

  /** Whether the last frame has been numbered. */
  get hasEnded(): boolean {
    return this.#hasEnded
  }

  /** Whether the proxy has acknowledged all frames, so that the request can be dropped. */
  get isDelivered(): boolean {
    return this.#hasEnded && this.#kept.length === 0
  }
}
