import { ResendBuffer } from './resend-buffer.ts'

/**
 * A request that the worker serves: the unacknowledged frames of its response, the wait for window space, and its
 * cancellation.
 */
export class WorkerRequestState extends ResendBuffer {
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

  /** Sets the window, which may have another size after a restart of the proxy. */
  setWindow(windowBytes: number): void {
    this.#windowBytes = windowBytes
    this.#wake?.()
  }

  /**
   * Waits until another frame may be sent. Returns undefined if it may be sent now. The caller does not read the
   * engine's stream in the meantime, so that back-pressure reaches the engine.
   */
  waitForSpace(): Promise<void> | undefined {
    return this.hasRoom(this.#windowBytes) ? undefined : this.#waitUntilAcknowledged()
  }

  async #waitUntilAcknowledged(): Promise<void> {
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
