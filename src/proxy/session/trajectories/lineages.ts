/**
 * How the answered calls of a session go on from each other, for readers that want of each call what it adds: a call's
 * parent is the one whose prompt and completion its own prompt begins with, token by token, and whose messages and
 * answer its own messages begin with.
 */
import type { TurnStep } from '../../store/port/turn-store.ts'
import { TurnTree } from './turn-tree.ts'

/** A call that another one goes on from. */
export interface ParentCall {
  readonly turnId: string
  /** Of its request; in the other one's its answer follows. */
  readonly messageCount: number
  /** Of its prompt and completion. */
  readonly tokenCount: number
}

export interface Lineage {
  readonly parent: ParentCall | null
  /** The turn that the conversation began with; a call without a parent is its own. */
  readonly root: string
}

/** A place in the tree of message lists: those that begin with the same messages. */
interface Place {
  readonly next: Map<string, Place>
}

interface KnownCall extends Lineage, ParentCall {
  /** Where its request's messages end. */
  readonly place: Place
}

export class Lineages {
  readonly #tree = new TurnTree()
  readonly #calls = new Map<string, KnownCall>()
  readonly #first: Place = { next: new Map() }

  /** Takes all turns of a session, in call order: any may be what a later one is stored against. */
  add(turn: TurnStep): void {
    const { turnId, requestMessages, completionTokenIds } = turn
    const sequence = this.#tree.read(turn)
    if (turn.status !== 'completed') return
    this.#tree.add(turn, sequence, 'main')
    const candidate = completionTokenIds.length > 0 ? this.#tree.find(turnId)?.parent : undefined
    const { place, parent } = this.#walk(requestMessages, candidate && this.#calls.get(candidate.turnId))
    this.#calls.set(turnId, {
      turnId,
      messageCount: requestMessages.length,
      tokenCount: sequence.length,
      place,
      parent,
      root: parent?.root ?? turnId,
    })
  }

  /** Of a turn that was added and is completed. */
  of(turnId: string): Lineage {
    return this.#calls.get(turnId) ?? { parent: null, root: turnId }
  }

  #walk(messages: readonly string[], candidate: KnownCall | undefined) {
    let place = this.#first
    let parent: KnownCall | null = null
    for (const [position, message] of messages.entries()) {
      const isAt = position > 0 && position === candidate?.messageCount && place === candidate.place
      if (isAt && isAnswer(message)) parent = candidate
      let next = place.next.get(message)
      if (next === undefined) {
        next = { next: new Map() }
        place.next.set(message, next)
      }
      place = next
    }
    return { place, parent }
  }
}

function isAnswer(message: string): boolean {
  return (JSON.parse(message) as { role?: unknown }).role === 'assistant'
}
