/**
 * Reads the turns of a session as traces, for trainers such as rLLM's that process turns one by one and assemble rows
 * themselves.
 */
import { getAncestor, type Message } from '../../../protocol/canonical/conversation.ts'
import { NO_ENGINE } from '../../../protocol/canonical/events.ts'
import { type Marks, NO_MARKS } from '../../store/port/marks.ts'
import type { TurnRecord, TurnStep, TurnStore } from '../../store/port/turn-store.ts'
import { rejectPartial } from './reject-partial.ts'
import { TrajectoryBuilder } from './trajectories.ts'

/** The selection of traces. */
export interface TraceQuery {
  /** The earliest end of a turn, in milliseconds since the epoch. Default: 0. */
  sinceMs?: number | undefined
  /** The maximum number of turns. Default: no limit. */
  limit?: number | undefined
}

/** A completed turn with its lineage, labels and notes. */
export interface TurnTrace {
  readonly turn: TurnRecord
  readonly lineage: Lineage
  readonly marks: Marks
}

/**
 * Yields the completed turns of a session in index order, each with the turn that it continues. Turns whose response
 * never reached the agent, because its client retried the request, are omitted: a trainer that trains on every trace
 * would train on them.
 * @throws ProxyError `session_not_found` for a session that was removed or reset while it was read
 */
export async function* readTraces(
  store: Pick<TurnStore, 'getSession' | 'readTurns' | 'readSteps'>,
  sessionId: string,
  { sinceMs = 0, limit = Number.POSITIVE_INFINITY }: TraceQuery,
): AsyncGenerator<TurnTrace> {
  // The turns are read twice, because only a later turn shows that the client retried an earlier one.
  const session = await store.getSession(sessionId)
  if (session === undefined) return
  const lineages = new Lineages()
  for await (const turn of store.readSteps(sessionId)) lineages.add(turn)
  await rejectPartial(store, session)
  const superseded = lineages.findSuperseded()
  const marked = session.marks.turns
  let count = 0
  for await (const turn of store.readTurns(sessionId)) {
    if (count >= limit) break
    if (!isTrace(turn) || superseded.has(turn.turnId) || (turn.endedAtMs ?? 0) < sinceMs) continue
    yield { turn, lineage: lineages.getLineage(turn.turnId), marks: marked[turn.index] ?? NO_MARKS }
    count += 1
  }
  await rejectPartial(store, session)
}

/**
 * Returns whether the turn is a completed response of a model, in contrast to the empty one that an agent receives at a
 * limit of its session.
 */
export function isTrace(turn: Pick<TurnRecord, 'status' | 'engine' | 'finishReason'>): boolean {
  return turn.status === 'completed' && !(turn.engine === NO_ENGINE && turn.finishReason === 'stop')
}

/** Returns the trace id. It includes the session id, so that a trace id identifies a turn by itself. */
export function formatTraceId({ sessionId, turnId }: Pick<TurnRecord, 'sessionId' | 'turnId'>): string {
  return `${sessionId}:${turnId}`
}

/**
 * Parses a trace id. It is split at the last colon, because a session id may contain colons, but a turn id does not.
 */
export function parseTraceId(traceId: string): { sessionId: string; turnId: string } {
  const colon = traceId.lastIndexOf(':')
  return { sessionId: traceId.slice(0, Math.max(colon, 0)), turnId: traceId.slice(colon + 1) }
}

/** A turn that another one continues. */
interface ParentTurn {
  readonly turnId: string
  /** The number of messages of its request, which its completion follows in the request that continues it. */
  readonly messageCount: number
  /** The number of tokens of its prompt and completion. */
  readonly tokenCount: number
}

/** The position of a turn in its conversation. */
interface Lineage {
  readonly parent: ParentTurn | null
  /** The id of the first turn of the conversation; a turn without a parent is its own root. */
  readonly root: string
}

/** A lineage with the messages of the turn's request. */
interface LineageEntry extends Lineage {
  readonly lastMessage: Message | undefined
}

/**
 * The lineages of a session's turns, for readers that receive only the new part of each turn. The parent of a turn is
 * the previous turn of its row, provided that its messages begin with the parent's messages and an assistant message.
 */
class Lineages {
  readonly #rows = new TrajectoryBuilder({ sideCalls: true })
  readonly #entries = new Map<string, LineageEntry>()

  /** Adds a turn. All turns of a session must be added in index order. */
  add(turn: TurnStep): void {
    const { turnId, lastMessage } = turn
    this.#rows.add(turn)
    const before = this.#rows.getParent(turnId)
    const entry = before && this.#entries.get(before.turnId)
    // Readers append the new part of a prompt to all tokens of the parent, so none of them may have been replaced.
    const isContinuation = before?.isWhole === true && entry !== undefined && isAnsweredIn(lastMessage, entry)
    const parent = isContinuation ? { ...before!, messageCount: entry.lastMessage!.depth } : null
    this.#entries.set(turnId, { lastMessage, parent, root: isContinuation ? entry.root : turnId })
  }

  /** Returns the lineage of a turn, which must have been added. */
  getLineage(turnId: string): Lineage {
    return this.#entries.get(turnId) ?? { parent: null, root: turnId }
  }

  /** Returns the result of {@link TrajectoryBuilder.findSuperseded} for the turns so far. */
  findSuperseded(): ReadonlySet<string> {
    return this.#rows.findSuperseded()
  }
}

/** Returns whether the messages up to `last` begin with those of the entry and an assistant message. */
function isAnsweredIn(last: Message | undefined, { lastMessage }: LineageEntry): boolean {
  if (lastMessage === undefined || last === undefined || last.depth <= lastMessage.depth) return false
  const answer = getAncestor(last, lastMessage.depth + 1)!
  return answer.parent === lastMessage && (JSON.parse(answer.json) as { role?: unknown }).role === 'assistant'
}
