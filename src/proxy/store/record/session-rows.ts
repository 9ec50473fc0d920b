/** Rows of `sessions` as both adapters have them, and the records that they are. */

import { isUnmarked, noMarks, type SessionMarks } from '../port/marks.ts'
import {
  decodeCursor,
  encodeCursor,
  type FilteredSession,
  firstPosition,
  lastValue,
  matchesFilter,
  orderOf,
  sortValue,
} from '../port/session-list.ts'
import { type CountedSession, type Tallies, tallySessions } from '../port/session-summary.ts'
import type {
  EditedCalls,
  Reward,
  SessionFilter,
  SessionPage,
  SessionQuery,
  SessionRecord,
  SessionStatus,
} from '../port/turn-store.ts'
import { checkSum, rewardSummed, sumOf } from './check-sums.ts'

/** Of a list or a count of sessions, what is looked at before others have their turn: some milliseconds' work. */
export const SESSIONS_AT_ONCE = 2_000

export interface SessionRow {
  id: number
  tree: number
  session_id: string
  status: SessionStatus
  created_at_ms: number
  updated_at_ms: number
  ended_at_ms: number | null
  ttl_ms: number | null
  metadata: string
  sampling_params: string
  trust_agent: number
  record: string | null
  policies: string
  edited_calls: EditedCalls | null
  limits: string | null
  key_tag: string | null
  reward: number | null
  reward_components: string | null
  reward_lines: string | null
  reward_turns: string | null
  reward_sum: number | null
  marks: string | null
  turn_count: number
  next_index: number
  open_turns: number
  failed_turns: number
  inexact_turns: number
  sampled_tokens: number
}

/** Whose a session is, of a record that several proxies share. */
export interface OwnedRow {
  /** The lease of a proxy; 0: nobody's. */
  owner: number
  /** Of turns of an earlier epoch nothing is put on record any more. */
  epoch: number
}

/** A new session with its objects as JSON text. */
export interface NewSessionRow {
  sessionId: string
  createdAtMs: number
  ttlMs: number | null
  metadata: string
  samplingParams: string
  trustAgent: boolean
  /** JSON text. */
  record: string | null
  policies: string
  editedCalls: EditedCalls | null
  /** JSON text. */
  limits: string | null
  keyTag: string | null
  /** Of a record that several proxies share: it is to be its creator's own. */
  isOwn: boolean
}

/** What SQL can tell before a row's JSON is read. */
interface RowFilter {
  status: SessionStatus | null
  rewardMin: number | null
  rewardMax: number | null
  inexact: number | null
  failed: number | null
  idPrefix: string | null
}

function rowFilter({ status, rewardMin, rewardMax, inexact, failed, idPrefix }: SessionFilter): RowFilter {
  const asBit = (flag: boolean | undefined) => (flag === undefined ? null : Number(flag))
  return {
    status: status ?? null,
    rewardMin: rewardMin ?? null,
    rewardMax: rewardMax ?? null,
    inexact: asBit(inexact),
    failed: asBit(failed),
    idPrefix: idPrefix ?? null,
  }
}

/** A part of a list: sessions that were looked at in one go. */
export interface ListPart extends SessionPage {
  /** The cursor of where to look on; absent: the page is complete. */
  lookOnFrom?: string
}

/** A part of what is counted. */
export interface TallyPart {
  tallies: Tallies
  /** The row to count on after; absent: it was the last one. */
  countOnAfter?: number
}

/** What is read of a session that is counted. */
export const TALLIED_COLUMNS = [
  ...['id', 'session_id', 'status', 'created_at_ms', 'updated_at_ms', 'metadata', 'marks'],
  ...['reward', 'reward_components', 'turn_count', 'failed_turns', 'inexact_turns', 'sampled_tokens'],
] as const

export type TalliedRow = Pick<SessionRow, (typeof TALLIED_COLUMNS)[number]>

/** How a change of turns changes what the session counts. */
export interface TurnChange {
  newTurns?: number
  openTurns?: number
  failedTurns?: number
  inexactTurns?: number
  sampledTokens?: number
}

export const NO_CHANGE: Required<TurnChange> = {
  newTurns: 0,
  openTurns: 0,
  failedTurns: 0,
  inexactTurns: 0,
  sampledTokens: 0,
}

