import { FrameSender } from './frame-sender.ts'

/** One call at the worker: what the proxy lacks of its answer, the wait for room, and the way to stop it. */
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

  /** Aborts when nobody wants the answer any more. */
  get signal(): AbortSignal {
    return this.#controller.signal
  }

  override acknowledge(seq: number): void {
    super.acknowledge(seq)
    this.#wake?.()
  }

  /** A proxy that was set up anew may have another window. */
  setWindow(windowBytes: number): void {
    this.#windowBytes = windowBytes
    this.#wake?.()
  }

  /** Resolves when another frame may be sent. An engine is not read meanwhile: its own back-pressure does the rest. */
  async room(): Promise<void> {
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
