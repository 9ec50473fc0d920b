import type { TurnRecord } from '../../../store/port/turn-store.ts'
import { NewPrompts } from './new-prompts.ts'

export type NewParts = ReturnType<RequestsSoFar['add']>

/** Tells what of each request no earlier one begins with. */
export class RequestsSoFar {
  readonly #messages = new NewMessages()
  readonly #prompts = new NewPrompts()

  add(turn: Pick<TurnRecord, 'turnId' | 'requestMessages' | 'promptPieces'>) {
    return { messages: this.#messages.add(turn), prompt: this.#prompts.add(turn) }
  }
}

/** A message in the context of those before it. */
interface MessageNode {
  readonly next: Map<string, MessageNode>
  /** The latest turn whose request goes through here. */
  turnId: string
}

/**
 * Tells which messages of a request an earlier turn's request began with, so that a conversation can be shown
 * without repeating itself. Works on the texts themselves: a reader gives the same string for the same message, and to
 * look such a string up costs a tenth of hashing it, with ten thousand of them in a turn.
 */
class NewMessages {
  readonly #first = new Map<string, MessageNode>()

  /** @returns how many leading messages are known, and from which turn (the latest of several) */
  add({ turnId, requestMessages }: { turnId: string; requestMessages: readonly string[] }) {
    const known: { count: number; turnId: string | null } = { count: 0, turnId: null }
    let steps = this.#first
    for (const [position, message] of requestMessages.entries()) {
      let step = steps.get(message)
      if (step === undefined) {
        step = { next: new Map(), turnId }
        steps.set(message, step)
      } else {
        known.count = position + 1
        known.turnId = step.turnId
        step.turnId = turnId
      }
      steps = step.next
    }
    return known
  }
}
