/**
 * Reads a session's turns as traces for trainers, such as rLLM's, that process turns one by one and assemble rows
 * themselves.
 */
import { getAncestor, type Message } from '../../../protocol/canonical/conversation.ts'
import { NO_ENGINE } from '../../../protocol/canonical/events.ts'
import { type Marks, NO_MARKS } from '../../store/port/marks.ts'
import type { TurnRecord, TurnStep, TurnStore } from '../../store/port/turn-store.ts'
import { TrajectoryBuilder } from './trajectories.ts'

export interface TraceQuery {
  /** Only turns that ended at this time or later; milliseconds since the epoch. */
  sinceMs?: number | undefined
  /** Maximum number of turns. */
  limit?: number | undefined
}

/** A completed turn with its lineage. */
export interface TurnTrace {
  readonly turn: TurnRecord
  readonly lineage: Lineage
  readonly marks: Marks
}

/**
 * Yields the completed turns of a session in index order, each with the turn that it continues. Omits turns whose
 * response never reached the agent because its client retried the request: a trainer that trains on each trace would
 * train on them.
 */
export async function* readTraces(
  store: Pick<TurnStore, 'getSession' | 'readTurns' | 'readSteps'>,
  sessionId: string,
  { sinceMs = 0, limit = Number.POSITIVE_INFINITY }: TraceQuery,
): AsyncGenerator<TurnTrace> {
  // The turns are read twice, because only a later turn shows that an earlier one was retried.
  const lineages = new Lineages()
  for await (const turn of store.readSteps(sessionId)) lineages.add(turn)
  const superseded = lineages.findSuperseded()
  const marked = (await store.getSession(sessionId))?.marks.turns ?? {}
  let count = 0
  for await (const turn of store.readTurns(sessionId)) {
    if (count >= limit) return
    if (!isTrace(turn) || superseded.has(turn.turnId) || (turn.endedAtMs ?? 0) < sinceMs) continue
    yield { turn, lineage: lineages.getLineage(turn.turnId), marks: marked[turn.index] ?? NO_MARKS }
    count += 1
  }
}

/**
 * Returns whether the turn is a completed response of a model. The response that an agent receives at a limit of its
 * session is not.
 */
export function isTrace(turn: Pick<TurnRecord, 'status' | 'engine' | 'finishReason'>): boolean {
  return turn.status === 'completed' && !(turn.engine === NO_ENGINE && turn.finishReason === 'stop')
}

/** Returns the trace id. It contains the session id, so that a trace id alone identifies a turn. */
export function formatTraceId({ sessionId, turnId }: Pick<TurnRecord, 'sessionId' | 'turnId'>): string {
  return `${sessionId}:${turnId}`
}

/** Parses a trace id at its last colon: a session id may contain colons, a turn id does not. */
export function parseTraceId(traceId: string): { sessionId: string; turnId: string } {
  const colon = traceId.lastIndexOf(':')
  return { sessionId: traceId.slice(0, Math.max(colon, 0)), turnId: traceId.slice(colon + 1) }
}

/** A turn that another one continues. */
interface ParentTurn {
  readonly turnId: string
  /** Number of messages of its request; in the continuing request its completion follows them. */
  readonly messageCount: number
  /** Number of tokens of its prompt and completion. */
  readonly tokenCount: number
}

interface Lineage {
  readonly parent: ParentTurn | null
  /** The first turn of the conversation; a turn without a parent is its own root. */
  readonly root: string
}

interface LineageEntry extends Lineage {
  readonly lastMessage: Message | undefined
}

/**
 * The lineage of a session's turns, for readers that need only what each turn adds. The parent of a turn is the one
 * before it in a row, provided that its messages begin with the parent's messages and an assistant message.
 */
class Lineages {
  readonly #rows = new TrajectoryBuilder({ sideCalls: true })
  readonly #calls = new Map<string, LineageEntry>()

  /** Adds a turn. All turns of a session must be added in index order. */
  add(turn: TurnStep): void {
    const { turnId, lastMessage } = turn
    this.#rows.add(turn)
    const before = this.#rows.getParent(turnId)
    const call = before && this.#calls.get(before.turnId)
    // Its readers join the suffix of a prompt to the complete tokens of the turn before it.
    const goesOn = before?.isWhole === true && call !== undefined && isAnsweredIn(lastMessage, call)
    const parent = goesOn ? { ...before!, messageCount: call.lastMessage!.depth } : null
    this.#calls.set(turnId, { lastMessage, parent, root: goesOn ? call.root : turnId })
  }

  /** Returns the lineage of a turn that was added. */
  getLineage(turnId: string): Lineage {
    return this.#calls.get(turnId) ?? { parent: null, root: turnId }
  }

  /** Returns the same as {@link TrajectoryBuilder.findSuperseded}. */
  findSuperseded(): ReadonlySet<string> {
    return this.#rows.findSuperseded()
  }
}

/** Returns whether the messages up to `last` begin with those of the turn and an assistant message. */
function isAnsweredIn(last: Message | undefined, { lastMessage }: LineageEntry): boolean {
  if (lastMessage === undefined || last === undefined || last.depth <= lastMessage.depth) return false
  const answer = getAncestor(last, lastMessage.depth + 1)!
  return answer.parent === lastMessage && (JSON.parse(answer.json) as { role?: unknown }).role === 'assistant'
}
