/**
 * How the answered calls of a session go on from each other, for readers that want of each call what it adds: a call's
 * parent is the one whose prompt and completion its own prompt begins with, token by token, and whose messages and
 * answer its own messages begin with.
 */
import { beginningOf, type Message } from '../../../protocol/canonical/conversation.ts'
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

interface KnownCall extends Lineage, ParentCall {
  readonly lastMessage: Message | undefined
}

export class Lineages {
  readonly #tree = new TurnTree()
  readonly #calls = new Map<string, KnownCall>()

  /** Takes all turns of one reading, in call order: any may be what a later one is stored against. */
  add(turn: TurnStep): void {
    const { turnId, lastMessage, completionTokenIds } = turn
    const sequence = this.#tree.read(turn)
    if (turn.status !== 'completed') return
    this.#tree.add(turn, sequence, 'main')
    const candidate = completionTokenIds.length > 0 ? this.#tree.find(turnId)?.parent : undefined
    const call = candidate && this.#calls.get(candidate.turnId)
    const parent = call && isAnsweredIn(lastMessage, call) ? call : null
    this.#calls.set(turnId, {
      turnId,
      messageCount: lastMessage?.depth ?? 0,
      tokenCount: sequence.length,
      lastMessage,
      parent,
      root: parent?.root ?? turnId,
    })
  }

  /** Of a turn that was added and is completed. */
  of(turnId: string): Lineage {
    return this.#calls.get(turnId) ?? { parent: null, root: turnId }
  }
}

/** Whether the messages up to `last` begin with those of the call and an answer. */
function isAnsweredIn(last: Message | undefined, { lastMessage, messageCount }: KnownCall): boolean {
  if (lastMessage === undefined || last === undefined || last.depth <= messageCount) return false
  const answer = beginningOf(last, messageCount + 1)!
  return answer.parent === lastMessage && (JSON.parse(answer.json) as { role?: unknown }).role === 'assistant'
}
