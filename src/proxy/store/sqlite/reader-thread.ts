/**
 * The reader thread serves reads on its own connection, so that they neither block the main thread nor delay commits.
 */
import { parentPort, workerData } from 'node:worker_threads'
import { type OpeningReport, toWireError } from '../common/calls.ts'
import { ReaderLoop, type ReaderMessage } from '../common/reader-loop.ts'
import { openForReading } from './database.ts'
import { createReader } from './reader.ts'

export interface SqliteReaderConfig {
  path: string
  /** Memory for recent turns' token ids. */
  cacheBytes: number
  /** Whether it maintains the search index. */
  indexes: boolean
}

const port = parentPort!

function open({ path, cacheBytes, indexes }: SqliteReaderConfig): OpeningReport {
  try {
    const db = openForReading(path)
    const reader = createReader(db, cacheBytes, { path: `${path}-search`, mayWrite: indexes })
    const close = () => {
      reader.close()
      db.close()
    }
    const loop = new ReaderLoop(reader, close, {
      reply: (replies, transfer) => port.postMessage(replies, transfer),
      close: () => port.close(),
    })
    port.on('message', (message: ReaderMessage) => loop.receive(message))
    return { opened: true }
  } catch (error) {
    return { opened: false, error: toWireError(error) }
  }
}

port.postMessage(open(workerData))
