import type { ServerResponse } from 'node:http'
import { runOnClose } from '../transport/on-close.ts'

/**
 * The number of new nodes of a heavy request, which brings thousands of new messages. A caller begins one heavy request
 * at a time: it blocks the event loop, and then the store's writer, for tenths of a second, so that requests of others
 * run between two of them, not after twenty. Normal agents are not affected, because repeated messages do not count.
 */
const HEAVY_NODES = 10_000

/**
 * The time after which a heavy request has been read and recorded and waits for its engine, so that the next may begin.
 */
const HEAVY_MS = 1_000

export class RequestQuota {
  /** The callers whose heavy request has begun, with the functions that resume their waiting requests. */
  readonly #waiting = new Map<string, (() => void)[]>()

  /**
   * Returns when a body may be read. It must be called right before reading, and again after the wait. @returns
   * undefined: it may be read now
   */
  wait(caller: string): Promise<void> | undefined {
    const waiting = this.#waiting.get(caller)
    return waiting && new Promise((resolve) => waiting.push(resolve))
  }

  /**
   * Marks a request as heavy if its body brought many new nodes.
   * @param newNodes the number of new nodes
   */
  addHeavy(caller: string, newNodes: number, response: ServerResponse): void {
    if (newNodes < HEAVY_NODES || this.#waiting.has(caller)) return
    const waiting: (() => void)[] = []
    this.#waiting.set(caller, waiting)
    const end = () => {
      clearTimeout(timer)
      if (this.#waiting.get(caller) !== waiting) return
      this.#waiting.delete(caller)
      for (const resume of waiting) resume()
    }
    const timer = setTimeout(end, HEAVY_MS)
    runOnClose(response, end)
  }
}
