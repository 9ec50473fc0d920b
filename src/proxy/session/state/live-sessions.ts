import { ProxyError } from '../../../base/errors.ts'
import { LiveSession } from './live-session.ts'
import type { InFlightTurn } from './live-turn.ts'
import type { SessionMemory } from './session-memory.ts'
import type { TurnAllocation } from './turn-allocation.ts'

/** A reference to a session in memory. Its session and cache are not evicted until it is disposed. */
export interface SessionReference extends Disposable {
  readonly live: LiveSession
  readonly memory: SessionMemory
  /** Returns another reference, which may outlive this one. */
  retain(): SessionReference
}

/**
 * The maximum number of ended sessions in memory. They are retained because requests that their agents still send are
 * then rejected without a read of the store.
 */
const MAX_ENDED = 10_000

/** A session in memory with its references. */
interface SessionEntry {
  readonly live: LiveSession
  /** The number of references. */
  users: number
  /** The size that is included in the sum over all sessions. */
  bytes: number
}

/**
 * The sessions in memory. Beyond a budget of bytes, the least recently used sessions without a reference are evicted.
 * An evicted session is read from the store when it is needed again.
 */
export class LiveSessions {
  readonly #maxBytes: number
  /** The entries by session id. Those without a reference are in the order of their last use. */
  readonly #entries = new Map<string, SessionEntry>()
  /** The ids of ended sessions without a reference, in the order of their last use. */
  readonly #ended = new Set<string>()
  #bytes = 0
  readonly #references: ReferenceCallbacks = {
    // The entry may have been evicted after the reference was released.
    retain: (entry, isReleased) =>
      isReleased ? this.acquire(entry.live.sessionId) : this.#createReference(entry),
    release: (entry) => this.#release(entry),
  }

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  /** The size of all sessions, as of their last release. */
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
   * Waits for the requests in flight, and cancels those that remain after the grace period. Returns `settleMs` after
   * that at the latest: a turn ends only when it is committed, for which an unavailable database has no time limit.
   * @returns whether every request ended without being cancelled
   */
  async drain(graceMs: number, settleMs: number): Promise<boolean> {
    let state = 'waiting' as 'waiting' | 'cancelled' | 'expired'
    const expiry = Promise.withResolvers<void>()
    const cancelAll = () => {
      const reason = new ProxyError(
        'shutting_down',
        'llm-proxy was shut down before the response was complete',
      )
      for (const allocation of this.#allocations()) allocation.cancel(reason)
    }
    const expire = () => {
      state = 'expired'
      expiry.resolve()
    }
    const endGracePeriod = () => {
      state = 'cancelled'
      cancelAll()
      timer = setTimeout(expire, settleMs)
    }
    let timer = setTimeout(endGracePeriod, graceMs)
    // A request that was accepted earlier may begin during the wait.
    for (let allocations = this.#allocations(); allocations.length > 0; allocations = this.#allocations()) {
      if (state === 'expired') break
      if (state === 'cancelled') cancelAll()
      await Promise.race([Promise.all(allocations.map(({ over }) => over)), expiry.promise])
    }
    clearTimeout(timer)
    return state === 'waiting'
  }

  #allocations(): TurnAllocation[] {
    return [...this.list()].flatMap((live) => [...live.allocations])
  }

  /** Acquires a reference to a session, which is added to memory if it is missing. */
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
    // Checked before the loop, because iterating a map steps over the old positions of entries that were moved to its
    // end.
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

/** The operations of an {@link EntryReference} on its entry. */
interface ReferenceCallbacks {
  retain(entry: SessionEntry, isReleased: boolean): SessionReference
  release(entry: SessionEntry): void
}

/**
 * A reference to an entry. It is a class because an object literal with an accessor takes a microsecond to create, and
 * each request creates three.
 */
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
