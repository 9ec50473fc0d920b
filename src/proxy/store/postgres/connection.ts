/** Connections to the database, and the classification of their errors. */
import type { Socket } from 'node:net'
import pg from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import { withoutPassword } from '../port/database-name.ts'
import type { Durability } from '../port/turn-store.ts'

/** The idle time after which TCP probes a connection. */
const KEEP_ALIVE_MS = 10_000
const CONNECT_MS = 10_000

/**
 * Matches the SQLSTATEs with which a server ends a connection,
 * https://www.postgresql.org/docs/current/errcodes-appendix.html. A standby, or a primary that was demoted, sends
 * 25006: the connection leads to the wrong server.
 */
const ENDED = /^(08|57P0|25P03|25P04|25006)/

/**
 * Matches a SQLSTATE. Every SQLSTATE has a digit; error codes of the system, some of the same length (EPIPE), have
 * none.
 */
const SQLSTATE = /^(?=.*\d)[0-9A-Z]{5}$/

/**
 * The code of the error for a server that rejects writes. It counts as a connection loss (see {@link
 * isConnectionLoss}), so the writer reconnects.
 */
const READ_ONLY = 'READ_ONLY_SERVER'

const INT8 = 20
const INT8_ARRAY = 1016

/** Parses 64-bit integers as numbers: times, ids and counts are below 2^53. */
const types: pg.CustomTypesConfig = {
  getTypeParser: (oid: number, format?: 'text' | 'binary') => {
    if (format !== 'binary' && oid === INT8) return Number
    if (format !== 'binary' && oid === INT8_ARRAY) return parseArray
    return pg.types.getTypeParser(oid, format as 'text')
  },
}

/** Parses an array without nulls. */
function parseArray(text: string): number[] {
  return text === '{}' ? [] : text.slice(1, -1).split(',').map(Number)
}

export interface ConnectOptions {
  /** The time within which the server must respond to a query. Default: no limit. */
  timeoutMs?: number
  /** Whether to reject a server that rejects writes. */
  writes?: boolean
}

function createClient(url: string, timeoutMs?: number): pg.Client {
  const client = new pg.Client({
    query_timeout: timeoutMs,
    connectionString: url,
    application_name: 'llm-proxy',
    keepAlive: true,
    keepAliveInitialDelayMillis: KEEP_ALIVE_MS,
    connectionTimeoutMillis: CONNECT_MS,
    types,
  })
  // The next query on this client fails with the error.
  client.on('error', () => {})
  return client
}

/** The difference between the client's timeout and the server's shorter one, so that the server reports the error. */
const TIMEOUT_MARGIN_MS = 500

/**
 * Removes limits that a database or a role may set for ad-hoc queries. They must not apply to the proxy, as they do not
 * apply to pg_dump: its connections stay idle between requests, its commits wait for locks, and {@link
 * runInTransaction} sets its own limit. `transaction_timeout` exists since PostgreSQL 17, so the names are looked up.
 */
const REMOVE_TIMEOUTS = `
  SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout',
    'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')`

/**
 * Opens a connection. Transactions are `read committed`, whatever the default of the database is: a commit first locks
 * the rows that it changes, and must then read their latest version. The time limit is also set at the server, because
 * it must end a statement that waits for a lock; closing the connection does not.
 * @throws Error of the driver or the system; for a server that rejects writes, an error that is a connection loss (see
 *   {@link isConnectionLoss})
 */
export async function connect(url: string, options: ConnectOptions = {}): Promise<pg.Client> {
  const { timeoutMs, writes = false } = options
  const client = createClient(url, timeoutMs)
  try {
    await client.connect()
    const timeout =
      timeoutMs === undefined ? '' : `; SET statement_timeout = ${timeoutMs - TIMEOUT_MARGIN_MS}`
    await client.query(`${REMOVE_TIMEOUTS}; SET default_transaction_isolation = 'read committed'${timeout}`)
    if (writes) await checkWritable(client)
    return client
  } catch (error) {
    await client.end().catch(() => {})
    throw error
  }
}

/** The server process of a connection. A later process may have the same pid. */
export interface ServerProcess {
  readonly pid: number
  /** Seconds since the epoch, as the server writes them. */
  readonly started_s: string
}

