/**
 * Imports sessions. The destination takes precedence: an existing session is replaced only if its content is a prefix
 * of the source's, as after an interrupted import.
 */
import { TOKEN_DATA_KINDS } from '../../protocol/token-data/kinds.ts'
import { PromptIds } from '../../protocol/token-ids/prompt-ids.ts'
import { readSamplingParams } from '../../proxy/session/state/turn-allocation.ts'
import type { ConsumerReader } from '../../proxy/store/port/consumers.ts'
import { listEverySession } from '../../proxy/store/port/every-session.ts'
import { createNoMarks, isUnmarked } from '../../proxy/store/port/marks.ts'
import type { SessionRecord, TurnReader, TurnStep, TurnStore } from '../../proxy/store/port/turn-store.ts'

type ImportSource = TurnReader & ConsumerReader

export interface ImportCounts {
  /** New sessions and their turns. */
  sessions: number
  turns: number
  /** Sessions that were incomplete and are now complete. */
  completed: number
  /** Sessions of the destination that were not changed. */
  kept: number
  /** Sessions that were deleted at the destination after an import. */
  deleted: number
  /** The ids of kept sessions that lack turns of the source, or are other sessions of the same name. */
  different: string[]
}

/**
 * Imports the sessions, oldest first, so that lists keep their order.
 * @param consumers names of the consumers whose acknowledgements are imported
 */
export async function importSessions(
  reader: ImportSource,
  store: TurnStore,
  consumers: ReadonlySet<string>,
): Promise<ImportCounts> {
  const counts: ImportCounts = { sessions: 0, turns: 0, completed: 0, kept: 0, deleted: 0, different: [] }
  for await (const session of listEverySession(reader, { order: 'asc' }))
    await importSession(reader, store, session, { counts, consumers })
  return counts
}

interface ImportProgress {
  counts: ImportCounts
  consumers: ReadonlySet<string>
}

async function importSession(
  reader: ImportSource,
  store: TurnStore,
  session: SessionRecord,
  { counts, consumers }: ImportProgress,
): Promise<void> {
  const { sessionId, createdAtMs } = session
  const item = { kind: 'session', name: sessionId, createdAtMs } as const
  const wasImported = await store.wasImported(item)
  const known = await store.getSession(sessionId)
  const found = known === undefined ? 'absent' : await compareWithStored(reader, store, session, known)
  if (found === 'absent' && wasImported) {
    counts.deleted += 1
    return
  }
  if (found === 'absent') {
    counts.turns += await copySession(reader, store, session)
    counts.sessions += 1
  } else if (found === 'beginning') {
    // If the import is interrupted after the deletion, the next one must not attribute the deletion to a user.
    await store.setImported(item, false)
    await store.deleteSession(sessionId)
    await copySession(reader, store, session)
    counts.completed += 1
  } else if (found === 'equal' && lacksEnding(session, known!, wasImported)) {
    await addEnding(store, session, known!)
    counts.completed += 1
  } else {
    counts.kept += 1
    if (found === 'different' || found === 'other') counts.different.push(sessionId)
    if (found === 'other') return
  }
  if (found !== 'different') await importSessionStates(reader, store, sessionId, consumers)
  await store.setImported(item, true)
}

/** Imports the acknowledgements of a session. */
async function importSessionStates(
  reader: ImportSource,
  store: TurnStore,
  sessionId: string,
  consumers: ReadonlySet<string>,
): Promise<void> {
  const states = (await reader.listSessionStates(sessionId)).filter(({ consumer }) => consumers.has(consumer))
  if (states.length > 0) await store.putSessionStates(sessionId, states)
}

/**
 * The result of comparing a session of the source with that of the destination. `beginning`: the destination has some
 * of the source's turns, and nothing else. `equal`: it has the same turns. `longer`: it has more. `different`: the
 * source has turns that it lacks. `other`: it is another session of the same name.
 */
type ComparisonResult = 'beginning' | 'equal' | 'longer' | 'different' | 'other'

