/** `llm-proxy sessions import`: sessions of one record put into another one, such as SQLite's into PostgreSQL's. */
import { ProxyError } from '../../base/errors.ts'
import { DETAIL_KINDS } from '../../protocol/details/kinds.ts'
import { PromptIds } from '../../protocol/token-ids/prompt-ids.ts'
import type { SessionsImportConfig } from '../../proxy/config/options/sessions.ts'
import { everySession } from '../../proxy/store/port/every-session.ts'
import { isUnmarked } from '../../proxy/store/port/marks.ts'
import type { SessionRecord, TurnReader, TurnStep, TurnStore } from '../../proxy/store/port/turn-store.ts'
import { databaseName, isPostgresUrl, openPostgresStore } from '../../proxy/store/postgres/open.ts'
import { openSqliteStore } from '../../proxy/store/sqlite/open.ts'
import { openRecord } from '../open-record.ts'

/** @param args the record to read. @returns the exit code */
export async function run({ db, durability }: SessionsImportConfig, args: string[]): Promise<number> {
  const [from] = args as [string]
  if (from === db)
    throw new ProxyError('config_invalid', '--db names the record that is to be read: name another one')
  const reader = await openRecord(from)
  try {
    const open = () =>
      isPostgresUrl(db)
        ? openPostgresStore({ url: db, durability })
        : openSqliteStore({ path: db, durability })
    const store = await open()
    const counts = await importAll(reader, store).finally(() => store.close())
    // Whoever opens a record marks what was in flight as interrupted.
    await (await open()).close()
    const { sessions, turns, known } = counts
    const left = known > 0 ? `; ${known} sessions were there already, and are as they were` : ''
    process.stdout.write(`${databaseName(db)} has ${sessions} more sessions, with ${turns} turns${left}\n`)
    return 0
  } finally {
    await reader.close()
  }
}

/** The oldest first, so that lists have the order that they had. */
async function importAll(reader: TurnReader, store: TurnStore) {
  const counts = { sessions: 0, turns: 0, known: 0 }
  for await (const session of everySession(reader, { order: 'asc' })) {
    const turns = await importSession(reader, store, session)
    if (turns === undefined) counts.known += 1
    else counts.sessions += 1
    counts.turns += turns ?? 0
  }
  return counts
}

/** @returns how many turns it has; undefined: it is there already, and stays as it is */
async function importSession(
  reader: TurnReader,
  store: TurnStore,
  session: SessionRecord,
): Promise<number | undefined> {
  const { sessionId, status, endedAtMs, updatedAtMs, reward, marks } = session
  const known = await store.getSession(sessionId)
  if (known && !isBehind(known, session)) return undefined
  if (known) await store.deleteSession(sessionId)
  // Earlier releases stored fractions of a millisecond in SQLite.
  const ttlMs = session.ttlMs === null ? null : Math.max(1, Math.round(session.ttlMs))
  await store.createSession({ ...session, ttlMs })
  try {
    let turns = 0
    const prompts = new Map<string, PromptIds>()
    for await (const step of reader.readSteps(sessionId)) {
      await importTurn(reader, store, step, prompts)
      turns += 1
    }
    if (status !== 'active') await store.endSession(sessionId, status, endedAtMs ?? updatedAtMs)
    if (!isUnmarked(marks)) await store.changeMarks(sessionId, marks, updatedAtMs)
    if (reward !== null) await store.setReward(sessionId, reward, updatedAtMs)
    return turns
  } catch (error) {
    // Half of a session would be taken for all of it, by the next import too.
    await store.deleteSession(sessionId).catch(() => {})
    throw error
  }
}

/** Whether an import was killed before it had all of the session. */
function isBehind(known: SessionRecord, whole: SessionRecord): boolean {
  return (
    known.turnCount < whole.turnCount ||
    known.sampledTokens < whole.sampledTokens ||
    (known.status === 'active' && whole.status !== 'active') ||
    (known.reward === null && whole.reward !== null) ||
    (isUnmarked(known.marks) && !isUnmarked(whole.marks))
  )
}

async function importTurn(
  reader: TurnReader,
  store: TurnStore,
  { promptStep: { base, shared, rest }, status, endedAtMs, ...turn }: TurnStep,
  prompts: Map<string, PromptIds>,
): Promise<void> {
  const { sessionId, turnId } = turn
  // A copy of what was sampled: arrays are handed over to the store.
  const prompt = new PromptIds(rest, base === null ? undefined : prompts.get(base), shared)
  prompt.completion = turn.completionTokenIds.slice()
  prompts.set(turnId, prompt)
  const opened = store.openTurn(turn)
  if (status === 'open' || status === 'interrupted') return opened
  const details = (await reader.readDetails(sessionId, [turnId], DETAIL_KINDS)).get(turnId) ?? []
  await store.closeTurn({ ...turn, status, endedAtMs: endedAtMs!, promptTokenIds: prompt, details })
}
