/**
 * The proxy's side of a response: receives numbered frames, drops duplicates, buffers events until the agent's side
 * consumes them, and determines when to acknowledge. No I/O.
 */
import type { GenerationEvent } from '../../protocol/canonical/events.ts'

/**
 * `duplicate`: received before, to be ignored. `gap`: an earlier frame is missing, which cannot occur on an ordered
 * connection. `overflow`: more than the window, which a worker that waits for acknowledgements cannot send.
 */
type FrameVerdict = 'new' | 'duplicate' | 'gap' | 'overflow'

interface FrameBatch {
  events: readonly GenerationEvent[]
  /** The number to acknowledge now; undefined: none. */
  acknowledge: number | undefined
}

const NOTHING: readonly GenerationEvent[] = []

export class FrameReceiver {
  readonly #windowBytes: number
  #events: GenerationEvent[] = []
  #bufferedBytes = 0
  #received = 0
  /** The last frame whose events were consumed. */
  #taken = 0
  #acknowledged = 0
  #unacknowledgedBytes = 0

  constructor(windowBytes: number) {
    this.#windowBytes = windowBytes
  }

  /** The number of the last frame received; a worker that reconnects resumes after it. */
  get received(): number {
    return this.#received
  }

  /** Whether the agent's side has consumed everything. */
  get isEmpty(): boolean {
    return this.#taken === this.#received
  }

  /** Judges a frame by its number, before its events are decoded. */
  judge(seq: number): FrameVerdict {
    if (seq <= this.#received) return 'duplicate'
    if (seq > this.#received + 1) return 'gap'
    return this.#bufferedBytes >= this.#windowBytes ? 'overflow' : 'new'
  }

  /** Buffers the events of a frame that was judged `new`. */
  receive(events: readonly GenerationEvent[], bytes: number): void {
    this.#received += 1
    this.#bufferedBytes += bytes
    // A loop, not push(...spread): one frame may contain tens of thousands of events.
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

  /** Returns the number to acknowledge to a worker that has just reconnected and may have missed acknowledgements. */
  acknowledge(): number | undefined {
    if (this.#taken === this.#acknowledged) return undefined
    this.#acknowledged = this.#taken
    this.#unacknowledgedBytes = 0
    return this.#acknowledged
  }
}
