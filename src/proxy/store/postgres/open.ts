/** The store in PostgreSQL: a {@link TurnStore} on a database, and a reader beside it. */

import { ProxyError } from '../../../base/errors.ts'
import type { TurnStore } from '../port/turn-store.ts'
import type { ReadMethods } from '../record/reader.ts'
import { type SpawnThread, StoreThread, spawnFrom } from '../record/store-thread.ts'
import { ThreadReader } from '../record/thread-reader.ts'
import { ThreadStore } from '../record/thread-store.ts'
import type { WriteMethods } from '../record/write-methods.ts'
import {
  askForDurability,
  connect,
  type Durability,
  explained,
  type Promises,
  withoutPassword,
} from './connection.ts'
import type { ReaderData } from './reader-thread.ts'
import type { WriterData } from './writer-thread.ts'

export interface PostgresStoreOptions {
  /** `postgres://user:password@host:port/database`. */
  url: string
  durability: Durability
  /** Called after each commit with how many operations shared it, and how long the first of them took. */
  onCommit?: (operations: number, tookMs: number) => void
  /** Starts the store's threads. Default: threads of this process. */
  spawn?: SpawnThread | undefined
}

const spawnWorker = spawnFrom({
  writer: new URL('./writer-thread.ts', import.meta.url),
  reader: new URL('./reader-thread.ts', import.meta.url),
})

/** Token ids that each thread remembers. */
const TOKEN_CACHE_BYTES = 64 * 1024 * 1024

/**
 * Whether `--db` names a database of PostgreSQL, and no file.
 * @throws ProxyError `start_failed` for one of another kind
 */
export function isPostgresUrl(db: string): boolean {
  const [, scheme] = /^([a-z][a-z0-9+.-]+):\/\//i.exec(db) ?? []
  if (scheme === undefined) return false
  if (/^postgres(ql)?$/i.test(scheme)) return true
  throw new ProxyError(
    'start_failed',
    `--db names a ${scheme} database: a file or postgres://… can be recorded in`,
  )
}

/** As it may be shown: without the password. */
export function databaseName(db: string): string {
  return isPostgresUrl(db) ? withoutPassword(db) : db
}

/** What the server of a database promises of a commit. @throws ProxyError `start_failed` */
export function lookAtPostgres(url: string, durability: Durability): Promise<Promises> {
  return explained(url, async () => {
    const client = await connect(url)
    try {
      return await askForDurability(client, durability)
    } finally {
      await client.end()
    }
  })
}

/**
 * Takes the record over for this process alone (readers excepted), brings it up to date and marks turns that a crash left
 * open as `interrupted`.
 * @throws ProxyError `start_failed` saying how to mend it
 */
export async function openPostgresStore({
  url,
  durability,
  onCommit,
  spawn = spawnWorker,
}: PostgresStoreOptions): Promise<TurnStore> {
  const writerData: WriterData = { url, durability, cacheBytes: TOKEN_CACHE_BYTES }
  const writer = await StoreThread.start<WriteMethods>('writer', writerData, { onReplies: onCommit, spawn })
  try {
    return new ThreadStore(writer, await openPostgresReader(url, spawn))
  } catch (error) {
    await writer.close()
    throw error
  }
}

/** Opens the record to read it only, whether or not a server writes to it. @throws ProxyError `start_failed` */
export async function openPostgresReader(
  url: string,
  spawn: SpawnThread = spawnWorker,
): Promise<ThreadReader> {
  const readerData: ReaderData = { url, cacheBytes: TOKEN_CACHE_BYTES }
  return new ThreadReader(await StoreThread.start<ReadMethods>('reader', readerData, { spawn }))
}
