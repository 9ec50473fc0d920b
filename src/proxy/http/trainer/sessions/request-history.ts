import type { Message } from '../../../../protocol/canonical/conversation.ts'
import type { TurnRecord } from '../../../store/port/turn-store.ts'
import { PromptPrefixIndex } from './prompt-prefix-index.ts'

/** The parts of a request that earlier requests contain. */
export type RequestOverlap = ReturnType<RequestHistory['add']>

/**
 * The requests of a session's turns, which are added in order. It finds the part of each request that is new, so that a
 * conversation can be shown without repetition.
 */
export class RequestHistory {
  /** The latest turn whose request contains each message. */
  readonly #turns = new Map<Message, string>()
  readonly #prompts = new PromptPrefixIndex()

  /**
   * Adds the request of a turn.
   * @returns how many of its leading messages an earlier request contains, and the latest such turn; the same for a
   * prompt
   */
  add(turn: Pick<TurnRecord, 'turnId' | 'lastMessage' | 'promptPieces'>) {
    return { messages: this.#addMessages(turn), prompt: this.#prompts.add(turn) }
  }

  #addMessages({ turnId, lastMessage }: Pick<TurnRecord, 'turnId' | 'lastMessage'>) {
    const known: { count: number; turnId: string | null } = { count: 0, turnId: null }
    for (let message = lastMessage; message !== undefined; message = message.parent) {
      const before = this.#turns.get(message)
      if (before !== undefined && known.turnId === null)
        Object.assign(known, { count: message.depth, turnId: before })
      this.#turns.set(message, turnId)
    }
    return known
  }
}
