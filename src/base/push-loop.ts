/** What a {@link PushLoop} serves. */
export interface PushSource {
  /**
   * Pushes what has arrived.
   * @returns undefined, or a promise that resolves when the receiver accepts more
   */
  push(): Promise<void> | undefined
  /** Called with what `push` throws, or its promise. */
  fail(thrown: unknown): void
  /** Called when the receiver accepts nothing. */
  pause?(): void
  /** Called when the receiver accepts more, before the next push. */
  resume?(): void
}

/**
 * Pushes what arrives from a socket to a receiver: one push, in a microtask, for all that arrives in one task, which is
 * one read of the socket; and none while the receiver is blocked.
 */
export class PushLoop {
  readonly #source: PushSource
  #state: 'pushing' | 'blocked' | 'closed' = 'pushing'
  #isScheduled = false

  constructor(source: PushSource) {
    this.#source = source
  }

  get isClosed(): boolean {
    return this.#state === 'closed'
  }

  /** Pushes after the current task, unless the receiver is blocked: then when it accepts more. */
  schedule(): void {
    if (this.#isScheduled || this.#state !== 'pushing') return
    this.#isScheduled = true
    queueMicrotask(this.#push)
  }

  /** Ends all pushes. */
  close(): void {
    this.#state = 'closed'
  }

  readonly #push = (): void => {
    this.#isScheduled = false
    if (this.#state !== 'pushing') return
    try {
      const accepted = this.#source.push()
      if (accepted !== undefined) this.#block(accepted)
    } catch (thrown) {
      this.#source.fail(thrown)
    }
  }

  #block(accepted: Promise<void>): void {
    accepted.then(
      () => {
        if (this.#state !== 'blocked') return
        this.#state = 'pushing'
        this.#source.resume?.()
        this.#push()
      },
      (thrown) => this.#source.fail(thrown),
    )
    // The receiver may have closed the loop during the push.
    if (this.#state === 'closed') return
    this.#state = 'blocked'
    this.#source.pause?.()
  }
}
