/** The data source of a {@link PushLoop}: an object that pushes received data to a receiver. */
export interface PushSource {
  /**
   * Pushes all data that has arrived.
   * @returns undefined if the receiver accepts more data, otherwise a promise that resolves once it does
   */
  push(): Promise<void> | undefined
  /** Handles an error that `push` threw, or that its promise rejected with. */
  fail(thrown: unknown): void
  /** Called after a push that returned a promise: the receiver is blocked. */
  pause?(): void
  /** Called when the receiver accepts more data, before the next push. */
  resume?(): void
}

/**
 * A loop that pushes data from a socket to a receiver. The data of one event-loop task, which is one read of the
 * socket, is pushed together, in a microtask. Nothing is pushed while the receiver is blocked.
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

  /**
   * Schedules a push after the current task. While the receiver is blocked this does nothing, because a push follows
   * once it accepts more data.
   */
  schedule(): void {
    if (this.#isScheduled || this.#state !== 'pushing') return
    this.#isScheduled = true
    queueMicrotask(this.#push)
  }

  /** Stops all further pushes. */
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
