/** The SQLite store: a {@link TurnStore} on a file, and a reader beside it. */
import type { Durability, TurnStore } from '../port/turn-store.ts'
import type { ReadMethods } from '../record/reader.ts'
import { type SpawnThread, StoreThread, spawnFrom } from '../record/store-thread.ts'
import { ThreadReader } from '../record/thread-reader.ts'
import { ThreadStore } from '../record/thread-store.ts'
import type { WriteMethods } from '../record/write-methods.ts'
import type { ReaderData } from './reader-thread.ts'
import type { WriterData } from './writer-thread.ts'

export interface SqliteStoreOptions {
  /** The database file; it and its folder are created if need be. */
  path: string
  /** What an acknowledged turn survives: loss of power, or only the sudden end of the process. */
  durability: Durability
  /** Called after each commit with how many operations shared it, and how long the first of them took. */
  onCommit?: (operations: number, tookMs: number) => void
  /** Whether to keep an index for the search beside the file, from the first search on. */
  searchIndex?: boolean
  /** Called when that could not be kept up to date: the search looks at every turn that is not in it. */
  onIndexFailed?: ((error: Error) => void) | undefined
  /** Called when the store has been closed, and nothing has its files open any more. */
  onClosed?: () => void
  /** Starts the store's threads. Default: threads of this process. */
  spawn?: SpawnThread | undefined
}

const spawnWorker = spawnFrom({
  writer: new URL('./writer-thread.ts', import.meta.url),
  reader: new URL('./reader-thread.ts', import.meta.url),
})

/** Token ids that each thread remembers, so that it need not put them together again for the next turn. */
const TOKEN_CACHE_BYTES = 64 * 1024 * 1024

/**
 * Opens the database for this process alone (readers excepted), brings it up to date and marks turns that a crash left
 * open as `interrupted`.
 * @throws ProxyError `start_failed` saying how to mend it
 */
export async function openSqliteStore({
  path,
  durability,
  onCommit,
  onClosed,
  searchIndex = false,
  onIndexFailed = () => {},
  spawn = spawnWorker,
}: SqliteStoreOptions): Promise<TurnStore> {
  const writerData: WriterData = { path, durability, cacheBytes: TOKEN_CACHE_BYTES }
  const writer = await StoreThread.start<WriteMethods>('writer', writerData, { onReplies: onCommit, spawn })
  try {
    const store = new ThreadStore(writer, await startReader(path, searchIndex, spawn), { onClosed })
    if (searchIndex) store.keepIndex(onIndexFailed)
    return store
  } catch (error) {
    await writer.close()
    throw error
  }
}

/**
 * Opens the database to read it only, whether or not a server writes to it.
 * @throws ProxyError `start_failed` saying how to mend it
 */
export async function openSqliteReader(
  path: string,
  spawn: SpawnThread = spawnWorker,
): Promise<ThreadReader> {
  return new ThreadReader(await startReader(path, false, spawn))
}

function startReader(path: string, indexes: boolean, spawn: SpawnThread): Promise<StoreThread<ReadMethods>> {
  const readerData: ReaderData = { path, cacheBytes: TOKEN_CACHE_BYTES, indexes }
  return StoreThread.start<ReadMethods>('reader', readerData, { spawn })
}
