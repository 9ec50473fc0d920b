/** The calls that run, each by what cancels it, and how they come to an end when the process does. */
import { ProxyError } from '../../../base/errors.ts'

export class RunningCalls {
  readonly #cancels = new Set<AbortController>()
  #draining = false
  #onIdle: (() => void) | undefined

  get isDraining(): boolean {
    return this.#draining
  }

  /** @returns what cancels the call: its session, the proxy's end, or that nobody waits for it */
  begin(session: AbortSignal): AbortController {
    const cancel = new AbortController()
    this.#cancels.add(cancel)
    if (session.aborted) cancel.abort(session.reason)
    else session.addEventListener('abort', () => cancel.abort(session.reason), { once: true })
    return cancel
  }

  end(cancel: AbortController): void {
    this.#cancels.delete(cancel)
    if (this.#cancels.size === 0) this.#onIdle?.()
  }

  /**
   * Takes no new calls, waits for those that run, and after the grace period cancels what is left.
   * @returns whether every call had ended by itself
   */
  async drain(graceMs: number): Promise<boolean> {
    this.#draining = true
    if (this.#cancels.size === 0) return true
    const idle = new Promise<void>((resolve) => {
      this.#onIdle = resolve
    })
    let cancelled = false
    const timer = setTimeout(() => {
      cancelled = true
      const reason = new ProxyError('shutting_down', 'llm-proxy was shut down before the answer was whole')
      for (const cancel of this.#cancels) cancel.abort(reason)
    }, graceMs)
    await idle.finally(() => clearTimeout(timer))
    return !cancelled
  }
}
