/** Opens the record for its writer and its readers. */
import { setTimeout as delay } from 'node:timers/promises'
import type { Client } from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import type { Durability } from './connection.ts'
import { askForDurability, connect, explained } from './connection.ts'
import { Reader } from './reader.ts'
import { checkSchema, migrate } from './schema.ts'
import { Writer } from './writer.ts'

/** The advisory lock of the process that writes. */
const WRITER_LOCK = 0x6c6c6d71

/** Connections for reads. */
const READERS = 4

const RETRY_MS = 250

/** How long the lock of a connection that is gone is waited for: without it nothing is wrong, for the epoch holds. */
const LOCK_TRIES = 20

export async function openForWriting(options: {
  url: string
  durability: Durability
  cacheBytes: number
}): Promise<Writer> {
  const { url, durability, cacheBytes } = options
  return explained(url, async () => {
    const client = await connect(url)
    try {
      await askForDurability(client, durability)
      await migrate(client)
      if (!(await tryLock(client))) throw inUse(url)
      return await Writer.open(client, (patienceMs) => reconnect(url, durability, patienceMs), cacheBytes)
    } catch (error) {
      await client.end().catch(() => {})
      throw error
    }
  })
}

export async function openForReading(url: string, cacheBytes: number): Promise<Reader> {
  const reader = new Reader(() => connect(url), cacheBytes, READERS)
  return explained(url, async () => {
    const client = await connect(url)
    try {
      await checkSchema(client)
    } finally {
      await client.end()
    }
    return reader
  })
}

async function reconnect(url: string, durability: Durability, patienceMs: number): Promise<Client> {
  const sinceMs = performance.now()
  while (true) {
    try {
      const client = await connect(url)
      await askForDurability(client, durability)
      for (let tries = 0; tries < LOCK_TRIES && !(await tryLock(client)); tries += 1) await delay(RETRY_MS)
      return client
    } catch (cause) {
      if (performance.now() - sinceMs < patienceMs) await delay(RETRY_MS)
      else
        throw new ProxyError('store_failed', `the database is away: ${(cause as Error).message}`, { cause })
    }
  }
}

async function tryLock(client: Client): Promise<boolean> {
  const sql = 'SELECT pg_try_advisory_lock($1) AS locked'
  const { rows } = await client.query<{ locked: boolean }>(sql, [WRITER_LOCK])
  return rows[0]!.locked
}

function inUse(url: string): ProxyError {
  const database = URL.canParse(url) ? new URL(url).pathname.slice(1) : url
  const message = `another llm-proxy writes to the database ${database}: stop it, or name another database`
  return new ProxyError('start_failed', message)
}
