import { SIGNAL_EXIT_CODES } from './process-lifecycle.ts'

/** The first SIGINT or SIGTERM calls the work off; a second one ends the process at once. */
export class Interrupt {
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

  /** What the process is to exit with; undefined while nothing was called off. */
  get exitCode(): number | undefined {
    return this.#exitCode
  }

  [Symbol.dispose](): void {
    for (const [name, listener] of this.#listeners) process.off(name, listener)
  }
}
