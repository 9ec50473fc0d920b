/**
 * Rows of `consumers` and `consumer_sessions`, for any number of nodes. Leases expire by the database's clock. Changes
 * of a consumer are serialized by a lock on its row. Each change is a separate, idempotent transaction, not part of a
 * group.
 */
import type { Client } from 'pg'
import {
  type AvailableRow,
  type ConsumerRow,
  type ConsumerSessionRow,
  type MemberRow,
  NO_LEASE,
  toAvailableSession,
  toConsumer,
  toConsumerRow,
  toConsumerSession,
  toUnits,
} from '../common/consumer-rows.ts'
import { unpackText } from '../common/packing.ts'
import {
  type AvailableQuery,
  type AvailableSession,
  type Consumer,
  type ConsumerCounts,
  type ConsumerSession,
  createNoConsumerError,
  type GroupMember,
  type GroupQuery,
  type GroupsPage,
  type LeaseChange,
  type LeaseGrant,
  type NewLease,
} from '../port/consumers.ts'
import { fromDriver, toTextParameter } from './columns.ts'
import { runInTransaction } from './connection.ts'
import { SELECT_SESSIONS } from './select-sessions.ts'

const NOW_MS = '(extract(epoch FROM clock_timestamp()) * 1000)::bigint'

/** Returns the SQL condition under which a session can be leased. @param leaseId the SQL parameter with the lease id */
const isFree = (leaseId: string) => `(
  delivery.id IS NULL
  OR delivery.leased_until_ms IS NOT NULL AND (delivery.leased_until_ms <= ${NOW_MS} OR delivery.lease_id = ${leaseId}))`

/** The sessions that consumer `$1` can lease with lease `$2`. */
const AVAILABLE = `
  llm_proxy.consumers JOIN llm_proxy.sessions AS ended
    ON ended.status = 'completed' AND ended.ended_at_ms >= consumers.since_ms
    AND starts_with(ended.session_id, consumers.id_prefix)
  LEFT JOIN llm_proxy.consumer_sessions AS delivery ON delivery.tree = ended.tree AND delivery.consumer = consumers.id
  WHERE consumers.name = $1 AND ${isFree('$2')}`

async function getConsumer(client: Client, name: string): Promise<Consumer | undefined> {
  const sql = 'SELECT * FROM llm_proxy.consumers WHERE name = $1'
  const { rows } = await client.query<ConsumerRow>(sql, [name])
  return rows[0] && toConsumer(rows[0])
}

async function listConsumers(client: Client, idPrefix: string): Promise<Consumer[]> {
  const sql = 'SELECT * FROM llm_proxy.consumers WHERE starts_with(id_prefix, $1) ORDER BY name'
  const { rows } = await client.query<ConsumerRow>(sql, [idPrefix])
  return rows.map(toConsumer)
}

async function selectAvailableSessions(
  client: Client,
  { consumer, leaseId, after, limit, rewarded = false, ungrouped = false }: AvailableQuery,
): Promise<AvailableSession[]> {
  const { rows } = await client.query<AvailableRow>(
    `SELECT chosen.*, found.deliveries FROM (
       SELECT ended.id, coalesce(delivery.deliveries, 0) + (delivery.lease_id IS DISTINCT FROM $2)::int AS deliveries,
         ended.ended_at_ms AS end_ms, ended.tree AS end_tree FROM ${AVAILABLE}
         AND (ended.ended_at_ms, ended.tree) > ($3::bigint, $4::bigint)
         AND (NOT $6::boolean OR ended.reward IS NOT NULL) AND (NOT $7::boolean OR delivery.group_hash IS NULL)
       ORDER BY ended.ended_at_ms, ended.tree LIMIT $5
     ) AS found JOIN LATERAL (${SELECT_SESSIONS} WHERE sessions.id = found.id) AS chosen ON true
     ORDER BY end_ms, end_tree`,
    [consumer, toTextParameter(leaseId), after.endedAtMs, after.tree, limit, rewarded, ungrouped],
  )
  return rows.map((row) => toAvailableSession(fromDriver(row)))
}

