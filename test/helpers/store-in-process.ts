/** The store's threads without threads: for tests that open a database many times. */
import { EventEmitter } from 'node:events'
import type { Transferable } from 'node:worker_threads'
import { ReaderLoop, type ReaderMessage } from '../../src/proxy/store/record/reader-loop.ts'
import type { SpawnThread, ThreadPort } from '../../src/proxy/store/record/store-thread.ts'
import { openForReading, openForWriting } from '../../src/proxy/store/sqlite/database.ts'
import { SqliteReader } from '../../src/proxy/store/sqlite/reader.ts'
import { Writer } from '../../src/proxy/store/sqlite/writer.ts'
import { WriterLoop, type WriterMessage } from '../../src/proxy/store/sqlite/writer-loop.ts'

const CACHE_BYTES = 1024 * 1024

class InProcess extends EventEmitter implements ThreadPort {
  receive: (message: never) => void = () => {}

  /** As between threads: later, and of a copy. */
  postMessage(message: unknown, transfer: readonly Transferable[] = []): void {
    const copy = structuredClone(message, { transfer: transfer as ArrayBuffer[] })
    setImmediate(() => this.receive(copy as never))
  }

  reply(message: unknown): void {
    const copy = structuredClone(message)
    setImmediate(() => this.emit('message', copy))
  }

  end(): void {
    setImmediate(() => this.emit('exit', 0))
  }
}

export const inProcess: SpawnThread = (role, data) => {
  const port = new InProcess()
  const { path } = data as { path: string }
  const ends = { reply: (replies: unknown) => port.reply(replies), close: () => port.end() }
  if (role === 'writer') {
    const { db, close } = openForWriting(path, 'process')
    const loop = new WriterLoop(new Writer(db, CACHE_BYTES), close, { ...ends, next: () => undefined })
    port.receive = (message: WriterMessage) => loop.receive(message)
  } else {
    const db = openForReading(path)
    const loop = new ReaderLoop(new SqliteReader(db, CACHE_BYTES), () => db.close(), ends)
    port.receive = (message: ReaderMessage) => loop.receive(message)
  }
  port.reply({ opened: true })
  return port
}
