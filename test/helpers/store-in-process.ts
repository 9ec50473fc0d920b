/**
 * The store's threads without threads, each of which costs a tenth of a second of CPU time to start. The store and its
 * messages are the same; `store-threads.test.ts` and all tests of the command line use the threads.
 */
import { EventEmitter } from 'node:events'
import type { Transferable } from 'node:worker_threads'
import Database from 'better-sqlite3'
import { type OpeningReport, toWireError } from '../../src/proxy/store/common/calls.ts'
import {
  type DatabaseReader,
  ReaderLoop,
  type ReaderMessage,
} from '../../src/proxy/store/common/reader-loop.ts'
import type { ThreadPort, ThreadSpawner } from '../../src/proxy/store/common/store-thread.ts'
import type { TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { openForReading, openForWriting } from '../../src/proxy/store/sqlite/database.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { createReader } from '../../src/proxy/store/sqlite/reader.ts'
import type { SqliteReaderConfig } from '../../src/proxy/store/sqlite/reader-thread.ts'
import { migrate } from '../../src/proxy/store/sqlite/schema.ts'
import { Writer } from '../../src/proxy/store/sqlite/writer.ts'
import { WriterLoop, type WriterMessage } from '../../src/proxy/store/sqlite/writer-loop.ts'
import type { SqliteWriterConfig } from '../../src/proxy/store/sqlite/writer-thread.ts'

const CACHE_BYTES = 1024 * 1024

/** A thread port whose thread runs in this process. */
export class InProcess extends EventEmitter implements ThreadPort {
  receive: (message: unknown) => void = () => {}
  readonly #messages: unknown[] = []

  /** Delivers a copy later, as between threads. */
  postMessage(message: unknown, transfer: readonly Transferable[] = []): void {
    this.#messages.push(structuredClone(message, { transfer: transfer as ArrayBuffer[] }))
    setImmediate(() => {
      const next = this.next()
      if (next !== undefined) this.receive(next)
    })
  }

  /** Returns the next received message, which the writer adds to the group that it commits. */
  next(): unknown {
    return this.#messages.shift()
  }

  reply(message: unknown, transfer: readonly Transferable[] = []): void {
    const copy = structuredClone(message, { transfer: transfer as ArrayBuffer[] })
    setImmediate(() => this.emit('message', copy))
  }

  end(): void {
    setImmediate(() => this.emit('exit', 0))
  }

  terminate(): void {
    this.end()
  }
}

/** Opens databases in files, as `writer-thread.ts` and `reader-thread.ts` do. */
export const inProcess: ThreadSpawner = (role, data) =>
  openEnd((port, ends) => (role === 'writer' ? openWriter(port, ends, data) : openReader(port, ends, data)))

/** Opens the store on a database in memory. A test need not close it: it has neither files nor threads. */
export function openMemoryStore(): Promise<TurnStore> {
  const db = new Database(createMigratedDatabase())
  const spawn: ThreadSpawner = (role) =>
    openEnd((port, ends) => {
      if (role === 'reader') return serveReads(port, ends, createReader(db, CACHE_BYTES), () => {})
      return serveWrites(port, ends, new Writer(db, CACHE_BYTES), () => db.close())
    })
  return openSqliteStore({ path: ':memory:', durability: 'process', spawn })
}

let migrated: Buffer | undefined

/** Returns the bytes of an empty database with the current schema, which take milliseconds to create. */
function createMigratedDatabase(): Buffer {
  if (migrated === undefined) {
    const db = new Database(':memory:')
    migrate(db, ':memory:')
    migrated = db.serialize()
    db.close()
  }
  return migrated
}

interface LoopCallbacks {
  reply(replies: unknown, transfer?: readonly Transferable[]): void
  close(): void
}

function openEnd(open: (port: InProcess, ends: LoopCallbacks) => OpeningReport): InProcess {
  const port = new InProcess()
  const ends = {
    reply: (replies: unknown, transfer?: readonly Transferable[]) => port.reply(replies, transfer),
    close: () => port.end(),
  }
  try {
    port.reply(open(port, ends))
  } catch (error) {
    port.reply({ opened: false, error: toWireError(error) })
  }
  return port
}

function openWriter(port: InProcess, ends: LoopCallbacks, data: object): OpeningReport {
  const { path, durability, servesAgents } = data as SqliteWriterConfig
  const { db, endedWell, migrated, close, files } = openForWriting(path, durability, servesAgents)
  const writer = new Writer(
    db,
    CACHE_BYTES,
    () => files.check(),
    () => files.checkFreeSpace(),
  )
  return { ...serveWrites(port, ends, writer, close), endedWell, migrated }
}

function serveWrites(
  port: InProcess,
  ends: LoopCallbacks,
  writer: Writer,
  close: (endsWell: boolean) => void,
): { opened: true } {
  const loop = new WriterLoop(writer, close, {
    ...ends,
    next: () => port.next() as WriterMessage | undefined,
  })
  port.receive = (message) => loop.receive(message as WriterMessage)
  return { opened: true }
}

function openReader(port: InProcess, ends: LoopCallbacks, data: object): OpeningReport {
  const { path, indexes } = data as SqliteReaderConfig
  const db = openForReading(path)
  const reader = createReader(db, CACHE_BYTES, { path: `${path}-search`, mayWrite: indexes })
  return serveReads(port, ends, reader, () => {
    reader.close()
    db.close()
  })
}

function serveReads(
  port: InProcess,
  ends: LoopCallbacks,
  reader: DatabaseReader,
  close: () => void,
): { opened: true } {
  const loop = new ReaderLoop(reader, close, ends)
  port.receive = (message) => loop.receive(message as ReaderMessage)
  return { opened: true }
}