async function compareWithStored(
  reader: ImportSource,
  store: TurnStore,
  source: SessionRecord,
  known: SessionRecord,
): Promise<ComparisonResult> {
  if (known.createdAtMs !== source.createdAtMs) return 'other'
  if (hasEqualEnd(known, source)) return 'equal'
  const isActive = known.status === 'active'
  // A session without turns was created just before an import was interrupted, or was reset since.
  if (isActive && known.turnCount === 0 && known.updatedAtMs !== known.createdAtMs)
    return source.turnCount === 0 ? 'longer' : 'different'
  const [theirs, ours] = [await readTurnIds(store, source), await readTurnIds(reader, source)]
  if (!theirs.slice(0, ours.length).every((turnId, index) => turnId === ours[index])) return 'different'
  if (theirs.length > ours.length) return 'longer'
  // A turn that was open when an import was interrupted has no tokens.
  if (theirs.length === ours.length && known.sampledTokens >= source.sampledTokens) return 'equal'
  return isActive && known.reward === null && isUnmarked(known.marks) ? 'beginning' : 'different'
}

/** Returns whether the destination lacks the end, the reward or the marks. Only an interrupted import omits marks. */
function lacksEnding(source: SessionRecord, known: SessionRecord, wasImported: boolean): boolean {
  const lacksEnd = known.status === 'active' && source.status !== 'active'
  const lacksReward = known.reward === null && source.reward !== null
  return lacksEnd || lacksReward || (!wasImported && isUnmarked(known.marks) && !isUnmarked(source.marks))
}

/** Returns whether both sessions ended at the same time with equal counts: a session that was reset ends later. */
function hasEqualEnd(known: SessionRecord, source: SessionRecord): boolean {
  return (
    known.status !== 'active' &&
    known.endedAtMs === source.endedAtMs &&
    known.turnCount === source.turnCount &&
    known.sampledTokens === source.sampledTokens
  )
}

async function readTurnIds(reader: TurnReader, { sessionId }: SessionRecord): Promise<string[]> {
  const ids: string[] = []
  for await (const { turnId } of reader.readOutlines(sessionId)) ids.push(turnId)
  return ids
}

/** Copies a session that the destination does not have. @returns the number of its turns */
async function copySession(reader: ImportSource, store: TurnStore, session: SessionRecord): Promise<number> {
  const { sessionId } = session
  await store.createSession({ ...session, samplingParams: readSamplingParams(session) })
  let turns = 0
  const prompts = new Map<string, PromptIds>()
  for await (const step of reader.readSteps(sessionId)) {
    await copyTurn(reader, store, step, prompts)
    turns += 1
  }
  await addEnding(store, session, { status: 'active', reward: null, marks: createNoMarks() })
  return turns
}

/** Adds the end, the marks and the reward that the destination lacks. */
async function addEnding(
  store: TurnStore,
  { sessionId, status, endedAtMs, updatedAtMs, reward, marks }: SessionRecord,
  known: Pick<SessionRecord, 'status' | 'reward' | 'marks'>,
): Promise<void> {
  if (status !== 'active' && known.status === 'active')
    await store.endSession(sessionId, status, endedAtMs ?? updatedAtMs)
  if (!isUnmarked(marks) && isUnmarked(known.marks)) await store.changeMarks(sessionId, marks, updatedAtMs)
  if (reward !== null && known.reward === null) await store.setReward(sessionId, reward, updatedAtMs)
}

async function copyTurn(
  reader: TurnReader,
  store: TurnStore,
  { promptStep: { base, shared, rest }, status, endedAtMs, ...turn }: TurnStep,
  prompts: Map<string, PromptIds>,
): Promise<void> {
  const { sessionId, turnId } = turn
  // The ids are copied, because the store takes ownership of arrays.
  const prompt = new PromptIds(rest, base === null ? undefined : prompts.get(base), shared)
  prompt.completion = turn.completionTokenIds.slice()
  prompts.set(turnId, prompt)
  const opened = store.openTurn(turn)
  if (status === 'open' || status === 'interrupted') return opened
  const details = (await reader.readDetails(sessionId, [turnId], TOKEN_DATA_KINDS)).get(turnId) ?? []
  await store.closeTurn({ ...turn, status, endedAtMs: endedAtMs!, promptTokenIds: prompt, details })
}
