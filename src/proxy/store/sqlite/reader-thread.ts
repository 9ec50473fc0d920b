/** The reader thread: serves reads on its own connection, so that they neither stop the main thread nor delay commits. */
import { parentPort, workerData } from 'node:worker_threads'
import { type OpeningReport, toWireError } from './calls.ts'
import { openForReading } from './database.ts'
import { Reader } from './reader.ts'
import { ReaderLoop, type ReaderMessage } from './reader-loop.ts'

export interface ReaderData {
  path: string
  /** Memory for recent turns' token ids. */
  cacheBytes: number
}

const port = parentPort!

function open({ path, cacheBytes }: ReaderData): OpeningReport {
  try {
    const db = openForReading(path)
    const loop = new ReaderLoop(new Reader(db, cacheBytes), () => db.close(), {
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
