/** Exports a session in a foreign format, as lines of JSON. */
import type { Static } from 'typebox'
import { isMainWork } from '../../../session/roles/agent-role.ts'
import { type Trajectory, TrajectoryBuilder } from '../../../session/trajectories/trajectories.ts'
import type { SessionRecord, TurnReader } from '../../../store/port/turn-store.ts'
import { parseSelect, reportRows, toTurnSelection } from '../sessions/trajectory-query.ts'
import { writeAtifDocument } from './atif.ts'
import { readSession, type TurnText } from './read-session.ts'
import type { ExportQuery } from './schemas.ts'
import { writeSftLines } from './sft.ts'
import { writeTrainingTrace } from './training-trace.ts'

type ExportQueryString = Static<typeof ExportQuery>

/**
 * Reads the turns of a session and converts them. The token ids of `atif` are read step by step, while the client reads
 * the response.
 * @param onRow called with each row
 * @returns chunks of lines; no chunk if there is nothing to export
 * @throws ProxyError `session_not_found` for a session that was removed or reset while it was read
 */
export async function exportSession(
  reader: Pick<TurnReader, 'getSession' | 'readSteps' | 'getTurn'>,
  session: SessionRecord,
  query: ExportQueryString,
  onRow: (row: Trajectory) => void = () => {},
): Promise<Iterable<string> | AsyncIterable<string>> {
  if (query.finished_only && session.status !== 'completed') return []
  const builder = new TrajectoryBuilder(toTurnSelection(query))
  const turns = await readSession(reader, session, builder)
  if (query.format === 'atif') {
    const superseded = builder.findSuperseded()
    const shown = [...turns.values()].filter(
      (turn) => isRequested(turn, query) && !superseded.has(turn.turnId),
    )
    const document = writeAtifDocument({ reader, session, ids: query.ids }, shown)
    return document ? writeLine(document) : []
  }
  const rows = reportRows(
    builder.assembleRows(parseSelect(query.select), session.reward, session.marks),
    onRow,
  )
  return query.format === 'sft'
    ? writeSftLines(session.sessionId, rows)
    : writeLine(writeTrainingTrace(rows, turns))
}

function isRequested({ line }: TurnText, { select, side_calls: sideCalls }: ExportQueryString): boolean {
  if (line === 'side') return sideCalls
  return select !== 'main' || isMainWork(line)
}

async function* writeLine(chunks: Iterable<string> | AsyncIterable<string>): AsyncGenerator<string> {
  yield* chunks
  yield '\n'
}
