/** Reads one turn of a session. */
import type { Static } from 'typebox'
import { ProxyError } from '../../../../base/errors.ts'
import { AgentRoleFinder } from '../../../session/roles/agent-role-finder.ts'
import type { SessionRecord, TurnReader } from '../../../store/port/turn-store.ts'
import type { OneTurnQuery } from './read-schemas.ts'
import { RequestHistory } from './request-history.ts'
import { turnToWire } from './serialise.ts'

/**
 * Returns a turn as chunks of one JSON text. The outlines of all earlier turns are read, on which its agent role and
 * the new part of its request depend.
 * @throws ProxyError `turn_not_found`
 */
export async function readTurnByIndex(
  reader: TurnReader,
  { sessionId, marks }: SessionRecord,
  index: number,
  query: Static<typeof OneTurnQuery>,
) {
  const lines = new AgentRoleFinder()
  const requests = new RequestHistory()
  for await (const outline of reader.readOutlines(sessionId)) {
    const line = lines.add(outline)
    const newParts = requests.add(outline)
    if (outline.index < index) continue
    if (outline.index > index) break
    const turn = query.ids ? await reader.getTurn(sessionId, outline.turnId) : outline
    if (turn === undefined) break
    return turnToWire(turn, line, marks, query.messages === 'new' ? newParts : undefined)
  }
  throw new ProxyError('turn_not_found', `The session has no turn ${index}`)
}
