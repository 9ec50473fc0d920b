import type { TurnRecord } from '../../../store/port/turn-store.ts'
import { NewMessages } from './new-messages.ts'
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
