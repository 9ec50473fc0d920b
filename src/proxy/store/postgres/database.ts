/** Opens the database for the writer and the readers. */
import { setTimeout as delay } from 'node:timers/promises'
import type { Client } from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import type { SchemaChange } from '../common/calls.ts'
import type { Durability } from '../port/turn-store.ts'
import { connect, explain, queryDurability, rejectSharedSessions } from './connection.ts'
import { lockLease } from './lease.ts'
import { checkSchema, migrate } from './migrate.ts'
import { createReader } from './reader.ts'
import { Writer } from './writer.ts'
import { type DatabaseReconnector, RETRY_MS } from './writer-connection.ts'

/** Maximum number of connections for reads. */
const READERS = 4

/**
 * The time limit of a query of the reader, after which it is repeated once on another connection: nothing else reveals
 * a connection that ended without a packet. The longest queries, of millions of sessions, take seconds.
 */
const READ_TIMEOUT_MS = 60_000

/**
 * Opens the writer: migrates the database and acquires a lease.
 * @param options `name` is that of the machine or the pod
 * @throws ProxyError `start_failed`
 */
export async function openForWriting(options: {
  url: string
  durability: Durability
  name: string
  cacheBytes: number
}): Promise<{ writer: Writer; migrated: SchemaChange | undefined }> {
  const { url, durability, name, cacheBytes } = options
  return explain(url, async () => {
    const client = await connect(url, { writes: true })
    try {
      await rejectSharedSessions(client, () => connect(url))
      await queryDurability(client, durability)
      const migrated = await migrate(client)
      const reconnectAs: DatabaseReconnector = async (patienceMs, lease) => {
        const again = await reconnect(url, durability, patienceMs)
        await lockLease(again, lease).catch(() => {})
        return again
      }
      const writer = await Writer.open({ client, reconnect: reconnectAs, name, cacheBytes })
      return { writer, migrated }
    } catch (error) {
      await client.end().catch(() => {})
      throw error
    }
  })
}

/** Opens the reader, after it has checked the schema. @throws ProxyError `start_failed` */
export async function openForReading(url: string, cacheBytes: number) {
  const reader = createReader(() => connect(url, { timeoutMs: READ_TIMEOUT_MS }), cacheBytes, READERS)
  return explain(url, async () => {
    const client = await connect(url)
    try {
      await checkSchema(client)
    } finally {
      await client.end()
    }
    return reader
  })
}

/**
 * Opens a connection for the writer, and retries this for `patienceMs`.
 * @throws ProxyError `store_failed` with the last error
 */
export async function reconnect(url: string, durability: Durability, patienceMs: number): Promise<Client> {
  const sinceMs = performance.now()
  while (true) {
    try {
      return await connectForWriting(url, durability)
    } catch (cause) {
      if (performance.now() - sinceMs < patienceMs) await delay(RETRY_MS)
      else
        throw new ProxyError('store_failed', `the database is unavailable: ${(cause as Error).message}`, {
          cause,
        })
    }
  }
}

async function connectForWriting(url: string, durability: Durability): Promise<Client> {
  const client = await connect(url, { writes: true })
  try {
    await queryDurability(client, durability)
    return client
  } catch (error) {
    await client.end().catch(() => {})
    throw error
  }
}
