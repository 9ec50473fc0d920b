import { ProxyError } from '../../../base/errors.ts'
import { LiveSession } from './live-session.ts'
import type { LiveTurn } from './live-turn.ts'
import type { SessionCall } from './session-call.ts'
import type { SessionMemory } from './session-memory.ts'

/** A session in use: what its user adds to its memory is not lost before it lets go. */
export interface UsedSession extends Disposable {
  readonly live: LiveSession
  readonly memory: SessionMemory
}

/** Of sessions that have ended: their agents may go on calling for a while, and are refused without the store. */
const MAX_ENDED = 10_000

interface HeldSession {
  readonly live: LiveSession
  users: number
  /** As counted in the sum over all sessions. */
  bytes: number
}

/**
 * The sessions that the process has in memory: all that are in use, and of the others those that were used last, as far
 * as a budget of bytes goes. One that has left is read from the store again when it is needed.
 */
export class LiveSessions {
  readonly #maxBytes: number
  /** Those that nobody uses in order of their last use. */
  readonly #entries = new Map<string, HeldSession>()
  /** Ids of those that have ended and that nobody uses, in order of use. */
  readonly #ended = new Set<string>()
  #bytes = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  /** Of all sessions. */
  get bytes(): number {
    return this.#bytes
  }

  get(sessionId: string): LiveSession | undefined {
    return this.#entries.get(sessionId)?.live
  }

  *all(): Generator<LiveSession> {
    for (const { live } of this.#entries.values()) yield live
  }

  /** All turns in flight, the oldest first. */
  turns(): LiveTurn[] {
    return [...this.all()]
      .flatMap((live) => live.turns)
      .sort((a, b) => a.open.startedAtMs - b.open.startedAtMs)
  }

  /**
   * Waits for the calls in flight, and after the grace period cancels what is left.
   * @returns whether every call had ended by itself
   */
  async drain(graceMs: number): Promise<boolean> {
    let isOver = false
    const cancelAll = () => {
      isOver = true
      const reason = new ProxyError('shutting_down', 'llm-proxy was shut down before the answer was whole')
      for (const call of this.#calls()) call.cancel(reason)
    }
    const timer = setTimeout(cancelAll, graceMs)
    // One that had been taken before may get its place only now.
    for (let calls = this.#calls(); calls.length > 0; calls = this.#calls()) {
      if (isOver) cancelAll()
      await Promise.all(calls.map(({ over }) => over))
    }
    clearTimeout(timer)
    return !isOver
  }

  #calls(): SessionCall[] {
    return [...this.all()].flatMap((live) => [...live.calls])
  }

  use(sessionId: string): UsedSession {
    const entry = this.#entries.get(sessionId) ?? this.#add(new LiveSession(sessionId))
    this.#ended.delete(sessionId)
    entry.users += 1
    const { live } = entry
    let isUsed = true
    return {
      live,
      get memory() {
        return live.memory
      },
      [Symbol.dispose]: () => {
        if (isUsed) this.#release(entry)
        isUsed = false
      },
    }
  }

  #add(live: LiveSession): HeldSession {
    const entry = { live, users: 0, bytes: 0 }
    this.#entries.set(live.sessionId, entry)
    return entry
  }

  #release(entry: HeldSession): void {
    const { live } = entry
    entry.users -= 1
    if (entry.users === 0) {
      live.rest()
      this.#entries.delete(live.sessionId)
      this.#entries.set(live.sessionId, entry)
      if (live.isKnown && !live.isActive) this.#ended.add(live.sessionId)
    }
    const { bytes } = live
    this.#bytes += bytes - entry.bytes
    entry.bytes = bytes
    if (entry.users === 0 && !live.isKnown) this.#remove(entry)
    if (this.#ended.size > MAX_ENDED) this.#remove(this.#entries.get(this.#ended.values().next().value!)!)
    // Asked first: where the oldest stood, a map steps over the place of each that has been moved since.
    if (this.#bytes <= this.#maxBytes) return
    for (const oldest of this.#entries.values()) {
      if (this.#bytes <= this.#maxBytes) return
      if (oldest.users === 0) this.#remove(oldest)
    }
  }

  #remove({ live, bytes }: HeldSession): void {
    this.#entries.delete(live.sessionId)
    this.#ended.delete(live.sessionId)
    this.#bytes -= bytes
  }
}
