import { LiveSession } from './live-session.ts'

/**
 * The sessions that the process has in memory: all that are in use, and of the idle ones those that were used last.
 * One that has left is read from the store again when it is needed.
 */
export class LiveSessions {
  readonly #idleLimit: number
  readonly #sessions = new Map<string, LiveSession>()
  readonly #uses = new Map<LiveSession, number>()
  /** Ids of sessions that nobody uses, least recently used first. */
  readonly #idle = new Set<string>()

  constructor(idleLimit: number) {
    this.#idleLimit = idleLimit
  }

  get(sessionId: string): LiveSession | undefined {
    return this.#sessions.get(sessionId)
  }

  all(): Iterable<LiveSession> {
    return this.#sessions.values()
  }

  /** The session stays in memory until {@link release} was called as often as this. */
  use(sessionId: string): LiveSession {
    const live = this.#sessions.get(sessionId) ?? new LiveSession(sessionId)
    this.#sessions.set(sessionId, live)
    this.#uses.set(live, (this.#uses.get(live) ?? 0) + 1)
    this.#idle.delete(sessionId)
    return live
  }

  release(live: LiveSession): void {
    const uses = this.#uses.get(live)! - 1
    if (uses > 0) {
      this.#uses.set(live, uses)
      return
    }
    this.#uses.delete(live)
    if (live.isKnown) this.#idle.add(live.sessionId)
    else this.#sessions.delete(live.sessionId)
    if (this.#idle.size > this.#idleLimit) this.#evict()
  }

  #evict(): void {
    const [oldest] = this.#idle
    this.#idle.delete(oldest!)
    this.#sessions.delete(oldest!)
  }
}
