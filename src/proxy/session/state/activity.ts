/**
 * What happens in the proxy at this moment, for whoever watches. Nothing is kept but the turns in flight; with nobody
 * watching, an event costs one call.
 */
import type { Completion } from '../../../protocol/canonical/completion.ts'

export type ActivityEvent =
  | { type: 'session_opened' | 'session_reset' | 'session_deleted'; session_id: string }
  | { type: 'session_ended'; session_id: string; status: 'completed' | 'aborted' }
  | { type: 'reward'; session_id: string; reward: number }
  | { type: 'paused' | 'resumed' }
  | { type: 'turn_opened'; session_id: string; index: number }
  | { type: 'turn_closed'; session_id: string; index: number; status: string; finish_reason: string | null }

/** A turn in flight. */
export interface LiveTurn {
  readonly sessionId: string
  readonly index: number
  readonly startedAtMs: number
  /** What has come of its answer; grows. */
  readonly completion: Completion
}

export class Activity {
  readonly #listeners = new Set<(event: ActivityEvent) => void>()
  readonly #turns = new Map<string, Set<LiveTurn>>()

  /** @returns what ends it */
  listen(listener: (event: ActivityEvent) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  get listenerCount(): number {
    return this.#listeners.size
  }

  tell(event: ActivityEvent): void {
    for (const listener of this.#listeners) listener(event)
  }

  /** @returns what says that the turn is over */
  begin(turn: LiveTurn): () => void {
    const { sessionId: session_id, index } = turn
    const turns = this.#turns.get(session_id) ?? new Set()
    this.#turns.set(session_id, turns.add(turn))
    this.tell({ type: 'turn_opened', session_id, index })
    return () => {
      turns.delete(turn)
      if (turns.size === 0 && this.#turns.get(session_id) === turns) this.#turns.delete(session_id)
    }
  }

  /** All turns in flight, the oldest first. */
  openTurns(): LiveTurn[] {
    return [...this.#turns.values()]
      .flatMap((turns) => [...turns])
      .sort((a, b) => a.startedAtMs - b.startedAtMs)
  }

  /** The session's turns in flight. */
  turnsOf(sessionId: string): Iterable<LiveTurn> {
    return this.#turns.get(sessionId) ?? []
  }
}
