/**
 * Computes statistics of the turns of groups of sessions. Only the latest sessions of each group are read, because all
 * turns of a long run are too many.
 */
import { isCutOff } from '../../../../protocol/canonical/completion.ts'
import { TrajectoryBuilder } from '../../../session/trajectories/trajectories.ts'
import { listEverySession } from '../../../store/port/every-session.ts'
import { getGroupValue } from '../../../store/port/session-summary.ts'
import type { SessionFilter, SessionGroup, TurnReader } from '../../../store/port/turn-store.ts'

/** The maximum number of sessions of one group that are read. */
const MAX_SESSIONS = 16
/** The maximum number of sessions of all groups together that are read. */
const MAX_ALL_SESSIONS = 2_000

/** The statistics of one group. */
interface TurnFigures {
  /** The number of sessions that were read. */
  sessions: number
  rows: number
  turns: number
  /** The number of turns that were truncated. */
  truncated: number
  /** The sampled tokens by weight version, for turns whose version is a number. */
  versions: Map<number, number>
}

/** Returns the statistics by value of the group. Groups without a recent session may be missing. */
export async function readTurnFigures(
  reader: TurnReader,
  by: string,
  filter: SessionFilter,
): Promise<Map<SessionGroup['value'], TurnFigures>> {
  const groups = new Map<SessionGroup['value'], TurnFigures>()
  let sessionCount = 0
  for await (const session of listEverySession(reader, filter)) {
    const value = getGroupValue(session, by)
    if (value === undefined) continue
    const figures = groups.get(value) ?? { ...NONE, versions: new Map() }
    groups.set(value, figures)
    if (figures.sessions >= MAX_SESSIONS) continue
    await addSession(reader, session.sessionId, figures)
    sessionCount += 1
    if (sessionCount >= MAX_ALL_SESSIONS) break
  }
  return groups
}

const NONE = { sessions: 0, rows: 0, turns: 0, truncated: 0 }

async function addSession(reader: TurnReader, sessionId: string, figures: TurnFigures): Promise<void> {
  const rows = new TrajectoryBuilder()
  const turnIds: string[] = []
  for await (const step of reader.readSteps(sessionId)) {
    rows.add(step)
    turnIds.push(step.turnId)
    figures.turns += 1
    if (isCutOff(step.finishReason)) figures.truncated += 1
    const version = step.weightVersionStart === null ? Number.NaN : Number(step.weightVersionStart)
    const sampled = step.completionTokenIds.length
    if (Number.isFinite(version) && sampled > 0)
      figures.versions.set(version, (figures.versions.get(version) ?? 0) + sampled)
  }
  const excluded = rows.listExclusions()
  const inRows = turnIds.filter((turnId) => !excluded.has(turnId))
  // A turn that another one continues is not the last of a row.
  const parents = new Set(inRows.map((turnId) => rows.getParent(turnId)?.turnId))
  figures.rows += inRows.filter((turnId) => !parents.has(turnId)).length
  figures.sessions += 1
}

/**
 * Returns the mean difference between the highest weight version of a group and the versions of its sampled tokens;
 * null if no version is a number.
 */
function computeStaleness(versions: ReadonlyMap<number, number>): number | null {
  if (versions.size === 0) return null
  const newest = [...versions.keys()].reduce((a, b) => Math.max(a, b))
  let [behind, tokens] = [0, 0]
  for (const [version, count] of versions) {
    behind += (newest - version) * count
    tokens += count
  }
  return behind / tokens
}

export function turnFiguresToWire({ versions, ...figures }: TurnFigures) {
  return { ...figures, staleness: computeStaleness(versions) }
}
