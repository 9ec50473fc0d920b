import { ProxyError } from '../../../base/errors.ts'
import { LiveSession } from './live-session.ts'
import type { InFlightTurn } from './live-turn.ts'
import type { SessionMemory } from './session-memory.ts'
import type { TurnAllocation } from './turn-allocation.ts'

/** A reference to a session: changes to its cache are kept at least until the reference is released. */
export interface SessionReference extends Disposable {
  readonly live: LiveSession
  readonly memory: SessionMemory
  /** Returns another reference, for a user that may need the session for longer. */
  retain(): SessionReference
}

/**
 * The number of ended sessions in memory: their agents may continue to send requests, which are then rejected without
 * the store.
 */
const MAX_ENDED = 10_000

interface SessionEntry {
  readonly live: LiveSession
  users: number
  /** The size as counted in the sum over all sessions. */
  bytes: number
}

/**
 * The sessions in memory: all that are referenced, and the least recently used of the others evicted beyond a budget of
 * bytes. An evicted session is read from the store again when it is needed.
 */
export class LiveSessions {
  readonly #maxBytes: number
  /** The entries; those without a reference are in the order of their last use. */
  readonly #entries = new Map<string, SessionEntry>()
  /** The ids of ended sessions without a reference, in the order of use. */
  readonly #ended = new Set<string>()
  #bytes = 0
  readonly #references: ReferenceCallbacks = {
    // The entry may have been evicted since the reference was released.
    retain: (entry, isReleased) =>
      isReleased ? this.acquire(entry.live.sessionId) : this.#createReference(entry),
    release: (entry) => this.#release(entry),
  }

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  /** The size of all sessions. */
  get bytes(): number {
    return this.#bytes
  }

  get(sessionId: string): LiveSession | undefined {
    return this.#entries.get(sessionId)?.live
  }

  *list(): Generator<LiveSession> {
    for (const { live } of this.#entries.values()) yield live
  }

  /** Returns all turns in flight, the oldest first. */
  listTurns(): InFlightTurn[] {
    return [...this.list()]
      .flatMap((live) => live.turns)
      .sort((a, b) => a.open.startedAtMs - b.open.startedAtMs)
  }

  /**
   * Waits for the requests in flight, and cancels the rest after the grace period.
   * @returns whether every request ended by itself
   */
  async drain(graceMs: number): Promise<boolean> {
    let isOver = false
    const cancelAll = () => {
      isOver = true
      const reason = new ProxyError(
        'shutting_down',
        'llm-proxy was shut down before the response was complete',
      )
      for (const allocation of this.#allocations()) allocation.cancel(reason)
    }
    const timer = setTimeout(cancelAll, graceMs)
    // A request that was accepted before may begin only now.
    for (let allocations = this.#allocations(); allocations.length > 0; allocations = this.#allocations()) {
      if (isOver) cancelAll()
      await Promise.all(allocations.map(({ over }) => over))
    }
    clearTimeout(timer)
    return !isOver
  }

  #allocations(): TurnAllocation[] {
    return [...this.list()].flatMap((live) => [...live.allocations])
  }

  acquire(sessionId: string): SessionReference {
    const entry = this.#entries.get(sessionId) ?? this.#add(new LiveSession(sessionId))
    this.#ended.delete(sessionId)
    return this.#createReference(entry)
  }

  #createReference(entry: SessionEntry): SessionReference {
    entry.users += 1
    return new EntryReference(entry, this.#references)
  }

  #add(live: LiveSession): SessionEntry {
    const entry = { live, users: 0, bytes: 0 }
    this.#entries.set(live.sessionId, entry)
    return entry
  }

  #release(entry: SessionEntry): void {
    const { live } = entry
    entry.users -= 1
    if (entry.users === 0) {
      live.releaseRequestMemory()
      this.#entries.delete(live.sessionId)
      this.#entries.set(live.sessionId, entry)
      if (live.isLoaded && !live.isActive) this.#ended.add(live.sessionId)
    }
    const { bytes } = live
    this.#bytes += bytes - entry.bytes
    entry.bytes = bytes
    if (entry.users === 0 && !live.isLoaded) this.#remove(entry)
    if (this.#ended.size > MAX_ENDED) this.#remove(this.#entries.get(this.#ended.values().next().value!)!)
    // Checked first: iterating a map from its start steps over the position of each entry that was moved since.
    if (this.#bytes <= this.#maxBytes) return
    for (const oldest of this.#entries.values()) {
      if (this.#bytes <= this.#maxBytes) return
      if (oldest.users === 0) this.#remove(oldest)
    }
  }

  #remove({ live, bytes }: SessionEntry): void {
    this.#entries.delete(live.sessionId)
    this.#ended.delete(live.sessionId)
    this.#bytes -= bytes
  }
}

interface ReferenceCallbacks {
  retain(entry: SessionEntry, isReleased: boolean): SessionReference
  release(entry: SessionEntry): void
}

/** A class, because an object literal with an accessor takes a microsecond to create, three times in each request. */
class EntryReference implements SessionReference {
  readonly live: LiveSession
  readonly #entry: SessionEntry
  readonly #references: ReferenceCallbacks
  #isReleased = false

  constructor(entry: SessionEntry, references: ReferenceCallbacks) {
    this.live = entry.live
    this.#entry = entry
    this.#references = references
  }

  get memory(): SessionMemory {
    return this.live.memory
  }

  retain(): SessionReference {
    return this.#references.retain(this.#entry, this.#isReleased)
  }

  [Symbol.dispose](): void {
    if (!this.#isReleased) this.#references.release(this.#entry)
    this.#isReleased = true
  }
}
