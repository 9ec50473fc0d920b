/**
 * The proxy's side of a response: receives numbered frames, drops duplicates, buffers their events until the receiver
 * of the response consumes them, and determines when to acknowledge. Performs no I/O.
 */
import type { GenerationEvent } from '../../protocol/canonical/events.ts'

/**
 * The result of checking a frame's number. `duplicate`: the frame was received before and is ignored. `gap`: an earlier
 * frame is missing, which cannot happen on an ordered connection. `overflow`: the buffer exceeds the window, which
 * cannot happen if the worker waits for acknowledgements.
 */
type FrameVerdict = 'new' | 'duplicate' | 'gap' | 'overflow'

/** The buffered events, and the acknowledgement that is due after their consumption. */
interface FrameBatch {
  events: readonly GenerationEvent[]
  /** The number of the frame to acknowledge now; undefined: none is due. */
  acknowledge: number | undefined
}

const NOTHING: readonly GenerationEvent[] = []

/** A buffer of the received frames of one response, up to a window of unconsumed bytes. */
export class FrameBuffer {
  readonly #windowBytes: number
  #events: GenerationEvent[] = []
  #bufferedBytes = 0
  #received = 0
  /** The number of the last frame whose events were consumed. */
  #taken = 0
  #unacknowledgedBytes = 0

  constructor(windowBytes: number) {
    this.#windowBytes = windowBytes
  }

  /** The number of the last frame received; a worker that reconnects resumes after it. */
  get received(): number {
    return this.#received
  }

  /** Whether all received events have been consumed. */
  get isEmpty(): boolean {
    return this.#taken === this.#received
  }

  /** Checks the number of a frame, before its events are decoded. */
  judge(seq: number): FrameVerdict {
    if (seq <= this.#received) return 'duplicate'
    if (seq > this.#received + 1) return 'gap'
    return this.#bufferedBytes >= this.#windowBytes ? 'overflow' : 'new'
  }

  /** Buffers the events of a frame for which {@link judge} returned `new`. */
  receive(events: readonly GenerationEvent[], bytes: number): void {
    this.#received += 1
    this.#bufferedBytes += bytes
    // A loop, because `push(...events)` may exceed the argument limit: one frame may have tens of thousands of events.
    for (const event of events) this.#events.push(event)
  }

  /** Removes and returns all buffered events as one batch. */
  take(): FrameBatch {
    if (this.isEmpty) return { events: NOTHING, acknowledge: undefined }
    const events = this.#events
    this.#events = []
    this.#taken = this.#received
    this.#unacknowledgedBytes += this.#bufferedBytes
    this.#bufferedBytes = 0
    const due = this.#unacknowledgedBytes * 4 >= this.#windowBytes
    return { events, acknowledge: due ? this.acknowledge() : undefined }
  }

  /**
   * Returns the number of the last consumed frame, which is then acknowledged; undefined: none was consumed. It is
   * repeated for a worker that has reconnected, since the last acknowledgement may have been lost with the connection.
   */
  acknowledge(): number | undefined {
    this.#unacknowledgedBytes = 0
    return this.#taken === 0 ? undefined : this.#taken
  }
}