/** Queries the server process of a connection. */
export async function queryServerProcess(client: pg.Client): Promise<ServerProcess> {
  const { rows } = await client.query<ServerProcess>(
    `SELECT pid, extract(epoch FROM backend_start)::text AS started_s FROM pg_stat_activity
     WHERE pid = pg_backend_pid()`,
  )
  return rows[0]!
}

/**
 * Returns whether a server process of this user executes a statement, or may: with `track_activities` off, the server
 * does not report it.
 * @param client any other connection
 */
export async function isExecuting(client: pg.Client, { pid, started_s }: ServerProcess): Promise<boolean> {
  const { rowCount } = await client.query(
    `SELECT 1 FROM pg_stat_activity
     WHERE pid = $1 AND extract(epoch FROM backend_start)::text = $2 AND state IN ('active', 'disabled')`,
    [pid, started_s],
  )
  return rowCount === 1
}

/** Closes a connection at once. Its running query fails with a connection loss (see {@link isConnectionLoss}). */
export function destroyConnection(client: pg.Client): void {
  const { connection } = client as unknown as { connection: { stream: Socket } }
  connection.stream.destroy()
}

/** Rejects a read-only server, as libpq does for `target_session_attrs=read-write`. */
async function checkWritable(client: pg.Client): Promise<void> {
  const { rows } = await client.query<{ is_standby: boolean; read_only: string }>(
    "SELECT pg_is_in_recovery() AS is_standby, current_setting('transaction_read_only') AS read_only",
  )
  const { is_standby: isStandby, read_only: readOnly } = rows[0]!
  if (!isStandby && readOnly !== 'on') return
  const reason = isStandby ? 'it is a standby' : 'default_transaction_read_only is on'
  throw Object.assign(new Error(`the server rejects writes: ${reason}`), { code: READ_ONLY })
}

/**
 * Returns whether an error was thrown by the program itself, such as the RangeError of the driver for parameters that
 * are longer than the longest string. A repetition would fail again.
 */
export function isProgramError(error: unknown): boolean {
  const { code } = error as { code?: unknown }
  return (
    error instanceof RangeError ||
    error instanceof TypeError ||
    error instanceof SyntaxError ||
    code === 'ERR_STRING_TOO_LONG' ||
    code === 'ERR_ASSERTION'
  )
}

/** Returns whether the connection is lost, so that the outcome of the last statement is unknown. */
export function isConnectionLoss(error: unknown): boolean {
  if (error instanceof ProxyError || isProgramError(error)) return false
  const code = (error as { code?: unknown }).code
  // The driver's own errors ("Connection terminated unexpectedly") have no code.
  return typeof code !== 'string' || ENDED.test(code) || !SQLSTATE.test(code)
}

/**
 * The idle limit of a transaction, after which the server ends it: a node that stalls in one blocks the other nodes no
 * longer than this.
 */
const IDLE_TRANSACTION_MS = 3_000

/** Runs queries in one transaction. @param run sends the queries */
export async function runInTransaction<T>(client: pg.Client, run: () => Promise<T>): Promise<T> {
  await client.query(`BEGIN; SET LOCAL idle_in_transaction_session_timeout = ${IDLE_TRANSACTION_MS}`)
  try {
    const result = await run()
    await client.query('COMMIT')
    return result
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw error
  }
}

/** The maximum number of queries that check whether a connection keeps its server process. */
const PROBES = 4

/**
 * Rejects a connection pool that assigns each transaction another server process, as PgBouncer does in transaction
 * mode: session settings, prepared statements and advisory locks would belong to other clients. Such a pool is detected
 * if one process serves two connections at the same time, or if the process of a connection changes.
 * @param client an idle client
 * @param connectAgain opens a second connection
 * @throws ProxyError `start_failed`
 */
export async function rejectSharedSessions(
  client: pg.Client,
  connectAgain: () => Promise<pg.Client>,
): Promise<void> {
  const readPid = async (from: pg.Client) => {
    const { rows } = await from.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')
    return rows[0]!.pid
  }
  const pid = await readPid(client)
  const other = await connectAgain()
  try {
    await other.query('BEGIN')
    let isShared = (await readPid(other)) === pid
    for (let probe = 0; !isShared && probe < PROBES; probe += 1) isShared = (await readPid(client)) !== pid
    if (!isShared) return
  } finally {
    await other.end().catch(() => {})
  }
  throw new ProxyError(
    'start_failed',
    'the database is behind a connection pool that shares sessions among clients: set its pool_mode to session ' +
      '(PgBouncer), or name the server itself in --db',
  )
}

