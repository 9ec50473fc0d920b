/** Reads the trajectories of a session that a query selects. */
import type { Static } from 'typebox'
import { getMessagesBetween, type Message } from '../../../../protocol/canonical/conversation.ts'
import { computeImageDigest, getImageUrls, splitDataUrl } from '../../../../protocol/canonical/images.ts'
import { readSamplingParams } from '../../../session/state/turn-allocation.ts'
import { rejectPartial } from '../../../session/trajectories/reject-partial.ts'
import {
  type RowWithLayout,
  type Trajectory,
  TrajectoryBuilder,
  type TrajectoryOptions,
  type TurnSelection,
} from '../../../session/trajectories/trajectories.ts'
import { readSampling, type TurnSampling } from '../../../session/turn/sampling.ts'
import type { SessionRecord, TurnReader, TurnStep } from '../../../store/port/turn-store.ts'
import { DetailSelection, writeDetailMembers } from './details.ts'
import type { TrajectoriesQuery } from './schemas.ts'
import { type RowView, writeSessionWithTrajectories } from './serialise.ts'

export type TrajectoryQuery = Static<typeof TrajectoriesQuery>

/** A session whose turns have been read. */
export interface SessionTrajectories {
  /** Yields the rows. Each is assembled when it is iterated. */
  readRows(): Iterable<RowWithLayout>
  /**
   * Yields the response as chunks of one JSON text. Details are read row by row, while the client reads the response.
   * @param onRow called with each row
   * @param more further fields of the session
   * @throws ProxyError `session_not_found` at the end, if the session was removed or reset while details were read
   */
  toWire(onRow?: (row: Trajectory) => void, more?: Record<string, unknown>): AsyncGenerator<string>
}

/**
 * Reads the turns of a session.
 * @throws ProxyError `invalid_request`; `session_not_found` for a session that was removed or reset while it was read
 */
export async function readTrajectories(
  reader: Pick<TurnReader, 'getSession' | 'readSteps' | 'readDetails'>,
  session: SessionRecord,
  query: TrajectoryQuery,
): Promise<SessionTrajectories> {
  const choice = DetailSelection.parse(query.details)
  const { sessionId } = session
  const builder = new TrajectoryBuilder(toTurnSelection(query))
  const samplings = new Map<string, TurnSampling>()
  const images = query.images ? new ImageUrls() : undefined
  for await (const turn of reader.readSteps(sessionId)) {
    const { images: added } = builder.add(turn)
    if (added.length > 0) images?.add(turn)
    if (choice.sampling) samplings.set(turn.turnId, readSampling(turn, readSamplingParams(session)))
  }
  await rejectPartial(reader, session)
  const isLeftOut = query.finished_only && session.status !== 'completed'
  const rows = () =>
    isLeftOut ? [] : builder.locateRows(toTrajectoryOptions(query), session.reward, session.marks)
  async function* show(onRow: (row: Trajectory) => void): AsyncGenerator<RowView> {
    for (const { row, computeLayout: layout } of rows()) {
      onRow(row)
      const details = writeDetailMembers(reader, sessionId, layout, choice.kinds)
      yield { row, details, sampling: (turnId) => samplings.get(turnId) }
    }
    if (choice.kinds.length > 0) await rejectPartial(reader, session)
  }
  return {
    readRows: rows,
    toWire: (onRow = () => {}, more = {}) =>
      writeSessionWithTrajectories(session, builder.countExcluded(), show(onRow), {
        ...more,
        images: images?.byDigest,
      }),
  }
}

/** Yields the rows unchanged, after calling `onRow` with each one. */
export function* reportRows(
  rows: Iterable<Trajectory>,
  onRow: (row: Trajectory) => void,
): Generator<Trajectory> {
  for (const row of rows) {
    onRow(row)
    yield row
  }
}

/** The images of a session's turns, as `data:` URLs by SHA-256. */
class ImageUrls {
  readonly byDigest = new Map<string, string>()
  readonly #read = new Set<Message>()

  /** Adds the images of a turn. Each message is parsed once, because all later turns repeat it. */
  add({ lastMessage }: Pick<TurnStep, 'lastMessage'>): void {
    for (const message of getMessagesBetween(undefined, lastMessage, (message) => this.#read.has(message))) {
      this.#read.add(message)
      const { json } = message
      if (!json.includes('"image_url"')) continue
      for (const url of getImageUrls([JSON.parse(json)])) {
        const data = splitDataUrl(url)
        if (data) this.byDigest.set(computeImageDigest(Buffer.from(data.base64, 'base64')), url)
      }
    }
  }
}

export function toTurnSelection({
  select,
  side_calls: sideCalls,
  rejected,
}: Pick<TrajectoryQuery, 'select' | 'side_calls' | 'rejected'>): TurnSelection {
  return { lines: select === 'main' ? 'main' : 'all', sideCalls, rejected }
}

function toTrajectoryOptions(query: TrajectoryQuery): TrajectoryOptions {
  const { prompt_length: promptLength, response_length: responseLength, select } = query
  const { per_turn: perTurn, mask_stale_tokens: maskStaleTokens } = query
  return { ...parseSelect(select), perTurn, promptLength, responseLength, maskStaleTokens }
}

const POLICY = 'policy:'

/** Returns the row options of the parameter `select`; {@link toTurnSelection} applies `main`. */
export function parseSelect(select: string): Pick<TrajectoryOptions, 'select' | 'policy'> {
  if (select.startsWith(POLICY)) return { select: 'all', policy: select.slice(POLICY.length) }
  return { select: select === 'longest' || select === 'last' ? select : 'all' }
}
