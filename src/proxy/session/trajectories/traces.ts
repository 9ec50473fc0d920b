/** A session's calls as a trainer of rLLM's kind reads them: turn by turn, and put together by itself. */
import { getAncestor, type Message } from '../../../protocol/canonical/conversation.ts'
import { NO_ENGINE } from '../../../protocol/canonical/events.ts'
import { type Marks, NO_MARKS } from '../../store/port/marks.ts'
import type { TurnRecord, TurnStep, TurnStore } from '../../store/port/turn-store.ts'
import { TrajectoryBuilder } from './trajectories.ts'

export interface TraceQuery {
  /** Only calls that ended then or later; milliseconds since the epoch. */
  sinceMs?: number | undefined
  /** Only the first n. */
  limit?: number | undefined
}

/** An answered call, and which one it goes on from. */
export interface TurnTrace {
  readonly turn: TurnRecord
  readonly lineage: Lineage
  readonly marks: Marks
}

/**
 * The answered calls of a session in call order, each with the call that it goes on from. Without those that never
 * reached the agent, because its client tried the call again: whoever trains on each trace would train on them.
 */
export async function* readTraces(
  store: Pick<TurnStore, 'getSession' | 'readTurns' | 'readSteps'>,
  sessionId: string,
  { sinceMs = 0, limit = Number.POSITIVE_INFINITY }: TraceQuery,
): AsyncGenerator<TurnTrace> {
  // Read twice, because only a later turn says which earlier one was tried again.
  const lineages = new Lineages()
  for await (const turn of store.readSteps(sessionId)) lineages.add(turn)
  const superseded = lineages.superseded()
  const marked = (await store.getSession(sessionId))?.marks.turns ?? {}
  let given = 0
  for await (const turn of store.readTurns(sessionId)) {
    if (given >= limit) return
    if (!isTrace(turn) || superseded.has(turn.turnId) || (turn.endedAtMs ?? 0) < sinceMs) continue
    yield { turn, lineage: lineages.of(turn.turnId), marks: marked[turn.index] ?? NO_MARKS }
    given += 1
  }
}

/** The end that an agent gets at a limit of its session is no answer of a model. */
export function isTrace(turn: Pick<TurnRecord, 'status' | 'engine' | 'finishReason'>): boolean {
  return turn.status === 'completed' && !(turn.engine === NO_ENGINE && turn.finishReason === 'stop')
}

/** Names its session, so that a turn is found by its trace alone. */
export function formatTraceId({ sessionId, turnId }: Pick<TurnRecord, 'sessionId' | 'turnId'>): string {
  return `${sessionId}:${turnId}`
}

/** A turn's id has no colon, whatever its session's has. */
export function parseTraceId(traceId: string): { sessionId: string; turnId: string } {
  const colon = traceId.lastIndexOf(':')
  return { sessionId: traceId.slice(0, Math.max(colon, 0)), turnId: traceId.slice(colon + 1) }
}

/** A call that another one goes on from. */
interface ParentTurn {
  readonly turnId: string
  /** Of its request; in the other one's its answer follows. */
  readonly messageCount: number
  /** Of its prompt and completion. */
  readonly tokenCount: number
}

interface Lineage {
  readonly parent: ParentTurn | null
  /** The turn that the conversation began with; a call without a parent is its own. */
  readonly root: string
}

interface LineageEntry extends Lineage {
  readonly lastMessage: Message | undefined
}

/**
 * How the answered calls of a session go on from each other, for readers that want of each call what it adds: a call's
 * parent is the one that it follows in a row, as long as its messages begin with that one's messages and an answer.
 */
class Lineages {
  readonly #rows = new TrajectoryBuilder({ sideCalls: true })
  readonly #calls = new Map<string, LineageEntry>()

  /** Takes all turns of one reading, in call order. */
  add(turn: TurnStep): void {
    const { turnId, lastMessage } = turn
    this.#rows.add(turn)
    const before = this.#rows.getParent(turnId)
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
function isAnsweredIn(last: Message | undefined, { lastMessage }: LineageEntry): boolean {
  if (lastMessage === undefined || last === undefined || last.depth <= lastMessage.depth) return false
  const answer = getAncestor(last, lastMessage.depth + 1)!
  return answer.parent === lastMessage && (JSON.parse(answer.json) as { role?: unknown }).role === 'assistant'
}
