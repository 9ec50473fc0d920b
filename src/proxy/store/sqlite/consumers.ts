/** Reads (reader) and changes (writer) rows of `consumers` and `consumer_sessions`. */
import type Database from 'better-sqlite3'
import type { ThreadMethods } from '../common/calls.ts'
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
import type { ConsumerReads } from '../common/reader.ts'
import {
  type AvailableQuery,
  type ConsumerCounts,
  type ConsumerSession,
  type ConsumerStore,
  createNoConsumerError,
  type GroupQuery,
  type GroupsPage,
  type SessionKey,
} from '../port/consumers.ts'
import { SELECT_SESSIONS } from './sessions.ts'

/** The condition that a session is neither acknowledged by the consumer nor leased at `@nowMs` by another lease. */
const IS_FREE = `
  delivery.id IS NULL
  OR delivery.leased_until_ms IS NOT NULL AND (delivery.leased_until_ms <= @nowMs OR delivery.lease_id = @leaseId)`

/** Sessions in the order of their ends, found without reading those that are acknowledged. */
const AVAILABLE = `
  consumers CROSS JOIN sessions AS ended INDEXED BY sessions_by_end
  LEFT JOIN consumer_sessions AS delivery ON delivery.tree = ended.tree AND delivery.consumer = consumers.id
  WHERE consumers.name = @consumer AND ended.status = 'completed' AND ended.ended_at_ms >= consumers.since_ms
    AND (${IS_FREE}) AND substr(ended.session_id, 1, length(consumers.id_prefix)) = consumers.id_prefix`

interface AvailableParameters extends Omit<AvailableQuery, 'after' | 'rewarded' | 'ungrouped'> {
  rewarded: number
  ungrouped: number
  endedAtMs: number
  tree: number
}

/** Available sessions in groups; a covering index serves this query. */
const IN_GROUPS = `
  SELECT group_hash, tree FROM consumer_sessions
  WHERE consumer = (SELECT id FROM consumers WHERE name = @consumer) AND group_hash IS NOT NULL
    AND leased_until_ms IS NOT NULL AND (leased_until_ms <= @nowMs OR lease_id = @leaseId)`

type GroupParameters = Omit<GroupQuery, 'except'> & { except: string }

/**
 * Prepares {@link ConsumerReads.findGroups}. Parameters are bound as REAL, whose quotient is not an integer: hence the
 * casts.
 */
function prepareGroupReads(db: Database.Database): Pick<ConsumerReads, 'findGroups'> {
  const stale = db
    .prepare<[GroupParameters], string>(`
      ${IN_GROUPS} GROUP BY group_hash HAVING max(leased_until_ms) <= @nowMs - @timeoutMs AND count(*) < @size
      LIMIT @limit`)
    .pluck()
  const find = db.prepare<[GroupParameters], MemberRow>(`
    WITH free AS MATERIALIZED (${IN_GROUPS} AND tree NOT IN (SELECT value FROM json_each(@except))),
      complete AS (SELECT group_hash FROM free GROUP BY group_hash HAVING count(*) >= @size),
      placed AS MATERIALIZED (
        SELECT group_hash, ended.id, ended.ended_at_ms AS end_ms, ended.tree,
          row_number() OVER (PARTITION BY group_hash ORDER BY ended.ended_at_ms, ended.tree) - 1 AS place
        FROM complete JOIN free USING (group_hash) JOIN sessions AS ended USING (tree)
        WHERE ended.status = 'completed'),
      units AS (
        SELECT group_hash, place / CAST(@size AS INTEGER) AS number, end_ms AS unit_ms, tree AS unit_tree FROM placed
        WHERE place % CAST(@size AS INTEGER) = @size - 1 ORDER BY end_ms, tree LIMIT @limit)
    SELECT chosen.*, units.group_hash || ' ' || number AS unit,
      delivery.deliveries + (delivery.lease_id <> @leaseId) AS deliveries
    FROM units JOIN placed USING (group_hash) JOIN (${SELECT_SESSIONS}) AS chosen ON chosen.id = placed.id
    JOIN consumer_sessions AS delivery ON delivery.tree = placed.tree
      AND delivery.consumer = (SELECT id FROM consumers WHERE name = @consumer)
    WHERE place / CAST(@size AS INTEGER) = number ORDER BY unit_ms, unit_tree, place`)
  return {
    findGroups({ except, ...query }): GroupsPage {
      const parameters = { ...query, except: JSON.stringify(except) }
      return { units: toUnits(find.all(parameters)), stale: stale.all(parameters) }
    },
  }
}

