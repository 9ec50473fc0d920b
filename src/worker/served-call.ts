import { OutgoingCall } from './outgoing-call.ts'

/** One call at the worker: what the proxy lacks of its answer, the wait for room, and the way to stop it. */
export class ServedCall extends OutgoingCall {
  readonly requestId: string
  /** Its request had the prompt's token ids. */
  byIds = false
  readonly #controller = new AbortController()
  #windowBytes: number
  #wake: (() => void) | undefined
  /** All frames, for a proxy that is started anew; undefined: they are more than it takes before it is asked for them. */
  #whole: string[] | undefined = []
  #wholeBytes = 0
  #writeFirst: (() => string) | undefined
  #isTakenOver = false

  constructor(requestId: string, windowBytes: number) {
    super()
    this.requestId = requestId
    this.#windowBytes = windowBytes
  }

  /** Aborts when nobody wants the answer any more. */
  get signal(): AbortSignal {
    return this.#controller.signal
  }

  override add(write: (seq: number) => string): string {
    const text = super.add(write)
    if (this.#whole === undefined) return text
    this.#whole.push(text)
    this.#countWhole(Buffer.byteLength(text))
    return text
  }

  override acknowledge(seq: number): void {
    super.acknowledge(seq)
    this.#wake?.()
  }

  /** @param write makes the first frame without what only the proxy that sent the request can know */
  writesFirst(write: () => string): void {
    this.#writeFirst = write
  }

  /** Makes what there is of the answer ready for a proxy that knows nothing of this call. @returns whether it can be */
  makeWhole(): boolean {
    const first = this.#whole?.[0]
    if (first !== undefined && this.#writeFirst !== undefined) {
      const text = this.#writeFirst()
      this.#writeFirst = undefined
      this.#whole![0] = text
      this.#countWhole(Buffer.byteLength(text) - Buffer.byteLength(first))
    }
    return this.#whole !== undefined
  }

  /** For a proxy that was offered this call, {@link ServedCall.makeWhole}, and keeps it. @returns all frames */
  fromTheBeginning(): readonly string[] {
    const whole = this.#whole ?? []
    this.#isTakenOver = true
    this.startOver(whole)
    return whole
  }

  /** Its proxy is another than the one that sent the request: frames must refer to nothing that only that one knows. */
  get isTakenOver(): boolean {
    return this.#isTakenOver
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

  #countWhole(bytes: number): void {
    this.#wholeBytes += bytes
    if (this.#wholeBytes >= this.#windowBytes) this.#whole = undefined
  }
}