async function countForConsumer(client: Client, name: string): Promise<ConsumerCounts | undefined> {
  const { rows } = await client.query<ConsumerCounts>(
    `SELECT (SELECT count(*) FROM ${AVAILABLE}) AS available,
       count(delivery.id) FILTER (WHERE delivery.leased_until_ms > ${NOW_MS}) AS leased,
       count(delivery.id) FILTER (WHERE delivery.leased_until_ms IS NULL) AS acknowledged,
       count(delivery.id) FILTER (WHERE delivery.leased_until_ms IS NULL AND delivery.lease_id = '${NO_LEASE}') AS discarded
     FROM llm_proxy.consumers AS one LEFT JOIN llm_proxy.consumer_sessions AS delivery ON delivery.consumer = one.id
     WHERE one.name = $1 GROUP BY one.id`,
    [name, ''],
  )
  return rows[0]
}

/** The available sessions of consumer `$1` that are in groups, for lease `$2`. An index covers all selected columns. */
const IN_GROUPS = `
  SELECT group_hash, tree, leased_until_ms FROM llm_proxy.consumer_sessions
  WHERE consumer = (SELECT id FROM llm_proxy.consumers WHERE name = $1) AND group_hash IS NOT NULL
    AND leased_until_ms IS NOT NULL AND (leased_until_ms <= ${NOW_MS} OR lease_id = $2)`

async function findGroups(
  client: Client,
  { consumer, leaseId, size, limit, except, timeoutMs }: GroupQuery,
): Promise<GroupsPage> {
  const { rows } = await client.query<MemberRow>(
    `WITH free AS MATERIALIZED (${IN_GROUPS} AND tree <> ALL ($5::bigint[])),
       complete AS (SELECT group_hash FROM free GROUP BY group_hash HAVING count(*) >= $3::bigint),
       placed AS MATERIALIZED (
         SELECT group_hash, ended.id, ended.ended_at_ms AS end_ms, ended.tree,
           row_number() OVER (PARTITION BY group_hash ORDER BY ended.ended_at_ms, ended.tree) - 1 AS place
         FROM complete JOIN free USING (group_hash) JOIN llm_proxy.sessions AS ended USING (tree)
         WHERE ended.status = 'completed'),
       units AS (
         SELECT group_hash, place / $3::bigint AS number, end_ms AS unit_ms, tree AS unit_tree FROM placed
         WHERE place % $3::bigint = $3::bigint - 1 ORDER BY end_ms, tree LIMIT $4)
     SELECT chosen.*, units.group_hash || ' ' || number AS unit,
       delivery.deliveries + (delivery.lease_id <> $2)::int AS deliveries
     FROM units JOIN placed USING (group_hash)
     JOIN LATERAL (${SELECT_SESSIONS} WHERE sessions.id = placed.id) AS chosen ON true
     JOIN LATERAL (
       SELECT deliveries, lease_id FROM llm_proxy.consumer_sessions WHERE consumer_sessions.tree = placed.tree
         AND consumer = (SELECT id FROM llm_proxy.consumers WHERE name = $1)) AS delivery ON true
     WHERE place / $3::bigint = number ORDER BY unit_ms, unit_tree, place`,
    [consumer, toTextParameter(leaseId), size, limit, except],
  )
  const { rows: stale } = await client.query<{ group_hash: string }>(
    `SELECT group_hash FROM (${IN_GROUPS}) AS free
     GROUP BY group_hash
     HAVING max(leased_until_ms) <= ${NOW_MS} - $3::bigint AND count(*) < $4::bigint LIMIT $5`,
    [consumer, toTextParameter(leaseId), timeoutMs, size, limit],
  )
  return {
    units: toUnits(rows.map(fromDriver)),
    stale: stale.map(({ group_hash: group }) => group),
  }
}

