/** Exports a session in a foreign format, as lines of JSON. */
import type { Static } from 'typebox'
import { ProxyError } from '../../../../base/errors.ts'
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
 * @throws ProxyError `session_not_found` for a session that was removed or reset while it was read; `invalid_request` for
 *   a selection of rows in a format without rows
 */
export async function exportSession(
  reader: Pick<TurnReader, 'getSession' | 'readSteps' | 'getTurn'>,
  session: SessionRecord,
  query: ExportQueryString,
  onRow: (row: Trajectory) => void = () => {},
): Promise<Iterable<string> | AsyncIterable<string>> {
  if (query.format === 'atif') rejectRowSelection(query.select)
  if (query.finished_only && session.status !== 'completed') return []
  const builder = new TrajectoryBuilder(toTurnSelection(query))
  const turns = await readSession(reader, session, builder)
  if (query.format === 'atif') {
    const exclusions = builder.listExclusions()
    const shown = [...turns.values()].filter(
      (turn) =>
        isRequested(turn, query) && !['superseded', 'rejected'].includes(exclusions.get(turn.turnId) ?? ''),
    )
    const document = await writeAtifDocument({ reader, session, ids: query.ids }, shown)
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

/** Rejects a selection of rows for ATIF, which has messages instead of rows. @throws ProxyError `invalid_request` */
function rejectRowSelection(select: string): void {
  if (select === 'all' || select === 'main') return
  const message = `'${select}' selects rows, which the format atif does not have: select all or main`
  throw new ProxyError('invalid_request', message, { param: 'select' })
}

function isRequested({ line }: TurnText, { select, side_calls: sideCalls }: ExportQueryString): boolean {
  if (line === 'side') return sideCalls
  return select !== 'main' || isMainWork(line)
}

async function* writeLine(chunks: Iterable<string> | AsyncIterable<string>): AsyncGenerator<string> {
  yield* chunks
  yield '\n'
}
