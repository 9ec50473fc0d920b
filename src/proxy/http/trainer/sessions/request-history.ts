import type { Message } from '../../../../protocol/canonical/conversation.ts'
import type { TurnRecord } from '../../../store/port/turn-store.ts'
import { NewPrompts } from './new-prompts.ts'

export type RequestOverlap = ReturnType<RequestHistory['add']>

/**
 * Finds the part of each request that no earlier request begins with, so that a conversation can be shown without
 * repetition. The turns of one session are added in order.
 */
export class RequestHistory {
  /** The latest turn whose request contains each message. */
  readonly #turns = new Map<Message, string>()
  readonly #prompts = new NewPrompts()

  /** @returns how many leading messages are known, and from which turn (the latest of several); the same for prompts */
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