/** The version of the server, and its settings that determine whether a commit survives a loss of power. */
export interface DurabilitySettings {
  readonly server: string
  readonly fsync: string
  readonly full_page_writes: string
  readonly synchronous_commit: string
  /** Empty: none. */
  readonly synchronous_standby_names: string
}

/**
 * Reads the durability settings of the server. With durability `power`, it sets `synchronous_commit` for this
 * connection if the server has it off.
 * @param durability `power`: commits survive a power loss of the server; `process`: the server's settings decide
 * @throws ProxyError `start_failed` if an acknowledged turn would not survive a power loss of the server, or if the
 *   encoding of the database is not UTF-8
 */
export async function queryDurability(
  client: pg.Client,
  durability: Durability,
): Promise<DurabilitySettings> {
  const showSetting = async (name: string) => {
    const { rows } = await client.query<Record<string, string>>(`SHOW ${name}`)
    return Object.values(rows[0]!)[0]!
  }
  const encoding = await showSetting('server_encoding')
  if (encoding !== 'UTF8') {
    throw new ProxyError(
      'start_failed',
      `the database has encoding ${encoding}: create one with ENCODING 'UTF8'`,
    )
  }
  const [fsync, fullPageWrites] = [await showSetting('fsync'), await showSetting('full_page_writes')]
  if (durability === 'power') {
    if (fsync === 'off' || fullPageWrites === 'off') {
      throw new ProxyError(
        'start_failed',
        `the database server has fsync ${fsync} and full_page_writes ${fullPageWrites}: acknowledged turns would not ` +
          'survive its loss of power. Turn both on, or set --durability process',
      )
    }
    if ((await showSetting('synchronous_commit')) === 'off') await client.query('SET synchronous_commit = on')
  }
  return {
    server: await showSetting('server_version'),
    fsync,
    full_page_writes: fullPageWrites,
    synchronous_commit: await showSetting('synchronous_commit'),
    synchronous_standby_names: await showSetting('synchronous_standby_names'),
  }
}

/** Runs `open`, and converts its failure. @throws ProxyError `start_failed` with a remedy */
export async function explain<T>(url: string, open: () => Promise<T>): Promise<T> {
  try {
    return await open()
  } catch (error) {
    if (error instanceof ProxyError) throw error
    const { code, message } = error as { code?: string; message: string }
    const advice = ADVICE[code ?? ''] ?? `cannot be reached: ${message || code}`
    throw new ProxyError('start_failed', `the database ${withoutPassword(url)} ${advice}`, { cause: error })
  }
}

const ADVICE: Readonly<Record<string, string>> = {
  '28P01': 'rejects the password: correct it in --db, or in PGPASSWORD',
  '28000': 'rejects this user: see pg_hba.conf of the server',
  '3D000': 'does not exist: create it, with createdb',
  '42501':
    'does not allow this user to create tables: grant CREATE on the database to the role, or make it the owner',
  '53300': 'has no connection left: raise max_connections, or end other clients; a proxy needs six',
  [READ_ONLY]:
    'rejects writes: name the primary, or a role and database without default_transaction_read_only',
  ECONNREFUSED: 'refuses the connection: no server listens at this address',
  ENOTFOUND: 'cannot be reached: the host name is unknown',
}

/** A function that sends queries over a connection. */
type Query = (client: pg.Client, ...args: never[]) => Promise<unknown>

type QueryMethod<Q> = Q extends (client: pg.Client, ...args: infer A) => infer R ? (...args: A) => R : never

/** Returns the queries as methods. @param run provides the connection; it may run a query twice */
export function bindQueries<Q extends Record<string, Query>>(
  queries: Q,
  run: (query: (client: pg.Client) => Promise<unknown>) => Promise<unknown>,
): { [M in keyof Q]: QueryMethod<Q[M]> } {
  const bound = Object.entries<Query>(queries).map(([name, query]) => {
    return [name, (...args: never[]) => run((client) => query(client, ...args))]
  })
  return Object.fromEntries(bound)
}
