/**
 * Leases of nodes. A node acquires a lease, which is timed by the server's clock, and renews it every second. Other nodes
 * may end a lease that has expired: then the node's sessions are free, and later commits of the node fail. A node that
 * was paused or cut off thus cannot continue with its cache while the others consider it crashed.
 */
import type { Client } from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import type { LeaseRenewal, NodeStateReport, SessionOwnership } from '../port/node-coordination.ts'
import { toTextParameter } from './columns.ts'
import { runInTransaction } from './connection.ts'
import { FIRST_IDS, type NextIds, SLOTS } from './group-changes.ts'
import { SCHEMA_VERSION } from './schema.ts'

/**
 * The duration of a lease: long enough for a restart of the server, and short for an agent that waits for the
 * fail-over.
 */
const LEASE_S = 6

/**
 * The grace period after a lease, so that a node that was cut off together with all others can renew its lease first.
 */
const MARGIN_S = 1

/**
 * The keys of advisory locks. `llmq` (in ASCII), with the number of a lease, marks its node as running; `llmr`
 * serializes assigning leases, and `llms` setting controls.
 */
const CONNECTIONS_LOCK = 0x6c6c6d71
export const LEASES_LOCK = 0x6c6c6d72
const CONTROLS_LOCK = 0x6c6c6d73

/** The SQL condition for a lease that other nodes may end. */
export const IS_OVER = `ended = 0 AND lease_until <= clock_timestamp() - interval '${MARGIN_S} s'`

const LEASE_END = `clock_timestamp() + interval '${LEASE_S} s'`

/** A lease of this node, as of its acquisition. */
export interface NodeLease {
  readonly id: number
  readonly slot: number
  readonly epoch: number
  /** The number of the last committed group. */
  readonly group: number
  readonly nextIds: NextIds
}

/**
 * Acquires a lease.
 * @param name name of the machine; leases of its exited processes are ended immediately
 * @throws ProxyError `start_failed` if newer nodes have meanwhile migrated the tables to a version that this one cannot
 *   use
 */
export async function acquireLease(client: Client, name: string): Promise<NodeLease> {
  const lease = await runInTransaction(client, async () => {
    await client.query('SELECT pg_advisory_xact_lock($1)', [LEASES_LOCK])
    const { rows: before } = await client.query<{ id: number }>(
      `SELECT id FROM llm_proxy.proxies WHERE ended = 0 AND name = $1 AND pg_try_advisory_xact_lock(${CONNECTIONS_LOCK}, id::int)`,
      [name],
    )
    await endLeases(
      client,
      before.map(({ id }) => id),
    )
    await client.query(`UPDATE llm_proxy.proxies SET ended = 1 WHERE ${IS_OVER}`)
    await client.query(
      'DELETE FROM llm_proxy.rollouts WHERE owner NOT IN (SELECT id FROM llm_proxy.proxies WHERE ended = 0)',
    )
    const { rows: free } = await client.query<{ slot: number }>(
      `SELECT slots.slot FROM generate_series(0, ${SLOTS - 1}) AS slots (slot)
       WHERE NOT EXISTS (SELECT 1 FROM llm_proxy.proxies WHERE proxies.slot = slots.slot AND ended = 0) LIMIT 1`,
    )
    const slot = free[0]?.slot
    if (slot === undefined)
      throw new ProxyError('start_failed', `${SLOTS} proxies write to this database already`)
    const nextIds = await readNextIds(client, slot)
    await client.query('DELETE FROM llm_proxy.proxies WHERE slot = $1', [slot])
    const { rows } = await client.query<{ id: number }>(
      `INSERT INTO llm_proxy.proxies (slot, name, lease_until, epoch, last_group, next_ids, schema)
       SELECT $1, $2, ${LEASE_END}, 1, 0, $3, $4 FROM llm_proxy.schema_version WHERE oldest <= $4 RETURNING id`,
      [slot, name, JSON.stringify(nextIds), SCHEMA_VERSION],
    )
    if (rows.length === 0)
      throw new ProxyError(
        'start_failed',
        'a newer llm-proxy has migrated the database to a version that this one cannot use',
      )
    return { id: rows[0]!.id, slot, epoch: 1, group: 0, nextIds }
  })
  await lockLease(client, lease)
  return lease
}

/**
 * Marks the lease's node as running for as long as the connection lives. The lock is shared, since two connections of a
 * node hold it: the loss of one of them must not let another node of the same name end the lease.
 */
export async function lockLease(client: Client, { id }: Pick<NodeLease, 'id'>): Promise<void> {
  await client.query(`SELECT pg_try_advisory_lock_shared(${CONNECTIONS_LOCK}, $1::int)`, [id])
}

