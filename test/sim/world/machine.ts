/** A process of the simulated world: what belongs to it ends with it. */
import { AsyncLocalStorage } from 'node:async_hooks'

const current = new AsyncLocalStorage<Machine>()

export class Machine {
  readonly name: string
  /** How far its wall clock is from the true time. */
  skewMs = 0
  #isDead = false
  readonly #onDeath: (() => void)[] = []

  constructor(name: string) {
    this.name = name
  }

  /** Whose code runs at this moment; undefined: the simulator's own. */
  static get current(): Machine | undefined {
    return current.getStore()
  }

  get isDead(): boolean {
    return this.#isDead
  }

  /** Timers that `task` sets, and sockets that it opens, are this machine's. */
  run<T>(task: () => T): T {
    return current.run(this, task)
  }

  onDeath(task: () => void): void {
    this.#onDeath.push(task)
  }

  /** As SIGKILL: nothing of it runs any more. */
  kill(): void {
    if (this.#isDead) return
    this.#isDead = true
    for (const task of this.#onDeath) task()
  }
}
