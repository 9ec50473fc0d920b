/** What token mode remembers of sessions: their turns as messages and as tokens. */
import type { TurnRecord, TurnStore } from '../../store/turn-store.ts'
import type { Conversation } from '../matching/conversation.ts'
import { type CallMessages, KnownMessages } from '../matching/known-messages.ts'
import type { MatchedCall, MatchIndex, SampledMessage } from '../matching/match-index.ts'
import { rebuildIndex } from '../matching/rebuild-index.ts'
import { TurnIds } from './turn-ids.ts'

/** Half a gigabyte of ids: some 1,000 sessions of 100k tokens. */
const MAX_BYTES = 512 * 1024 * 1024

/** How many of the latest turns a turn on record is compared with to find the one that it continues. */
const REBUILD_CANDIDATES = 8

/** One session. */
export class SessionTurns {
  readonly #index: MatchIndex<TurnIds>
  #bytes: number

  constructor(index: MatchIndex<TurnIds>, bytes: number) {
    this.#index = index
    this.#bytes = bytes
  }

  /** What its turns keep in memory. 0: there are none. */
  get bytes(): number {
    return this.#bytes
  }

  match(...call: Parameters<MatchIndex<TurnIds>['match']>): MatchedCall<TurnIds> {
    return this.#index.match(...call)
  }

  add(call: MatchedCall<TurnIds>, completion: SampledMessage, ids: TurnIds): void {
    this.#index.add(call, completion, ids)
    this.#bytes += ids.addedBytes
  }
}

/** A session's turns in the hands of a call: they stay in memory until it lets go of them. */
export interface BorrowedTurns extends Disposable {
  readonly turns: SessionTurns
  /** @throws ProxyError `invalid_request` for fields that are nested too deeply to be compared */
  read(call: CallMessages): Conversation
  /** @param turn the call as it was matched, its answer, and what is remembered of both */
  add(...turn: Parameters<SessionTurns['add']>): void
}

interface Entry {
  readonly turns: Promise<SessionTurns>
  /** Calls in flight, which are going to add to these very turns. */
  calls: number
  /** As counted in the sum over all sessions. */
  bytes: number
}

/** All sessions, the least recently used forgotten first; what was forgotten is read again from the store. */
export class SessionsTurns {
  readonly #store: Pick<TurnStore, 'readTurns'>
  readonly #conversationOf: (turn: TurnRecord) => Conversation | Promise<Conversation>
  readonly #maxBytes: number
  /** In order of use. */
  readonly #entries = new Map<string, Entry>()
  readonly #knownMessages = new KnownMessages()
  #bytes = 0

  /** @param conversationOf reads a turn on record as its call was read */
  constructor(
    store: Pick<TurnStore, 'readTurns'>,
    conversationOf: (turn: TurnRecord) => Conversation | Promise<Conversation>,
    maxBytes = MAX_BYTES,
  ) {
    this.#store = store
    this.#conversationOf = conversationOf
    this.#maxBytes = maxBytes
  }

  /** @throws ProxyError `store_failed` */
  async borrow(sessionId: string): Promise<BorrowedTurns> {
    const entry = this.#entryOf(sessionId)
    entry.calls += 1
    try {
      const turns = await entry.turns
      return {
        turns,
        read: (call) => this.#knownMessages.read(sessionId, call),
        add: (...turn) => {
          turns.add(...turn)
          this.#recount(sessionId, entry, turns.bytes)
        },
        [Symbol.dispose]: () => {
          entry.calls -= 1
        },
      }
    } catch (error) {
      this.#drop(sessionId, entry)
      throw error
    }
  }

  forget(sessionId: string): void {
    this.#knownMessages.forget(sessionId)
    const entry = this.#entries.get(sessionId)
    if (entry !== undefined) this.#drop(sessionId, entry)
  }

  /** Makes it the latest that was used. */
  #entryOf(sessionId: string): Entry {
    const entry = this.#entries.get(sessionId) ?? { turns: this.#load(sessionId), calls: 0, bytes: 0 }
    this.#entries.delete(sessionId)
    this.#entries.set(sessionId, entry)
    return entry
  }

  async #load(sessionId: string): Promise<SessionTurns> {
    const latest: TurnIds[] = []
    let bytes = 0
    const idsOf = (turn: TurnRecord): TurnIds | undefined => {
      if (!turn.exact) return undefined
      const parent = latest.find((candidate) => candidate.begins(turn.promptTokenIds))
      const ids = new TurnIds(turn.turnId, turn.promptTokenIds, turn.completionTokenIds, parent)
      bytes += ids.addedBytes
      latest.unshift(ids)
      latest.length = Math.min(latest.length, REBUILD_CANDIDATES)
      return ids
    }
    const index = await rebuildIndex(this.#store.readTurns(sessionId), idsOf, this.#conversationOf)
    return new SessionTurns(index, bytes)
  }

  /** What was dropped meanwhile is counted no more. */
  #recount(sessionId: string, entry: Entry, bytes: number): void {
    if (this.#entries.get(sessionId) !== entry) return
    this.#bytes += bytes - entry.bytes
    entry.bytes = bytes
    for (const [id, oldest] of this.#entries) {
      if (this.#bytes <= this.#maxBytes) return
      // A turn that is added to forgotten turns would be missing from those that are read anew.
      if (oldest.calls === 0) this.#drop(id, oldest)
    }
  }

  #drop(sessionId: string, entry: Entry): void {
    if (this.#entries.get(sessionId) !== entry) return
    this.#entries.delete(sessionId)
    this.#bytes -= entry.bytes
  }
}
