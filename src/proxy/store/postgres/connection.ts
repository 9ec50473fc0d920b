/** Connections to the database, and what to do when there is none. */
import pg from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import type { Durability } from '../port/turn-store.ts'

/** A connection that is silent for so long is asked by TCP whether it is still there. */
const KEEP_ALIVE_MS = 10_000
const CONNECT_MS = 10_000

/** Sent by the server as it ends a connection, https://www.postgresql.org/docs/current/errcodes-appendix.html. */
const ENDED = /^(08|57P0|25P03)/

const INT8 = 20
const INT8_ARRAY = 1016

/** Times, ids and counts are below 2^53. */
const types: pg.CustomTypesConfig = {
  getTypeParser: (oid: number, format?: 'text' | 'binary') => {
    if (format !== 'binary' && oid === INT8) return Number
    if (format !== 'binary' && oid === INT8_ARRAY) return numbersOf
    return pg.types.getTypeParser(oid, format as 'text')
  },
}

/** Of an array without nulls. */
function numbersOf(text: string): number[] {
  return text === '{}' ? [] : text.slice(1, -1).split(',').map(Number)
}

/** @param answerMs within which the server must answer; default: it may take any time */
export function clientOf(url: string, answerMs?: number): pg.Client {
  const client = new pg.Client({
    query_timeout: answerMs,
    connectionString: url,
    application_name: 'llm-proxy',
    keepAlive: true,
    keepAliveInitialDelayMillis: KEEP_ALIVE_MS,
    connectionTimeoutMillis: CONNECT_MS,
    types,
  })
  // Who asks it next is told.
  client.on('error', () => {})
  return client
}

/** @param answerMs as {@link clientOf} has it */
export async function connect(url: string, answerMs?: number): Promise<pg.Client> {
  const client = clientOf(url, answerMs)
  try {
    await client.connect()
    return client
  } catch (error) {
    await client.end().catch(() => {})
    throw error
  }
}

/** Whether the connection is gone, so that nobody knows what became of what it was told last. */
export function isConnectionLoss(error: unknown): boolean {
  if (error instanceof ProxyError) return false
  const code = (error as { code?: unknown }).code
  // The driver's own errors ("Connection terminated unexpectedly") have no code, the system's (ECONNRESET) one of letters.
  return typeof code !== 'string' || ENDED.test(code) || !/^[0-9A-Z]{5}$/.test(code)
}

/** All or nothing. A proxy that stops in the middle of it keeps its locks from the others for no longer than this. */
const SILENT_MS = 3_000

/** @param run asks the client */
export async function inTransaction<T>(client: pg.Client, run: () => Promise<T>): Promise<T> {
  await client.query(`BEGIN; SET LOCAL idle_in_transaction_session_timeout = ${SILENT_MS}`)
  try {
    const result = await run()
    await client.query('COMMIT')
    return result
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw error
  }
}

/** What the server promises of a commit. */
export interface Promises {
  readonly server: string
  readonly fsync: string
  readonly fullPageWrites: string
  readonly synchronousCommit: string
  /** Empty: none. */
  readonly synchronousStandbys: string
}

/**
 * Reads what the server promises, and asks it to wait for its disk where it would not.
 * @param durability `power`: of the server's loss of power; `process`: what the server promises by itself
 * @throws ProxyError `start_failed` where an acknowledged turn would not survive the server's loss of power
 */
export async function askForDurability(client: pg.Client, durability: Durability): Promise<Promises> {
  const shown = async (name: string) => {
    const { rows } = await client.query<Record<string, string>>(`SHOW ${name}`)
    return Object.values(rows[0]!)[0]!
  }
  const encoding = await shown('server_encoding')
  if (encoding !== 'UTF8') {
    throw new ProxyError(
      'start_failed',
      `the database has encoding ${encoding}: make one with ENCODING 'UTF8'`,
    )
  }
  const [fsync, fullPageWrites] = [await shown('fsync'), await shown('full_page_writes')]
  if (durability === 'power') {
    if (fsync === 'off' || fullPageWrites === 'off') {
      throw new ProxyError(
        'start_failed',
        `the database server has fsync ${fsync} and full_page_writes ${fullPageWrites}: acknowledged turns would not ` +
          'survive its loss of power. Turn both on, or give --durability process',
      )
    }
    if ((await shown('synchronous_commit')) === 'off') await client.query('SET synchronous_commit = on')
  }
  return {
    server: await shown('server_version'),
    fsync,
    fullPageWrites,
    synchronousCommit: await shown('synchronous_commit'),
    synchronousStandbys: await shown('synchronous_standby_names'),
  }
}

/** @throws ProxyError `start_failed` saying how to mend it */
export async function explained<T>(url: string, open: () => Promise<T>): Promise<T> {
  try {
    return await open()
  } catch (error) {
    if (error instanceof ProxyError) throw error
    const { code, message } = error as { code?: string; message: string }
    const advice = ADVICE[code ?? ''] ?? `cannot be reached: ${message || code}`
    throw new ProxyError('start_failed', `the database ${withoutPassword(url)} ${advice}`, { cause: error })
  }
}

/** For messages. */
export function withoutPassword(url: string): string {
  if (!URL.canParse(url)) return 'that --db names'
  const parsed = new URL(url)
  return `${parsed.protocol}//${parsed.username}${parsed.username && '@'}${parsed.host}${parsed.pathname}`
}

const ADVICE: Readonly<Record<string, string>> = {
  '28P01': 'refuses the password: mend it in --db, or in PGPASSWORD',
  '28000': 'refuses this user: see pg_hba.conf of the server',
  '3D000': 'does not exist: make it, with createdb',
  '42501': 'lets this user make no tables: grant CREATE on the database, or on the schema llm_proxy',
  '53300': 'has no connection left: raise max_connections, or end other clients; a proxy needs six',
  ECONNREFUSED: 'does not answer: nothing listens there',
  ENOTFOUND: 'does not answer: there is no such host',
}
