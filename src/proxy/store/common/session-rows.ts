/** Rows of `sessions` of both adapters, and their conversions. */

import { createNoMarks, isUnmarked, type SessionMarks } from '../port/marks.ts'
import {
  decodeCursor,
  encodeCursor,
  getFirstPosition,
  getLastValue,
  getOrder,
  getSortValue,
  matchesFilter,
  type SessionFilterFields,
} from '../port/session-list.ts'
import { type AggregateMap, aggregateSessions, type SessionAggregateFields } from '../port/session-summary.ts'
import type {
  NewSession,
  Reward,
  SessionFilter,
  SessionPage,
  SessionQuery,
  SessionRecord,
  SessionStatus,
  ToolCallRewritePolicy,
} from '../port/turn-store.ts'
import { checkSum, computeSum, listRewardColumns } from './check-sums.ts'

/** The number of sessions that are listed or aggregated before other reads are served: some milliseconds of work. */
export const SESSIONS_AT_ONCE = 2_000

/** A row of `sessions`, with the next turn index. */
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
  edited_calls: ToolCallRewritePolicy | null
  continue_responses: number | null
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

/** The ownership columns of a session in a database that several nodes share. */
export interface OwnershipRow {
  /** The lease of the owner node; 0: none. */
  owner: number
  /** The epoch of the ownership; turns of an earlier epoch are rejected. */
  epoch: number
}

/** The columns of a session in both databases. */
export const SESSION_COLUMNS = [
  ...['id', 'session_id', 'tree', 'status', 'created_at_ms', 'updated_at_ms', 'ended_at_ms', 'ttl_ms'],
  ...['metadata', 'sampling_params', 'trust_agent', 'record', 'policies', 'edited_calls', 'key_tag'],
  ...['limits', 'reward', 'reward_components', 'reward_lines', 'reward_turns', 'reward_sum', 'marks'],
  ...['turn_count', 'open_turns', 'failed_turns', 'inexact_turns', 'sampled_tokens'],
  'continue_responses',
] as const satisfies readonly (keyof SessionRow)[]

/** The column values of a new or reset session, before its first turn. */
export const NO_TURNS = {
  status: 'active' as SessionStatus,
  ended_at_ms: null,
  reward: null,
  reward_components: null,
  reward_lines: null,
  reward_turns: null,
  reward_sum: null,
  marks: null,
  turn_count: 0,
  next_index: 0,
  open_turns: 0,
  failed_turns: 0,
  inexact_turns: 0,
  sampled_tokens: 0,
}

/** The columns of a new session that its creation determines. */
export interface NewSessionRow
  extends Omit<SessionRow, keyof typeof NO_TURNS | 'id' | 'tree' | 'updated_at_ms'> {
  /** Shared databases: whether the node that creates the session becomes its owner. */
  isOwn: boolean
}

export function toNewRow(session: NewSession): NewSessionRow {
  const { record, continueResponses, limits, ttlMs } = session
  return {
    session_id: session.sessionId,
    created_at_ms: session.createdAtMs,
    // PostgreSQL stores integer milliseconds; 0 would expire immediately.
    ttl_ms: ttlMs === null ? null : Math.max(1, Math.round(ttlMs)),
    metadata: JSON.stringify(session.metadata),
    sampling_params: JSON.stringify(session.samplingParams),
    trust_agent: Number(session.trustAgent),
    record: record ? JSON.stringify(record) : null,
    policies: JSON.stringify(session.policies ?? {}),
    edited_calls: session.editedCalls ?? null,
    continue_responses: continueResponses == null ? null : Number(continueResponses),
    limits: limits ? JSON.stringify(limits) : null,
    key_tag: session.keyTag ?? null,
    isOwn: session.isOwn ?? false,
  }
}

/** The part of a filter that SQL evaluates before a row's JSON is parsed. */
interface RowFilter {
  status: SessionStatus | null
  rewardMin: number | null
  rewardMax: number | null
  inexact: number | null
  failed: number | null
  idPrefix: string | null
}

