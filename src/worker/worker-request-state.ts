import { FrameSender } from './frame-sender.ts'

/** A request at the worker: the unacknowledged frames of its response, the wait for window space, and cancellation. */
export class WorkerRequestState extends FrameSender {
  readonly requestId: string
  readonly #controller = new AbortController()
  #windowBytes: number
  #wake: (() => void) | undefined

  constructor(requestId: string, windowBytes: number) {
    super()
    this.requestId = requestId
    this.#windowBytes = windowBytes
  }

  /** Aborts when the response is no longer needed. */
  get signal(): AbortSignal {
    return this.#controller.signal
  }

  override acknowledge(seq: number): void {
    super.acknowledge(seq)
    this.#wake?.()
  }

  /** Sets the window, which may differ after a restart of the proxy. */
  setWindow(windowBytes: number): void {
    this.#windowBytes = windowBytes
    this.#wake?.()
  }

  /**
   * Returns when another frame may be sent; undefined: now. The engine's stream is not read in the meantime, so that the
   * engine's back-pressure applies.
   */
  waitForSpace(): Promise<void> | undefined {
    return this.hasRoom(this.#windowBytes) ? undefined : this.#waitForRoom()
  }

  async #waitForRoom(): Promise<void> {
    while (!this.hasRoom(this.#windowBytes)) {
      this.signal.throwIfAborted()
      await new Promise<void>((resolve) => {
        this.#wake = resolve
      })
    }
  }

  abort(reason: Error): void {
    this.#controller.abort(reason)
    this.#wake?.()
  }
}
