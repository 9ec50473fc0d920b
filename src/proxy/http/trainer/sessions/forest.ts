/** Writes sessions as one forest of tokens, in which rows with a common prefix share its tokens, as JSON. */
import type { Static } from 'typebox'
import { ProxyError } from '../../../../base/errors.ts'
import { yieldToEventLoop } from '../../../../base/yield-to-event-loop.ts'
import { withFormerNames } from '../../../../protocol/schema/former-names.ts'
import { TOKEN_DATA_KINDS, type TokenDataKind } from '../../../../protocol/token-data/kinds.ts'
import {
  type CompletionTokens,
  Forest,
  type ForestRow,
  type PromptTokens,
} from '../../../session/trajectories/forest.ts'
import { rejectPartial } from '../../../session/trajectories/reject-partial.ts'
import { type Trajectory, TrajectoryBuilder } from '../../../session/trajectories/trajectories.ts'
import type { SessionFilter, SessionRecord, TurnReader } from '../../../store/port/turn-store.ts'
import { DetailSelection, PROMPT_KINDS, writeDetailMembers } from './details.ts'
import { openObject, writeMember, writeNumbers } from './json-stream.ts'
import type { ForestQuery } from './read-schemas.ts'
import { addFormerNames, sessionToWire } from './serialise.ts'

/** The maximum number of sessions: larger than usual groups, but limited, because all tokens are in memory. */
const MAX_SESSIONS = 128

/**
 * Returns the matching sessions, the oldest first.
 * @throws ProxyError `invalid_request` for more than {@link MAX_SESSIONS}
 */
export async function findForestSessions(
  reader: TurnReader,
  filter: SessionFilter,
): Promise<SessionRecord[]> {
  const { sessions, nextCursor } = await reader.listSessions({ ...filter, order: 'asc', limit: MAX_SESSIONS })
  if (nextCursor === undefined) return sessions
  throw new ProxyError('invalid_request', `More than ${MAX_SESSIONS} sessions match: narrow the filter`)
}

/**
 * Reads the turns of all sessions. Their details are read node by node, while the client reads the response.
 * @param onRow called with each row
 * @returns chunks of one JSON text
 * @throws ProxyError `invalid_request`; `session_not_found` for a session that was removed or reset while it was read
 */
export async function queryForest(
  reader: TurnReader,
  sessions: readonly SessionRecord[],
  {
    side_calls: sideCalls,
    rejected,
    details,
  }: Pick<Static<typeof ForestQuery>, 'side_calls' | 'rejected' | 'details'>,
  onRow: (row: Trajectory) => void = () => {},
): Promise<AsyncGenerator<string>> {
  const kinds = parseDetailKinds(details)
  const forest = new Forest()
  const shown: object[] = []
  for (const session of sessions) {
    const builder = new TrajectoryBuilder({ sideCalls, rejected })
    for await (const turn of reader.readSteps(session.sessionId)) builder.add(turn)
    await rejectPartial(reader, session)
    shown.push({ ...sessionToWire(session), excluded_turns: builder.countExcluded() })
    for (const row of builder.assembleRows({}, session.reward, session.marks)) {
      onRow(row)
      forest.add(session.sessionId, row)
      await yieldToEventLoop()
    }
  }
  const { nodes, rows } = forest.createLayout()
  const completed = new Set(
    sessions.filter(({ status }) => status === 'completed').map(({ sessionId }) => sessionId),
  )
  const isFinished = (row: ForestRow) => completed.has(row.session_id)
  const parts = { rows: writeRows(rows, isFinished), nodes: writeNodes(reader, nodes, kinds) }
  return forestToWire({ sessions: shown }, parts, async () => {
    if (kinds.length > 0) for (const session of sessions) await rejectPartial(reader, session)
  })
}

/**
 * Parses the parameter `details` of a forest; `all` selects the kinds that it can contain. It cannot contain data that
 * several turns may report for one token.
 * @throws ProxyError `invalid_request`
 */
function parseDetailKinds(details: string | undefined): readonly TokenDataKind[] {
  const { kinds } = DetailSelection.parse(details)
  if (kinds.length === TOKEN_DATA_KINDS.length) return kinds.filter((kind) => !PROMPT_KINDS.includes(kind))
  const rejected = kinds.find((kind) => PROMPT_KINDS.includes(kind))
  if (rejected === undefined) return kinds
  throw new ProxyError('invalid_request', `'${rejected}' is only available in rows: see the trajectories`, {
    param: 'details',
  })
}

/** @param rejectPartialDetails called before the end, when all details have been read */
async function* forestToWire(
  values: object,
  { rows, nodes }: { rows: Iterable<string>; nodes: AsyncIterable<string> },
  rejectPartialDetails: () => Promise<void>,
): AsyncGenerator<string> {
  yield `${openObject(values)},"rows":[`
  yield* rows
  yield '],"nodes":['
  yield* nodes
  await rejectPartialDetails()
  yield ']}'
}

function* writeRows(rows: Iterable<ForestRow>, isFinished: (row: ForestRow) => boolean): Generator<string> {
  let separator = ''
  for (const row of rows) {
    yield separator + JSON.stringify(addFormerNames({ ...row, finished: isFinished(row) }))
    separator = ','
  }
}

async function* writeNodes(
  reader: TurnReader,
  nodes: readonly (PromptTokens | CompletionTokens)[],
  kinds: readonly TokenDataKind[],
): AsyncGenerator<string> {
  let separator = ''
  for (const node of nodes) {
    const isSampled = 'turn' in node
    const { parent } = node
    yield separator +
      openObject(
        isSampled ? { parent, session_id: node.sessionId, ...withFormerNames(node.turn) } : { parent },
      )
    yield* writeMember('ids', writeNumbers(node.ids))
    if (isSampled) {
      yield* writeMember('logprobs', writeNumbers(node.logprobs))
      yield* writeNodeDetails(reader, node, kinds)
    }
    yield '}'
    separator = ','
  }
}

/** Yields the details of a sampled node. A node that no row trains has none. */
function writeNodeDetails(
  reader: TurnReader,
  { sessionId, turn, ids }: CompletionTokens,
  kinds: readonly TokenDataKind[],
): AsyncGenerator<string> {
  const { length } = ids
  const placed = {
    turnId: turn.turn_id,
    promptLength: 0,
    completionLength: length,
    start: 0,
    end: turn.trained ? length : 0,
    weightVersionStart: turn.weight_version_start,
    weightVersionEnd: turn.weight_version_end,
  }
  const layout = { turns: [placed], first: 0, base: 0, responseLength: length }
  return writeDetailMembers(reader, sessionId, () => layout, kinds)
}
