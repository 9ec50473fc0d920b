/**
 * The proxy's side of a call's answer: takes numbered frames, drops those that come twice, holds their events until
 * the agent's side takes them, and says when to acknowledge. No I/O.
 */
import type { GenerationEvent } from '../../protocol/canonical/events.ts'

/**
 * `duplicate`: received before, ignore it. `gap`: one before it is missing, which an ordered connection cannot bring
 * about. `overflow`: more than the window, which a worker that waits for acknowledgements cannot send.
 */
type FrameVerdict = 'new' | 'duplicate' | 'gap' | 'overflow'

interface FrameBatch {
  events: readonly GenerationEvent[]
  /** To be acknowledged now; undefined: not yet. */
  acknowledge: number | undefined
}

const NOTHING: readonly GenerationEvent[] = []

export class FrameReceiver {
  readonly #windowBytes: number
  #events: GenerationEvent[] = []
  #bufferedBytes = 0
  #received = 0
  /** The last frame whose events were taken. */
  #taken = 0
  #acknowledged = 0
  #unacknowledgedBytes = 0

  constructor(windowBytes: number) {
    this.#windowBytes = windowBytes
  }

  /** The number of the last frame received; a worker that reconnects goes on after it. */
  get received(): number {
    return this.#received
  }

  /** Whether the agent's side has taken everything. */
  get isEmpty(): boolean {
    return this.#taken === this.#received
  }

  /** What to do with a frame of this number, before its events are decoded. */
  judge(seq: number): FrameVerdict {
    if (seq <= this.#received) return 'duplicate'
    if (seq > this.#received + 1) return 'gap'
    return this.#bufferedBytes >= this.#windowBytes ? 'overflow' : 'new'
  }

  /** Takes the events of the frame that was judged `new`. */
  receive(events: readonly GenerationEvent[], bytes: number): void {
    this.#received += 1
    this.#bufferedBytes += bytes
    // A loop, not push(...spread): one frame may bring tens of thousands of events.
    for (const event of events) this.#events.push(event)
  }

  /** Everything that is here, as one batch. */
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

  /** What a worker that has just reconnected, and may have missed acknowledgements, is to be told. */
  acknowledge(): number | undefined {
    if (this.#taken === this.#acknowledged) return undefined
    this.#acknowledged = this.#taken
    this.#unacknowledgedBytes = 0
    return this.#acknowledged
  }
}
