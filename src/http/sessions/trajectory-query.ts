/** A session's trajectories as a query asks for them. */
import type { Static } from 'typebox'
import { TrajectoryBuilder, type TrajectoryOptions, type TurnSelection } from '../../session/trajectories.ts'
import type { SessionRecord, TurnStep } from '../../store/turn-store.ts'
import type { TrajectoriesQuery } from './schemas.ts'
import { sessionWithTrajectories } from './serialise.ts'

export type TrajectoryQuery = Static<typeof TrajectoriesQuery>

/** Reads the turns. @returns the answer, as pieces of one JSON text */
export async function queryTrajectories(
  session: SessionRecord,
  turns: AsyncIterable<TurnStep>,
  query: TrajectoryQuery,
): Promise<AsyncGenerator<string>> {
  const builder = new TrajectoryBuilder(selectionOf(query))
  for await (const turn of turns) builder.add(turn)
  const isLeftOut = query.finished_only && session.status !== 'completed'
  const rows = isLeftOut ? [] : builder.rows(optionsOf(query), session.reward)
  return sessionWithTrajectories(session, builder.excluded(), rows)
}

function selectionOf({ select, side_calls }: TrajectoryQuery): TurnSelection {
  return { lines: select === 'main' ? 'main' : 'all', sideCalls: side_calls }
}

function optionsOf(query: TrajectoryQuery): TrajectoryOptions {
  const { prompt_length: promptLength, response_length: responseLength, select, per_turn: perTurn } = query
  return {
    select: select === 'main' ? 'all' : select,
    perTurn,
    ...(promptLength !== undefined && { promptLength }),
    ...(responseLength !== undefined && { responseLength }),
  }
}