/** Prepares the reader's methods for consumers. */
export function prepareConsumerReads(db: Database.Database): ConsumerReads {
  const find = db.prepare<[string], ConsumerRow>('SELECT * FROM consumers WHERE name = ?')
  const list = db.prepare<[{ idPrefix: string }], ConsumerRow>(`
    SELECT * FROM consumers WHERE substr(id_prefix, 1, length(@idPrefix)) = @idPrefix ORDER BY name`)
  const available = db.prepare<[AvailableParameters], AvailableRow>(`
    SELECT chosen.*, found.deliveries FROM (
      SELECT ended.id, ifnull(delivery.deliveries, 0) + (delivery.lease_id IS NOT @leaseId) AS deliveries,
        ended.ended_at_ms AS end_ms, ended.tree AS end_tree FROM ${AVAILABLE}
        AND (ended.ended_at_ms, ended.tree) > (@endedAtMs, @tree)
        AND (@rewarded = 0 OR ended.reward IS NOT NULL) AND (@ungrouped = 0 OR delivery.group_hash IS NULL)
      ORDER BY ended.ended_at_ms, ended.tree LIMIT @limit
    ) AS found JOIN (${SELECT_SESSIONS}) AS chosen ON chosen.id = found.id ORDER BY end_ms, end_tree`)
  const count = db.prepare<[{ consumer: string; nowMs: number; leaseId: string }], ConsumerCounts>(`
    SELECT (SELECT count(*) FROM ${AVAILABLE}) AS available,
      (SELECT count(*) FROM consumer_sessions
        WHERE consumer = consumers.id AND leased_until_ms IS NOT NULL AND leased_until_ms > @nowMs) AS leased,
      (SELECT count(*) FROM consumer_sessions WHERE consumer = consumers.id)
        - (SELECT count(*) FROM consumer_sessions WHERE consumer = consumers.id AND leased_until_ms IS NOT NULL)
        AS acknowledged,
      (SELECT count(*) FROM consumer_sessions
        WHERE consumer = consumers.id AND lease_id = '${NO_LEASE}' AND leased_until_ms IS NULL) AS discarded
    FROM consumers WHERE name = @consumer`)
  const states = db.prepare<[string], ConsumerSessionRow>(`
    SELECT name, lease_id, leased_until_ms, deliveries FROM sessions
    JOIN consumer_sessions USING (tree) JOIN consumers ON consumers.id = consumer
    WHERE session_id = ? ORDER BY name`)
  return {
    getConsumer(name) {
      const row = find.get(name)
      return row && toConsumer(row)
    },
    listConsumers: (idPrefix) => list.all({ idPrefix }).map(toConsumer),
    availableSessions: ({ after, rewarded = false, ungrouped = false, ...query }) => {
      const flags = { rewarded: Number(rewarded), ungrouped: Number(ungrouped) }
      return available.all({ ...query, ...after, ...flags }).map(toAvailableSession)
    },
    ...prepareGroupReads(db),
    countForConsumer: (consumer, nowMs) => count.get({ consumer, nowMs, leaseId: '' }),
    listSessionStates: (sessionId) => states.all(sessionId).map(toConsumerSession),
  }
}

/** The parameters that identify a lease and one of its trees. */
interface LeaseParameters {
  consumer: number
  leaseId: string
  tree: number
}

