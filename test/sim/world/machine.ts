/** A simulated process. Its timers and sockets end with it. */
import { AsyncLocalStorage } from 'node:async_hooks'

const current = new AsyncLocalStorage<Machine>()

export class Machine {
  readonly name: string
  /** The offset of its wall clock from the true time. */
  skewMs = 0
  #isDead = false
  readonly #onDeath: (() => void)[] = []

  constructor(name: string) {
    this.name = name
  }

  /** The machine whose code runs at this moment; undefined in code of the simulator. */
  static get current(): Machine | undefined {
    return current.getStore()
  }

  get isDead(): boolean {
    return this.#isDead
  }

  /** Runs a task as this machine, which then owns the task's timers and sockets. */
  run<T>(task: () => T): T {
    return current.run(this, task)
  }

  onDeath(task: () => void): void {
    this.#onDeath.push(task)
  }

  /** Kills the machine as SIGKILL does: its code no longer runs. */
  kill(): void {
    if (this.#isDead) return
    this.#isDead = true
    for (const task of this.#onDeath) task()
  }
}
