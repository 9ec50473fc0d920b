/** The turns of a session that its calls go on from: as messages, and as tokens. */
import type { TurnRecord, TurnStore } from '../../store/turn-store.ts'
import type { Conversation } from '../matching/conversation.ts'
import { type MatchedCall, MatchIndex, type SampledMessage } from '../matching/match-index.ts'
import { rebuildIndex } from '../matching/rebuild-index.ts'
import { TurnIds } from './turn-ids.ts'

/** How many of the latest turns a turn on record is compared with to find the one that it continues. */
const REBUILD_CANDIDATES = 8

/** Of a turn besides its tokens: its place among the messages that calls are matched with. As measured. */
const TURN_BYTES = 2_000

export class SessionTurns {
  readonly #index: MatchIndex<TurnIds>
  #bytes: number

  /** @param bytes what the turns of the index keep in memory */
  constructor(index: MatchIndex<TurnIds> = new MatchIndex(), bytes = 0) {
    this.#index = index
    this.#bytes = bytes
  }

  /** What its turns keep in memory. 0: there are none. */
  get bytes(): number {
    return this.#bytes
  }

  match(conversation: Conversation): MatchedCall<TurnIds> {
    return this.#index.match(conversation)
  }

  add(call: MatchedCall<TurnIds>, completion: SampledMessage, ids: TurnIds): void {
    this.#index.add(call, completion, ids)
    this.#bytes += TURN_BYTES + ids.addedBytes
  }
}

/**
 * The turns of a session that was recorded before, for instance by a process that is gone.
 * @param conversationOf reads a turn on record as its call was read
 * @throws ProxyError `store_failed`
 */
export async function readSessionTurns(
  store: Pick<TurnStore, 'readTurns'>,
  sessionId: string,
  conversationOf: (turn: TurnRecord) => Conversation | Promise<Conversation>,
): Promise<SessionTurns> {
  const latest: TurnIds[] = []
  let bytes = 0
  const idsOf = (turn: TurnRecord): TurnIds | undefined => {
    if (!turn.exact) return undefined
    const parent = latest.find((candidate) => candidate.begins(turn.promptTokenIds))
    const ids = new TurnIds(turn.turnId, turn.promptTokenIds, turn.completionTokenIds, parent)
    bytes += TURN_BYTES + ids.addedBytes
    latest.unshift(ids)
    latest.length = Math.min(latest.length, REBUILD_CANDIDATES)
    return ids
  }
  const index = await rebuildIndex(store.readTurns(sessionId), idsOf, conversationOf)
  return new SessionTurns(index, bytes)
}