export async function endLeases(client: Client, ids: readonly number[]): Promise<void> {
  await client.query('UPDATE llm_proxy.proxies SET ended = 1 WHERE id = ANY($1::bigint[])', [ids])
}

/** Returns the next ids of the slot, above all ids in the tables and all that earlier leases of the slot allocated. */
async function readNextIds(client: Client, slot: number): Promise<NextIds> {
  const next: NextIds = { ...FIRST_IDS }
  const raise = (table: keyof NextIds, count: number) => {
    next[table] = Math.max(next[table], count)
  }
  const { rows: before } = await client.query<{ next_ids: string }>(
    'SELECT next_ids FROM llm_proxy.proxies WHERE slot = $1',
    [slot],
  )
  for (const { next_ids: ids } of before) {
    for (const [table, count] of Object.entries(JSON.parse(ids)))
      raise(table as keyof NextIds, count as number)
  }
  const tables = {
    ...{ trees: 'trees', sessions: 'sessions', texts: 'texts', nodes: 'nodes', turns: 'turns' },
    ...{ details: 'others', blobs: 'others', blob_uses: 'others' },
  } as const
  for (const [table, counted] of Object.entries(tables)) {
    const { rows } = await client.query<{ last: number }>(
      `SELECT coalesce(max(id), 0) AS last FROM llm_proxy.${table}`,
    )
    raise(counted as keyof NextIds, Math.floor(rows[0]!.last / SLOTS) + 1)
  }
  return next
}

/** The state that a node reports with each renewal. */
export interface Heartbeat extends NodeStateReport {
  lease: number
  /** The number of the last control change that the node has applied. */
  seen: number
}

/**
 * Renews a lease unless it has been ended, even if it expired long ago.
 * @returns the state of all nodes, and the controls; undefined: the lease has ended
 */
export async function renewLease(
  client: Client,
  heartbeat: Heartbeat,
): Promise<Omit<LeaseRenewal, 'freed'> | undefined> {
  const { lease, url = null, isDraining = false, seen, isDrained = false } = heartbeat
  const { rowCount } = await client.query(
    `UPDATE llm_proxy.proxies SET lease_until = ${LEASE_END}, url = $2, draining = $3, seen = $4, drained = $5
     WHERE id = $1 AND ended = 0`,
    [lease, url, Number(isDraining), seen, Number(isDrained)],
  )
  if (rowCount === 0) return undefined
  const { rows: proxies } = await client.query<ProxyRow>(
    `SELECT id, name, url, draining, seen, drained, lease_until > clock_timestamp() AS is_valid, ${IS_OVER} AS is_over
     FROM llm_proxy.proxies WHERE ended = 0 ORDER BY id`,
  )
  const { rows: controls } = await client.query<{ name: string; value: string; change: number }>(
    'SELECT name, value, change FROM llm_proxy.controls',
  )
  return {
    lease,
    proxies: proxies
      .filter(({ is_valid: isValid }) => isValid)
      .map(({ id, name, url, draining, seen, drained }) => {
        return { id, name, url: url ?? undefined, isDraining: draining === 1, seen, isDrained: drained === 1 }
      }),
    over: proxies.filter(({ is_over: isOver }) => isOver).map(({ id }) => id),
    controls: controls.map(({ name, value, change }) => ({ name, value: JSON.parse(value), change })),
  }
}

/** A row of `proxies`, with the state of the lease. */
interface ProxyRow {
  id: number
  name: string
  url: string | null
  draining: number
  seen: number
  drained: number
  is_valid: boolean
  is_over: boolean
}

/**
 * Sets a control. Nodes apply changes above the highest number that they have seen, so numbers must be committed in
 * order: the lock is acquired before a number is drawn, and released by the commit.
 * @returns the number of the change
 */
export function setControl(client: Client, name: string, value: unknown): Promise<number> {
  return runInTransaction(client, async () => {
    await client.query('SELECT pg_advisory_xact_lock($1)', [CONTROLS_LOCK])
    const { rows } = await client.query<{ change: number }>(
      `INSERT INTO llm_proxy.controls VALUES ($1, $2, nextval('llm_proxy.control_changes'))
       ON CONFLICT (name) DO UPDATE SET value = excluded.value, change = excluded.change RETURNING change`,
      [name, JSON.stringify(value)],
    )
    return rows[0]!.change
  })
}

/** A session with its owner. */
interface OwnerRow {
  id: number
  tree: number
  owner: number
  epoch: number
  /** The number of turns that are open in the database. */
  open_turns: number
  url: string | null
  is_owned: boolean
  /** Whether its owner is draining, or drained before it ended. */
  is_draining: boolean
}