function putIntoGroups(client: Client, name: string, members: readonly GroupMember[]): Promise<void> {
  return withConsumer(client, name, async (consumer) => {
    await client.query(
      `INSERT INTO llm_proxy.consumer_sessions
         (tree, consumer, session, lease_id, leased_until_ms, deliveries, group_hash)
       SELECT sessions.tree, $1::bigint, sessions.id, '${NO_LEASE}', least(ended_at_ms, ${NOW_MS}), 0, member.hash
       FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS member (id, tree, hash)
       JOIN llm_proxy.sessions ON sessions.id = member.id AND sessions.tree = member.tree
       ON CONFLICT (tree, consumer) DO UPDATE SET group_hash = excluded.group_hash`,
      [
        consumer,
        members.map(({ key }) => key.row),
        members.map(({ key }) => key.tree),
        members.map(({ group }) => group),
      ],
    )
  })
}

function discardGroups(client: Client, name: string, groups: readonly string[]): Promise<number> {
  return withConsumer(client, name, async (consumer) => {
    const { rowCount } = await client.query(
      `UPDATE llm_proxy.consumer_sessions SET lease_id = '${NO_LEASE}', leased_until_ms = NULL
       WHERE consumer = $1 AND group_hash = ANY($2::text[]) AND leased_until_ms <= ${NOW_MS}`,
      [consumer, groups],
    )
    return rowCount ?? 0
  })
}

async function listSessionStates(client: Client, sessionId: string): Promise<ConsumerSession[]> {
  const { rows } = await client.query<ConsumerSessionRow>(
    `SELECT name, lease_id, leased_until_ms, deliveries FROM llm_proxy.sessions
     JOIN llm_proxy.consumer_sessions USING (tree) JOIN llm_proxy.consumers ON consumers.id = consumer
     WHERE session_id = $1 ORDER BY name`,
    [toTextParameter(sessionId)],
  )
  return rows.map(fromDriver).map((row) => toConsumerSession({ ...row, lease_id: unpackText(row.lease_id) }))
}

/** Adds leases and acknowledgements of a session, with one statement. */
async function putSessionStates(
  client: Client,
  sessionId: string,
  states: readonly ConsumerSession[],
): Promise<void> {
  await client.query(
    `INSERT INTO llm_proxy.consumer_sessions (tree, consumer, session, lease_id, leased_until_ms, deliveries)
     SELECT tree, consumers.id, sessions.id, delivery.lease_id, delivery.leased_until_ms, delivery.deliveries
     FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[])
       AS delivery (name, lease_id, leased_until_ms, deliveries)
     JOIN llm_proxy.consumers ON consumers.name = delivery.name JOIN llm_proxy.sessions ON session_id = $1
     ON CONFLICT (tree, consumer) DO UPDATE SET lease_id = excluded.lease_id, leased_until_ms = NULL
       WHERE excluded.leased_until_ms IS NULL AND consumer_sessions.leased_until_ms IS NOT NULL`,
    [
      toTextParameter(sessionId),
      states.map(({ consumer }) => consumer),
      states.map(({ leaseId }) => toTextParameter(leaseId)),
      states.map(({ leasedUntilMs }) => leasedUntilMs),
      states.map(({ deliveries }) => deliveries),
    ],
  )
}

async function createConsumer(
  client: Client,
  consumer: Consumer,
): Promise<{ created: boolean; consumer: Consumer }> {
  const row = toConsumerRow(consumer)
  const { rowCount } = await client.query(
    `INSERT INTO llm_proxy.consumers (name, id_prefix, created_at_ms, since_ms, hold_ms, selection)
     VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name) DO NOTHING`,
    [row.name, row.id_prefix, row.created_at_ms, row.since_ms, row.hold_ms, row.selection],
  )
  if (rowCount === 1) return { created: true, consumer }
  return { created: false, consumer: (await getConsumer(client, consumer.name)) ?? consumer }
}

async function deleteConsumer(client: Client, name: string): Promise<boolean> {
  const { rowCount } = await client.query('DELETE FROM llm_proxy.consumers WHERE name = $1', [name])
  return rowCount === 1
}