/** Its metadata, marks and parts of the reward are parsed only if somebody asks for them. */
function toCounted(row: TalliedRow): CountedSession & FilteredSession {
  return {
    sessionId: row.session_id,
    status: row.status,
    createdAtMs: row.created_at_ms,
    updatedAtMs: row.updated_at_ms,
    get metadata() {
      return JSON.parse(row.metadata)
    },
    get marks() {
      return marksOf(row)
    },
    reward:
      row.reward === null
        ? null
        : {
            reward: row.reward,
            get components() {
              return JSON.parse(row.reward_components ?? '{}')
            },
          },
    turnCount: row.turn_count,
    failedTurns: row.failed_turns,
    inexactTurns: row.inexact_turns,
    sampledTokens: row.sampled_tokens,
  }
}

function marksOf({ marks }: Pick<SessionRow, 'marks'>): SessionMarks {
  return marks === null ? noMarks() : JSON.parse(marks)
}

/** The column of marks: NULL where there are none. */
export function marksColumn(marks: SessionMarks): string | null {
  return isUnmarked(marks) ? null : JSON.stringify(marks)
}

export function toRecord(row: SessionRow): SessionRecord {
  return {
    sessionId: row.session_id,
    status: row.status,
    createdAtMs: row.created_at_ms,
    updatedAtMs: row.updated_at_ms,
    endedAtMs: row.ended_at_ms,
    ttlMs: row.ttl_ms,
    metadata: JSON.parse(row.metadata),
    samplingParams: JSON.parse(row.sampling_params),
    trustAgent: row.trust_agent === 1,
    record: row.record === null ? null : JSON.parse(row.record),
    policies: JSON.parse(row.policies),
    editedCalls: row.edited_calls,
    limits: row.limits === null ? null : JSON.parse(row.limits),
    keyTag: row.key_tag,
    reward:
      row.reward === null
        ? null
        : {
            reward: row.reward,
            components: JSON.parse(row.reward_components ?? '{}'),
            ...(row.reward_lines !== null && { lines: JSON.parse(row.reward_lines) }),
            ...(row.reward_turns !== null && { turns: JSON.parse(row.reward_turns) }),
          },
    marks: marksOf(row),
    turnCount: row.turn_count,
    nextIndex: row.next_index,
    openTurns: row.open_turns,
    failedTurns: row.failed_turns,
    inexactTurns: row.inexact_turns,
    sampledTokens: row.sampled_tokens,
  }
}

/** @throws ProxyError `data_damaged` */
export function checkReward(row: SessionRow): void {
  checkSum(row, rewardSummed(row), { sum: row.reward_sum, what: `The reward of session ${row.session_id}` })
}

/** The columns of a reward. */
export function rewardColumns(sessionId: string, { reward, components, lines, turns }: Reward) {
  const columns = {
    reward,
    reward_components: JSON.stringify(components),
    reward_lines: lines ? JSON.stringify(lines) : null,
    reward_turns: turns ? JSON.stringify(turns) : null,
  }
  const row = { session_id: sessionId, ...columns }
  return { ...columns, reward_sum: sumOf(row, rewardSummed(row)) }
}

export type ListParameters = RowFilter & { value: number; key: number; none?: number }

/** Where a list goes on, and what SQL can tell of its filter. */
export function listParameters(query: SessionQuery): ListParameters {
  const order = orderOf(query)
  const after = query.cursor === undefined ? firstPosition(order) : decodeCursor(query.cursor, order)
  const none = order.sort === 'reward' ? { none: lastValue(order.order) } : {}
  return { ...rowFilter(query), ...after, ...none }
}

/**
 * @param rows in the query's order, from where its cursor is
 * @param most rows that are looked at
 */
export function listPart(rows: Iterable<SessionRow>, query: SessionQuery, most: number): ListPart {
  const order = orderOf(query)
  const page: ListPart = { sessions: [] }
  let looked = 0
  let last = firstPosition(order)
  const cursorThere = () => (looked === 0 ? query.cursor! : encodeCursor(last, order))
  for (const row of rows) {
    const session = toRecord(row)
    const matches = matchesFilter(session, query)
    if (matches && page.sessions.length >= query.limit) {
      page.nextCursor = cursorThere()
      break
    }
    if (matches) page.sessions.push(session)
    last = { value: sortValue(session, order), key: row.id }
    looked += 1
    if (looked < most) continue
    page.lookOnFrom = cursorThere()
    break
  }
  return page
}

/** @param rows the next ones, at most {@link SESSIONS_AT_ONCE} */
export function tallyPart(
  rows: readonly TalliedRow[],
  filter: SessionFilter,
  by: string | undefined,
): TallyPart {
  const sessions = rows.map(toCounted).filter((session) => matchesFilter(session, filter))
  const tallies = tallySessions(sessions, by)
  return rows.length < SESSIONS_AT_ONCE ? { tallies } : { tallies, countOnAfter: rows.at(-1)!.id }
}
