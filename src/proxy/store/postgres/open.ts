/** The PostgreSQL store: a {@link TurnStore} on a database, and a separate reader. */
import { hostname } from 'node:os'

import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import type { ReaderMethods } from '../common/reader.ts'
import { createThreadSpawner, StoreThread, type ThreadSpawner } from '../common/store-thread.ts'
import { connectReader, type ThreadReader } from '../common/thread-reader.ts'
import { ThreadStore } from '../common/thread-store.ts'
import type { Durability, TurnStore } from '../port/turn-store.ts'
import { connect, type DurabilitySettings, explain, queryDurability } from './connection.ts'
import { PostgresNodeCoordination } from './node-coordination.ts'
import type { PostgresReaderConfig } from './reader-thread.ts'
import type { NodeWriteMethods } from './writer-loop.ts'
import type { PostgresWriterConfig } from './writer-thread.ts'

export interface PostgresStoreOptions {
  /** `postgres://user:password@host:port/database`. */
  url: string
  durability: Durability
  /**
   * The name of the machine or pod. Sessions of its exited processes become free immediately. Default: the host name.
   */
  name?: string
  /** Called after each commit with the number of its operations, and the latency of the first of them. */
  onCommit?: (operations: number, tookMs: number) => void
  /** Whether to maintain the search index, from the first search on. */
  searchIndex?: boolean
  logger?: Logger | undefined
  /** Starts the store's threads. Default: threads of this process. */
  spawn?: ThreadSpawner | undefined
}

const spawnWorker = createThreadSpawner({
  writer: new URL('./writer-thread.ts', import.meta.url),
  reader: new URL('./reader-thread.ts', import.meta.url),
})

/**
 * The time for which a closing thread may wait for the database. A commit itself has no time limit. No acknowledged
 * command is lost, because the store acknowledges a command only after its commit.
 */
const CLOSE_TIMEOUT_MS = 10_000

/** The memory of each thread for cached token ids. */
const TOKEN_CACHE_BYTES = 64 * 1024 * 1024

/** Returns the settings that determine the durability of a commit. @throws ProxyError `start_failed` */
export function openPostgresForInspection(url: string, durability: Durability): Promise<DurabilitySettings> {
  return explain(url, async () => {
    const client = await connect(url)
    try {
      return await queryDurability(client, durability)
    } finally {
      await client.end()
    }
  })
}

/**
 * Migrates the database, acquires a lease, and marks turns that crashed nodes left open as `interrupted`.
 * @throws ProxyError `start_failed` with a remedy
 */
export async function openPostgresStore({
  url,
  durability,
  name = hostname(),
  onCommit,
  searchIndex = false,
  logger,
  spawn = spawnWorker,
}: PostgresStoreOptions): Promise<TurnStore> {
  const writerData: PostgresWriterConfig = { url, durability, name, cacheBytes: TOKEN_CACHE_BYTES }
  const writer = await StoreThread.start<NodeWriteMethods>('writer', writerData, {
    onReplies: onCommit,
    closeTimeoutMs: CLOSE_TIMEOUT_MS,
    spawn,
  })
  if (writer.migrated) logEvent(logger, 'schema_migrated', writer.migrated)
  const coordination = new PostgresNodeCoordination(writer, logger)
  try {
    await coordination.start()
    const reader = await startReader(url, spawn)
    const store = ThreadStore.connect(writer, reader, {
      shared: coordination,
      onClosing: () => coordination.close(),
    })
    if (searchIndex) store.keepIndex((err) => logEvent(logger, 'search_index_failed', { err }))
    return store
  } catch (error) {
    coordination.close()
    await writer.close()
    throw error
  }
}

/** Opens the database for reading only, whether or not a server writes to it. @throws ProxyError `start_failed` */
export async function openPostgresReader(
  url: string,
  spawn: ThreadSpawner = spawnWorker,
): Promise<ThreadReader> {
  return connectReader(await startReader(url, spawn))
}

function startReader(url: string, spawn: ThreadSpawner): Promise<StoreThread<ReaderMethods>> {
  const readerData: PostgresReaderConfig = { url, cacheBytes: TOKEN_CACHE_BYTES }
  return StoreThread.start<ReaderMethods>('reader', readerData, { closeTimeoutMs: CLOSE_TIMEOUT_MS, spawn })
}
