import { SIGNAL_EXIT_CODES } from './process-lifecycle.ts'

/** A handler of signals: the first SIGINT or SIGTERM cancels the work; a second one ends the process immediately. */
export class InterruptHandler {
  readonly #controller = new AbortController()
  readonly #listeners = new Map<NodeJS.Signals, () => void>()
  #exitCode: number | undefined

  constructor() {
    for (const [name, exitCode] of Object.entries(SIGNAL_EXIT_CODES) as [NodeJS.Signals, number][]) {
      const listener = () => {
        if (this.#exitCode !== undefined) process.exit(exitCode)
        this.#exitCode = exitCode
        this.#controller.abort()
      }
      this.#listeners.set(name, listener)
      process.on(name, listener)
    }
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** The exit code of the process; undefined unless the work was cancelled. */
  get exitCode(): number | undefined {
    return this.#exitCode
  }

  [Symbol.dispose](): void {
    for (const [name, listener] of this.#listeners) process.off(name, listener)
  }
}
