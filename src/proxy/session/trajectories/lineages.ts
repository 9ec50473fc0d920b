/**
 * How the answered calls of a session go on from each other, for readers that want of each call what it adds: a call's
 * parent is the one that it follows in a row, as long as its messages begin with that one's messages and an answer.
 */
import { beginningOf, type Message } from '../../../protocol/canonical/conversation.ts'
import type { TurnStep } from '../../store/port/turn-store.ts'
import { TrajectoryBuilder } from './trajectories.ts'

/** A call that another one goes on from. */
interface ParentCall {
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

interface KnownCall extends Lineage {
  readonly lastMessage: Message | undefined
}

export class Lineages {
  readonly #rows = new TrajectoryBuilder({ sideCalls: true })
  readonly #calls = new Map<string, KnownCall>()

  /** Takes all turns of one reading, in call order. */
  add(turn: TurnStep): void {
    const { turnId, lastMessage } = turn
    this.#rows.add(turn)
    const before = this.#rows.parentOf(turnId)
    const call = before && this.#calls.get(before.turnId)
    const goesOn = call !== undefined && isAnsweredIn(lastMessage, call)
    const parent = goesOn ? { ...before!, messageCount: call.lastMessage!.depth } : null
    this.#calls.set(turnId, { lastMessage, parent, root: goesOn ? call.root : turnId })
  }

  /** Of a turn that was added. */
  of(turnId: string): Lineage {
    return this.#calls.get(turnId) ?? { parent: null, root: turnId }
  }

  /** As {@link TrajectoryBuilder.superseded}. */
  superseded(): ReadonlySet<string> {
    return this.#rows.superseded()
  }
}

/** Whether the messages up to `last` begin with those of the call and an answer. */
function isAnsweredIn(last: Message | undefined, { lastMessage }: KnownCall): boolean {
  if (lastMessage === undefined || last === undefined || last.depth <= lastMessage.depth) return false
  const answer = beginningOf(last, lastMessage.depth + 1)!
  return answer.parent === lastMessage && (JSON.parse(answer.json) as { role?: unknown }).role === 'assistant'
}
