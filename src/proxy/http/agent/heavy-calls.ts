import type { ServerResponse } from 'node:http'
import { onClose } from '../transport/on-close.ts'

/**
 * Lets a session begin one call at a time that brings thousands of new messages. Such a call holds the event loop, and then
 * the store's writer, for tenths of a second; others get their turn between two of them, not behind twenty. Agents do not
 * notice: what their calls repeat is not counted.
 */
const HEAVY_NODES = 10_000

/** Reading and recording it are done by then, and it waits for its engine, as others of its session may. */
const HEAVY_MS = 1_000

export class HeavyCalls {
  /** By caller: whose heavy call has begun, and what lets each go on that waits for its turn. */
  readonly #waiting = new Map<string, (() => void)[]>()

  /** To be asked right before a body is read, and again after the wait. @returns undefined: it may be read now */
  turnOf(caller: string): Promise<void> | undefined {
    const waiting = this.#waiting.get(caller)
    return waiting && new Promise((resolve) => waiting.push(resolve))
  }

  /** @param newNodes what the call's body brought */
  note(caller: string, newNodes: number, response: ServerResponse): void {
    if (newNodes < HEAVY_NODES || this.#waiting.has(caller)) return
    const waiting: (() => void)[] = []
    this.#waiting.set(caller, waiting)
    const end = () => {
      clearTimeout(timer)
      if (this.#waiting.get(caller) !== waiting) return
      this.#waiting.delete(caller)
      for (const goOn of waiting) goOn()
    }
    const timer = setTimeout(end, HEAVY_MS)
    onClose(response, end)
  }
}
