/** The SQLite store: a {@link TurnStore} on a file, and a separate reader. */
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import type { ReaderMethods } from '../common/reader.ts'
import { createThreadSpawner, StoreThread, type ThreadSpawner } from '../common/store-thread.ts'
import { connectReader, type ThreadReader } from '../common/thread-reader.ts'
import { ThreadStore } from '../common/thread-store.ts'
import type { WriteMethods } from '../common/write-methods.ts'
import type { Durability, TurnStore } from '../port/turn-store.ts'
import type { SqliteReaderConfig } from './reader-thread.ts'
import type { SqliteWriterConfig } from './writer-thread.ts'

export interface SqliteStoreOptions {
  /** The database file, created with its folder if it does not exist. */
  path: string
  /** The durability of a commit: against loss of power, or only against a crash of the process. */
  durability: Durability
  /** Whether the process serves agents, rather than being a command that only changes sessions. Default: true. */
  servesAgents?: boolean
  /** Called after each commit with the number of its operations, and the latency of the first of them. */
  onCommit?: (operations: number, tookMs: number) => void
  /** Whether to maintain a search index beside the file, created by the first search. */
  searchIndex?: boolean
  logger?: Logger | undefined
  /** Called when the store has been closed and its files are no longer open. */
  onClosed?: () => void
  /** Starts the store's threads. Default: threads of this process. */
  spawn?: ThreadSpawner | undefined
}

const spawnWorker = createThreadSpawner({
  writer: new URL('./writer-thread.ts', import.meta.url),
  reader: new URL('./reader-thread.ts', import.meta.url),
})

/** The memory of each thread for cached token ids, which it would otherwise reassemble for the next turn. */
const TOKEN_CACHE_BYTES = 64 * 1024 * 1024

/**
 * Opens the database exclusively for this process (readers excepted), migrates it and marks turns that a crash left
 * open as `interrupted`.
 * @throws ProxyError `start_failed` with a remedy
 */
export async function openSqliteStore({
  path,
  durability,
  servesAgents = true,
  onCommit,
  onClosed,
  searchIndex = false,
  logger,
  spawn = spawnWorker,
}: SqliteStoreOptions): Promise<TurnStore> {
  const writerData: SqliteWriterConfig = { path, durability, servesAgents, cacheBytes: TOKEN_CACHE_BYTES }
  const writer = await StoreThread.start<WriteMethods>('writer', writerData, { onReplies: onCommit, spawn })
  if (writer.migrated) logEvent(logger, 'schema_migrated', writer.migrated)
  try {
    const store = ThreadStore.connect(writer, await startReader(path, searchIndex, spawn), { onClosed })
    if (searchIndex) store.keepIndex((err) => logEvent(logger, 'search_index_failed', { err }))
    return store
  } catch (error) {
    await writer.close()
    throw error
  }
}

/**
 * Opens the database read-only, whether or not a server writes to it.
 * @throws ProxyError `start_failed` with a remedy
 */
export async function openSqliteReader(
  path: string,
  spawn: ThreadSpawner = spawnWorker,
): Promise<ThreadReader> {
  return connectReader(await startReader(path, false, spawn))
}

function startReader(
  path: string,
  indexes: boolean,
  spawn: ThreadSpawner,
): Promise<StoreThread<ReaderMethods>> {
  const readerData: SqliteReaderConfig = { path, cacheBytes: TOKEN_CACHE_BYTES, indexes }
  return StoreThread.start<ReaderMethods>('reader', readerData, { spawn })
}
