/** An event of the proxy. Events are not stored. */
type ActivityEvent =
  | { type: 'session_opened' | 'session_reset' | 'session_deleted' | 'session_marked'; session_id: string }
  | { type: 'session_ended'; session_id: string; status: 'completed' | 'aborted' }
  | { type: 'reward'; session_id: string; reward: number }
  | { type: 'paused' | 'resumed' }
  | { type: 'turn_opened'; session_id: string; index: number }
  | { type: 'turn_closed'; session_id: string; index: number; status: string; finish_reason: string | null }

/** The listeners of the proxy's events. Without a listener, an event costs one function call. */
export class Activity {
  readonly #listeners = new Set<(event: ActivityEvent) => void>()

  /** Adds a listener. @returns a function that removes it */
  listen(listener: (event: ActivityEvent) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  get listenerCount(): number {
    return this.#listeners.size
  }

  emit(event: ActivityEvent): void {
    for (const listener of this.#listeners) listener(event)
  }
}