/** Prepares the writer's methods for consumers. */
export function prepareConsumerMethods(db: Database.Database): ThreadMethods<ConsumerStore> {
  const { getConsumer } = prepareConsumerReads(db)
  const findId = db.prepare<[string], number>('SELECT id FROM consumers WHERE name = ?').pluck()
  const create = db.prepare<[ConsumerRow]>(`
    INSERT INTO consumers (name, id_prefix, created_at_ms, since_ms, hold_ms, selection)
    VALUES (@name, @id_prefix, @created_at_ms, @since_ms, @hold_ms, @selection)`)
  const remove = db.prepare<[string]>('DELETE FROM consumers WHERE name = ?')
  const findFree = db.prepare<[LeaseParameters & { row: number; nowMs: number }], number>(`
    SELECT 1 FROM sessions
    LEFT JOIN consumer_sessions AS delivery ON delivery.tree = sessions.tree AND delivery.consumer = @consumer
    WHERE sessions.id = @row AND sessions.tree = @tree AND sessions.status = 'completed' AND (${IS_FREE})`)
  const lease = db.prepare<[LeaseParameters & { row: number; untilMs: number }]>(`
    INSERT INTO consumer_sessions (tree, consumer, session, lease_id, leased_until_ms, deliveries)
    VALUES (@tree, @consumer, @row, @leaseId, @untilMs, 1)
    ON CONFLICT (tree, consumer) DO UPDATE SET leased_until_ms = @untilMs, lease_id = @leaseId,
      deliveries = deliveries + (lease_id <> @leaseId)`)
  const treeOf = db.prepare<[string], number>('SELECT tree FROM sessions WHERE session_id = ?').pluck()
  const treesOf = db
    .prepare<[{ consumer: number; leaseId: string | null }], number>(`
      SELECT tree FROM consumer_sessions WHERE consumer = @consumer
        AND (lease_id = @leaseId OR @leaseId IS NULL AND leased_until_ms IS NOT NULL AND lease_id <> '${NO_LEASE}')`)
    .pluck()
  const returning = `RETURNING (
    SELECT session_id FROM sessions
    WHERE sessions.id = consumer_sessions.session AND sessions.tree = consumer_sessions.tree)`
  const isHeld = 'tree = @tree AND consumer = @consumer AND (lease_id = @leaseId OR @leaseId IS NULL)'
  const acknowledge = db
    .prepare<[LeaseParameters], string>(
      `UPDATE consumer_sessions SET leased_until_ms = NULL WHERE ${isHeld} ${returning}`,
    )
    .pluck()
  const move = db
    .prepare<[LeaseParameters & { untilMs: number; leasedUntilMs: number | null }], string>(`
      UPDATE consumer_sessions SET leased_until_ms = @untilMs
      WHERE ${isHeld} AND leased_until_ms IS NOT NULL
        AND (@leasedUntilMs IS NULL OR leased_until_ms = @leasedUntilMs) ${returning}`)
    .pluck()
  const put = db.prepare<[ConsumerSession & { sessionId: string }]>(`
    INSERT INTO consumer_sessions (tree, consumer, session, lease_id, leased_until_ms, deliveries)
    SELECT tree, consumers.id, sessions.id, @leaseId, @leasedUntilMs, @deliveries FROM sessions, consumers
    WHERE session_id = @sessionId AND name = @consumer
    ON CONFLICT (tree, consumer) DO UPDATE SET lease_id = excluded.lease_id, leased_until_ms = NULL
      WHERE excluded.leased_until_ms IS NULL AND leased_until_ms IS NOT NULL`)
  const group = db.prepare<[SessionKey & { consumer: number; group: string }]>(`
    INSERT INTO consumer_sessions (tree, consumer, session, lease_id, leased_until_ms, deliveries, group_hash)
    SELECT tree, @consumer, id, '${NO_LEASE}', ended_at_ms, 0, @group FROM sessions WHERE id = @row AND tree = @tree
    ON CONFLICT (tree, consumer) DO UPDATE SET group_hash = excluded.group_hash`)
  const discard = db.prepare<[{ consumer: number; group: string; nowMs: number }]>(`
    UPDATE consumer_sessions SET lease_id = '${NO_LEASE}', leased_until_ms = NULL
    WHERE consumer = @consumer AND group_hash = @group AND leased_until_ms IS NOT NULL AND leased_until_ms <= @nowMs`)
  const getId = (name: string) => {
    const id = findId.get(name)
    if (id === undefined) throw createNoConsumerError(name)
    return id
  }
  return {
    createConsumer(consumer) {
      const existing = getConsumer(consumer.name)
      if (existing !== undefined) return { created: false, consumer: existing }
      create.run(toConsumerRow(consumer))
      return { created: true, consumer }
    },
    deleteConsumer: (name) => remove.run(name).changes > 0,
    leaseSessions({ consumer: name, leaseId, units, leaseMs, nowMs }) {
      const consumer = getId(name)
      const isFree = (key: SessionKey) => findFree.get({ ...key, consumer, leaseId, nowMs }) !== undefined
      const leased = units.filter((unit) => unit.every(isFree)).flat()
      const untilMs = nowMs + leaseMs
      for (const key of leased) lease.run({ ...key, consumer, leaseId, untilMs })
      return { trees: leased.map(({ tree }) => tree), untilMs }
    },
    putIntoGroups(name, members) {
      const consumer = getId(name)
      for (const { key, group: hash } of members) group.run({ ...key, consumer, group: hash })
    },
    discardGroups(name, groups, nowMs) {
      const consumer = getId(name)
      return groups.reduce((count, hash) => count + discard.run({ consumer, group: hash, nowMs }).changes, 0)
    },
    changeLease({ consumer: name, leaseId, sessionIds, to, leaseMs, leasedUntilMs = null, nowMs }) {
      const consumer = getId(name)
      const trees = sessionIds
        ? sessionIds.map((sessionId) => treeOf.get(sessionId) ?? NO_TREE)
        : treesOf.all({ consumer, leaseId })
      const untilMs = to === 'extended' ? nowMs + leaseMs : nowMs
      const changed = trees.map((tree) => {
        const leased = { consumer, leaseId: leaseId as string, tree }
        return to === 'acknowledged'
          ? acknowledge.get(leased)
          : move.get({ ...leased, untilMs, leasedUntilMs })
      })
      return changed.filter((sessionId) => typeof sessionId === 'string')
    },
    putSessionStates(sessionId, states) {
      for (const one of states) put.run({ ...one, sessionId })
    },
  }
}

/** No tree has this id. */
const NO_TREE = 0
