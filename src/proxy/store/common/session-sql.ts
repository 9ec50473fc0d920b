/** SQL on `sessions` that is the same in both databases. `schema` precedes the names of tables: `llm_proxy.`, or ''. */
import { AGGREGATE_COLUMNS, SESSIONS_AT_ONCE } from './session-rows.ts'

/**
 * Returns the SQL condition under which a sweep deletes a session: it has expired, has no turn in flight, and is not
 * retained for a consumer that has not acknowledged it.
 * @param nowMs the SQL expression of the time, in milliseconds since the epoch
 */
export function buildExpiredCondition(schema: string, nowMs: string): string {
  const isKept = `
    status = 'completed' AND EXISTS (
      SELECT 1 FROM ${schema}consumers
      WHERE ended_at_ms >= since_ms AND ended_at_ms + hold_ms > ${nowMs}
        AND substr(session_id, 1, length(id_prefix)) = id_prefix
        AND NOT EXISTS (
          SELECT 1 FROM ${schema}consumer_sessions AS delivery
          WHERE delivery.tree = sessions.tree AND delivery.consumer = consumers.id AND leased_until_ms IS NULL))`
  return `
    ttl_ms IS NOT NULL AND updated_at_ms + ttl_ms <= ${nowMs}
    AND NOT EXISTS (SELECT 1 FROM ${schema}turns WHERE turns.tree = sessions.tree AND turns.status = 'open')
    AND NOT (${isKept})`
}

/**
 * Returns the SQL query of a `SessionCount`.
 * @param expired the condition that {@link buildExpiredCondition} returns
 */
export function buildCountQuery(schema: string, expired: string): string {
  return `
    SELECT count(*) AS sessions, count(*) FILTER (WHERE status = 'active') AS active,
      count(*) FILTER (WHERE ${expired}) AS expired FROM ${schema}sessions`
}

/** Returns the SQL query of a batch of rows to aggregate. @param after the SQL parameter with the preceding row id */
export function buildAggregateQuery(schema: string, after: string): string {
  const columns = AGGREGATE_COLUMNS.join(', ')
  return `SELECT ${columns} FROM ${schema}sessions WHERE id > ${after} ORDER BY id LIMIT ${SESSIONS_AT_ONCE}`
}