function createRowFilter({
  status,
  rewardMin,
  rewardMax,
  inexact,
  failed,
  idPrefix,
}: SessionFilter): RowFilter {
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

/** The result of examining one batch of sessions for a list. */
export interface ListPart extends SessionPage {
  /** The cursor at which to continue; absent: the page is complete. */
  continueFrom?: string
}

/** The aggregate of one batch of sessions. */
export interface AggregatePart {
  tallies: AggregateMap
  /** The row id after which to continue; absent: this is the last batch. */
  continueAfter?: number
}

/** The columns that aggregates read. */
export const AGGREGATE_COLUMNS = [
  ...['id', 'session_id', 'status', 'created_at_ms', 'updated_at_ms', 'metadata', 'marks'],
  ...['reward', 'reward_components', 'turn_count', 'failed_turns', 'inexact_turns', 'sampled_tokens'],
] as const

export type AggregateRow = Pick<SessionRow, (typeof AGGREGATE_COLUMNS)[number]>

/** The change of a session's counters that a change of its turns causes. */
export interface SessionCounterChange {
  newTurns?: number
  openTurns?: number
  failedTurns?: number
  inexactTurns?: number
  sampledTokens?: number
}

export const NO_CHANGE: Required<SessionCounterChange> = {
  newTurns: 0,
  openTurns: 0,
  failedTurns: 0,
  inexactTurns: 0,
  sampledTokens: 0,
}

/** Converts a row. Its metadata, marks and reward components are parsed only on access. */
function toAggregateFields(row: AggregateRow): SessionAggregateFields & SessionFilterFields {
  return {
    sessionId: row.session_id,
    status: row.status,
    createdAtMs: row.created_at_ms,
    updatedAtMs: row.updated_at_ms,
    get metadata() {
      return JSON.parse(row.metadata)
    },
    get marks() {
      return readMarks(row)
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

function readMarks({ marks }: Pick<SessionRow, 'marks'>): SessionMarks {
  return marks === null ? createNoMarks() : JSON.parse(marks)
}

/** Returns the value of the `marks` column: NULL if there are none. */
export function formatMarksColumn(marks: SessionMarks): string | null {
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
    samplingParams: row.sampling_params,
    trustAgent: row.trust_agent === 1,
    record: row.record === null ? null : JSON.parse(row.record),
    policies: JSON.parse(row.policies),
    editedCalls: row.edited_calls,
    continueResponses: row.continue_responses === null ? null : row.continue_responses === 1,
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
    marks: readMarks(row),
    turnCount: row.turn_count,
    nextIndex: row.next_index,
    openTurns: row.open_turns,
    failedTurns: row.failed_turns,
    inexactTurns: row.inexact_turns,
    sampledTokens: row.sampled_tokens,
  }
}

/** Verifies the checksum of a reward. @throws ProxyError `data_damaged` */
export function checkReward(row: SessionRow): void {
  checkSum(row, listRewardColumns(row), {
    sum: row.reward_sum,
    what: `The reward of session ${row.session_id}`,
  })
}

/** Returns the columns of a reward, with their checksum. */
export function buildRewardColumns(sessionId: string, { reward, components, lines, turns }: Reward) {
  const columns = {
    reward,
    reward_components: JSON.stringify(components),
    reward_lines: lines ? JSON.stringify(lines) : null,
    reward_turns: turns ? JSON.stringify(turns) : null,
  }
  const row = { session_id: sessionId, ...columns }
  return { ...columns, reward_sum: computeSum(row, listRewardColumns(row)) }
}

export type ListParameters = RowFilter & { value: number; key: number; none?: number }

/** Returns the position at which a list continues, and the part of its filter that SQL evaluates. */
export function createListParameters(query: SessionQuery): ListParameters {
  const order = getOrder(query)
  const after = query.cursor === undefined ? getFirstPosition(order) : decodeCursor(query.cursor, order)
  const none = order.sort === 'reward' ? { none: getLastValue(order.order) } : {}
  return { ...createRowFilter(query), ...after, ...none }
}

/**
 * Examines a batch of sessions for a list.
 * @param rows sessions in the query's order, starting after its cursor
 * @param most the maximum number of rows to examine
 */
export function buildListPart(rows: Iterable<SessionRow>, query: SessionQuery, most: number): ListPart {
  const order = getOrder(query)
  const page: ListPart = { sessions: [] }
  let examined = 0
  let last = getFirstPosition(order)
  const getCursor = () => (examined === 0 ? query.cursor! : encodeCursor(last, order))
  for (const row of rows) {
    const session = toRecord(row)
    const matches = matchesFilter(session, query)
    if (matches && page.sessions.length >= query.limit) {
      page.nextCursor = getCursor()
      break
    }
    if (matches) page.sessions.push(session)
    last = { value: getSortValue(session, order), key: row.id }
    examined += 1
    if (examined < most) continue
    page.continueFrom = getCursor()
    break
  }
  return page
}

/** Aggregates a batch of sessions. @param rows at most {@link SESSIONS_AT_ONCE}; fewer only in the last batch */
export function buildAggregatePart(
  rows: readonly AggregateRow[],
  filter: SessionFilter,
  by: string | undefined,
): AggregatePart {
  const sessions = rows.map(toAggregateFields).filter((session) => matchesFilter(session, filter))
  const tallies = aggregateSessions(sessions, by)
  return rows.length < SESSIONS_AT_ONCE ? { tallies } : { tallies, continueAfter: rows.at(-1)!.id }
}