function leaseSessions(
  client: Client,
  { consumer: name, leaseId, units, leaseMs }: NewLease,
): Promise<LeaseGrant> {
  return withConsumer(client, name, async (consumer) => {
    const keys = units.flat()
    const lease = toTextParameter(leaseId)
    const { rows: free } = await client.query<{ tree: number; until_ms: number }>(
      `SELECT sessions.tree, ${NOW_MS} + $5::bigint AS until_ms FROM unnest($3::bigint[], $4::bigint[]) AS wanted (id, tree)
       JOIN llm_proxy.sessions ON sessions.id = wanted.id AND sessions.tree = wanted.tree AND status = 'completed'
       LEFT JOIN llm_proxy.consumer_sessions AS delivery ON delivery.tree = sessions.tree AND delivery.consumer = $1
       WHERE ${isFree('$2')}`,
      [consumer, lease, keys.map(({ row }) => row), keys.map(({ tree }) => tree), leaseMs],
    )
    const untilMs = free[0]?.until_ms ?? 0
    const freeTrees = new Set(free.map(({ tree }) => tree))
    const leased = units.filter((unit) => unit.every(({ tree }) => freeTrees.has(tree))).flat()
    await client.query(
      `INSERT INTO llm_proxy.consumer_sessions (tree, consumer, session, lease_id, leased_until_ms, deliveries)
       SELECT wanted.tree, $1::bigint, wanted.id, $2::text, $5::bigint, 1
       FROM unnest($3::bigint[], $4::bigint[]) AS wanted (id, tree)
       ON CONFLICT (tree, consumer) DO UPDATE SET leased_until_ms = excluded.leased_until_ms, lease_id = $2,
         deliveries = consumer_sessions.deliveries + (consumer_sessions.lease_id <> $2)::int`,
      [consumer, lease, leased.map(({ row }) => row), leased.map(({ tree }) => tree), untilMs],
    )
    return { trees: leased.map(({ tree }) => tree), untilMs }
  })
}

function changeLease(
  client: Client,
  { consumer: name, leaseId, sessionIds, to, leaseMs, leasedUntilMs = null }: LeaseChange,
): Promise<string[]> {
  return withConsumer(client, name, async (consumer) => {
    const moved = `${NOW_MS} + $4`
    const { rows } = await client.query<{ session_id: string }>(
      `UPDATE llm_proxy.consumer_sessions AS delivery
       SET leased_until_ms = ${to === 'acknowledged' ? 'NULL' : moved}
       FROM llm_proxy.sessions
       WHERE delivery.consumer = $1 AND ($2::text IS NULL OR delivery.lease_id = $2)
         AND ($3::text[] IS NULL OR sessions.session_id = ANY($3)) AND delivery.lease_id <> '${NO_LEASE}'
         AND sessions.id = delivery.session AND sessions.tree = delivery.tree
         AND ($4::bigint IS NULL OR delivery.leased_until_ms IS NOT NULL)
         AND ($5::bigint IS NULL OR delivery.leased_until_ms = $5)
       RETURNING sessions.session_id`,
      [
        consumer,
        leaseId === null ? null : toTextParameter(leaseId),
        sessionIds?.map(toTextParameter) ?? null,
        { acknowledged: null, released: 0, extended: leaseMs }[to],
        leasedUntilMs,
      ],
    )
    return rows.map(({ session_id: sessionId }) => sessionId)
  })
}

/** Locks the consumer's row. @param work receives the consumer's id. @throws ProxyError `consumer_not_found` */
function withConsumer<T>(client: Client, name: string, work: (consumer: number) => Promise<T>): Promise<T> {
  return runInTransaction(client, async () => {
    const sql = 'SELECT id FROM llm_proxy.consumers WHERE name = $1 FOR UPDATE'
    const { rows } = await client.query<{ id: number }>(sql, [name])
    if (rows[0] === undefined) throw createNoConsumerError(name)
    return work(rows[0].id)
  })
}

/** The reader's methods for consumers. */
export const consumerReads = {
  getConsumer,
  listConsumers,
  availableSessions: selectAvailableSessions,
  countForConsumer,
  findGroups,
  listSessionStates,
}

/** The writer's methods for consumers. */
export const consumerWrites = {
  createConsumer,
  deleteConsumer,
  leaseSessions,
  changeLease,
  putIntoGroups,
  discardGroups,
  putSessionStates,
}
