/** Reads sessions: single ones, lists and counts. */
import type { Client } from 'pg'
import {
  type AggregatePart,
  type AggregateRow,
  buildAggregatePart,
  buildListPart,
  checkReward,
  createListParameters,
  type ListPart,
  SESSIONS_AT_ONCE,
  type SessionRow,
  toRecord,
} from '../common/session-rows.ts'
import { buildAggregateQuery, buildCountQuery, buildExpiredCondition } from '../common/session-sql.ts'
import { getOrder } from '../port/session-list.ts'
import type {
  SessionCount,
  SessionFilter,
  SessionQuery,
  SessionRecord,
  SessionSort,
} from '../port/turn-store.ts'
import { COLUMNS, fromDriver, toTextParameter } from './columns.ts'

/**
 * Selects sessions with their next turn index. It is computed from the turns, since indices may have gaps and
 * `turn_count` only counts them. Columns are listed by name: a prepared statement with `*` fails once a newer release
 * has added a column.
 */
export const SELECT_SESSIONS = `
  SELECT ${COLUMNS.sessions.join(', ')}, (SELECT coalesce(max(call_index) + 1, 0) FROM llm_proxy.turns WHERE turns.tree = sessions.tree) AS next_index
  FROM llm_proxy.sessions`

/**
 * The earlier of the node's time (`$1`) and the server's: a node whose clock is fast must not delete sessions early.
 */
const NOW_MS = 'least($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)'

/** The condition that a sweep at time `$1` deletes a session. */
export const IS_EXPIRED = buildExpiredCondition('llm_proxy.', NOW_MS)

/** The sort columns. `$8` is the sort value of sessions without a reward. */
const SORT_COLUMNS: Record<SessionSort, string> = {
  created: 'created_at_ms',
  changed: 'updated_at_ms',
  reward: 'coalesce(reward, $8)',
  turns: 'turn_count',
  tokens: 'sampled_tokens',
}

const ROW_FILTER = `
  ($3::text IS NULL OR status = $3) AND ($4::float8 IS NULL OR reward >= $4) AND ($5::float8 IS NULL OR reward <= $5)
  AND ($6::int IS NULL OR (inexact_turns > 0)::int = $6) AND ($7::int IS NULL OR (failed_turns > 0)::int = $7)
  AND ($9::text IS NULL OR starts_with(session_id, $9))`

/** Reads a session and verifies the checksum of its reward. @throws ProxyError `data_damaged` */
async function getSession(client: Client, sessionId: string): Promise<SessionRecord | undefined> {
  const { rows } = await client.query<SessionRow>(`${SELECT_SESSIONS} WHERE session_id = $1`, [
    toTextParameter(sessionId),
  ])
  const row = rows[0] && fromDriver(rows[0])
  if (row === undefined) return undefined
  checkReward(row)
  return toRecord(row)
}

export async function selectTree(client: Client, sessionId: string): Promise<number | undefined> {
  const sql = 'SELECT tree FROM llm_proxy.sessions WHERE session_id = $1'
  const { rows } = await client.query<{ tree: number }>(sql, [toTextParameter(sessionId)])
  return rows[0]?.tree
}

async function listSessions(client: Client, query: SessionQuery): Promise<ListPart> {
  const order = getOrder(query)
  const { value, key, none = 0, ...filter } = createListParameters(query)
  const column = SORT_COLUMNS[order.sort]
  const isReward = order.sort === 'reward'
  const { rows } = await client.query<SessionRow>(
    `${SELECT_SESSIONS}
     WHERE (${column}::float8, id) ${order.order === 'desc' ? '<' : '>'} ($1::float8, $2::bigint) AND ${ROW_FILTER}
       ${isReward ? '' : 'AND $8::float8 IS NOT NULL'}
     ORDER BY ${column} ${order.order}, id ${order.order} LIMIT ${SESSIONS_AT_ONCE}`,
    [
      value,
      key,
      filter.status,
      filter.rewardMin,
      filter.rewardMax,
      filter.inexact,
      filter.failed,
      none,
      filter.idPrefix,
    ],
  )
  return buildListPart(rows.map(fromDriver), query, SESSIONS_AT_ONCE)
}

async function tallySessions(
  client: Client,
  filter: SessionFilter,
  by: string | undefined,
  after: number,
): Promise<AggregatePart> {
  const { rows } = await client.query<AggregateRow>(buildAggregateQuery('llm_proxy.', '$1'), [after])
  return buildAggregatePart(rows.map(fromDriver), filter, by)
}

async function countSessions(client: Client, nowMs: number): Promise<SessionCount> {
  const { rows } = await client.query<SessionCount>(buildCountQuery('llm_proxy.', IS_EXPIRED), [nowMs])
  return rows[0]!
}

/** The reader's methods for sessions. */
export const sessionReads = { getSession, listSessions, tallySessions, countSessions }
