/** Reads a session for an export: its turns into a builder of rows, and their texts. */
import type { AgentRole } from '../../../session/roles/agent-role.ts'
import { rejectPartial } from '../../../session/trajectories/reject-partial.ts'
import type { TrajectoryBuilder } from '../../../session/trajectories/trajectories.ts'
import type { SessionRecord, TurnReader, TurnRecord } from '../../../store/port/turn-store.ts'

const TEXT_FIELDS = [
  'turnId',
  'index',
  'status',
  'startedAtMs',
  'lastMessage',
  'promptPieces',
  'tools',
  'completionText',
  'reasoning',
  'toolCalls',
  'finishReason',
  'model',
  'engine',
  'usage',
  'exact',
  'inexactReason',
  'weightVersionStart',
  'weightVersionEnd',
] as const satisfies (keyof TurnRecord)[]

/** The text and the outcome of a turn, without its tokens. */
export type TurnText = Pick<TurnRecord, (typeof TEXT_FIELDS)[number]> & { readonly line: AgentRole }

/**
 * Adds the turns of a session to a builder, which stores each token id once.
 * @returns the texts of the turns by turn id, in the order of their indices
 * @throws ProxyError `session_not_found` for a session that was removed or reset while it was read
 */
export async function readSession(
  reader: Pick<TurnReader, 'getSession' | 'readSteps'>,
  session: SessionRecord,
  builder: TrajectoryBuilder,
): Promise<ReadonlyMap<string, TurnText>> {
  const turns = new Map<string, TurnText>()
  for await (const turn of reader.readSteps(session.sessionId)) {
    const { agentRole: line } = builder.add(turn)
    const text = Object.fromEntries(TEXT_FIELDS.map((name) => [name, turn[name]])) as Omit<TurnText, 'line'>
    turns.set(turn.turnId, { ...text, line })
  }
  await rejectPartial(reader, session)
  return turns
}