const SELECT_OWNER = `
  SELECT sessions.id, tree, owner, sessions.epoch, open_turns, url, coalesce(draining, 0) = 1 AS is_draining,
    proxies.id IS NOT NULL AND ended = 0 AND NOT (${IS_OVER}) AS is_owned
  FROM llm_proxy.sessions LEFT JOIN llm_proxy.proxies ON proxies.id = owner WHERE session_id = $1`

/** Returns the lease of the session's owner. @returns undefined: there is no such session, or it has no owner */
export async function findOwner(client: Client, sessionId: string): Promise<number | undefined> {
  const { rows } = await client.query<OwnerRow>(SELECT_OWNER, [toTextParameter(sessionId)])
  const row = rows[0]
  return row?.is_owned && !isReleased(row) ? row.owner : undefined
}

/**
 * Returns whether a draining owner has released the session: it retains sessions only while they have turns in flight.
 */
function isReleased({ is_draining: isDraining, open_turns: openTurns }: OwnerRow): boolean {
  return isDraining && openTurns === 0
}

/**
 * Makes the node the session's owner, and marks the turns that an earlier owner left open as `interrupted`, in one
 * transaction. The row is locked before anything is read, so that no commit intervenes.
 * @param seizes whether to take the session even from an available owner
 * @returns undefined: there is no such session, or another node owns it
 */
export async function claimSession(
  client: Client,
  sessionId: string,
  { lease, seizes }: { lease: number; seizes: boolean },
): Promise<SessionOwnership | undefined> {
  return runInTransaction(client, async () => {
    const { rows } = await client.query<OwnerRow>(`${SELECT_OWNER} FOR NO KEY UPDATE OF sessions`, [
      toTextParameter(sessionId),
    ])
    const row = rows[0]
    if (row === undefined) return undefined
    const isOthers = row.is_owned && row.owner !== lease
    if (isOthers && !seizes && !isReleased(row)) return undefined
    if (!row.is_owned && !(await endIfOver(client, row.owner))) return undefined
    await transferOwnership(client, row, lease)
    const wasLost = row.owner > 0 && !row.is_owned && !isReleased(row)
    return { epoch: row.epoch + 1, wasLost }
  })
}

/** Ends a lease that has expired. @returns whether the lease has ended; if not, it was renewed meanwhile */
async function endIfOver(client: Client, lease: number): Promise<boolean> {
  await client.query(`UPDATE llm_proxy.proxies SET ended = 1 WHERE id = $1 AND ${IS_OVER}`, [lease])
  const { rowCount } = await client.query('SELECT 1 FROM llm_proxy.proxies WHERE id = $1 AND ended = 0', [
    lease,
  ])
  return rowCount === 0
}

/**
 * Removes the owner of sessions with open turns whose owner's lease has ended, and marks these turns as `interrupted`.
 * @param over expired leases, which are ended first
 * @param withUnowned whether to include sessions that never had an owner
 */
export async function freeSessions(
  client: Client,
  over: readonly number[],
  withUnowned = false,
): Promise<void> {
  while ((await freeSomeSessions(client, over, withUnowned)) > 0);
}

/** The maximum number of sessions freed by one transaction, for which other tasks of the connection wait. */
const FREED_SESSIONS = 100

/** Runs one step of {@link freeSessions}. @returns the number of sessions freed; 0: there are no more */
export function freeSomeSessions(
  client: Client,
  over: readonly number[],
  withUnowned = false,
): Promise<number> {
  return runInTransaction(client, async () => {
    await client.query(`UPDATE llm_proxy.proxies SET ended = 1 WHERE id = ANY($1::bigint[]) AND ${IS_OVER}`, [
      over,
    ])
    const { rows } = await client.query<OwnerRow>(
      `SELECT id, tree, epoch FROM llm_proxy.sessions WHERE open_turns > 0 AND (owner > 0 OR $1)
         AND NOT EXISTS (SELECT 1 FROM llm_proxy.proxies WHERE proxies.id = owner AND ended = 0)
       ORDER BY id LIMIT ${FREED_SESSIONS} FOR NO KEY UPDATE SKIP LOCKED`,
      [withUnowned],
    )
    for (const row of rows) await transferOwnership(client, row, 0)
    return rows.length
  })
}

/** Changes the owner, and marks open turns as `interrupted`. The session's row must be locked. */
async function transferOwnership(
  client: Client,
  { id, tree }: Pick<OwnerRow, 'id' | 'tree'>,
  owner: number,
): Promise<void> {
  const { rowCount: closed } = await client.query(
    "UPDATE llm_proxy.turns SET status = 'interrupted' WHERE tree = $1 AND status = 'open'",
    [tree],
  )
  await client.query(
    `UPDATE llm_proxy.sessions SET owner = $2, epoch = epoch + 1, version = version + 1, open_turns = 0,
       failed_turns = failed_turns + $3 WHERE id = $1`,
    [id, owner, closed],
  )
}
