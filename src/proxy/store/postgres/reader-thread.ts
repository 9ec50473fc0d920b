/** The reader thread: serves reads on separate connections. */
import { parentPort, workerData } from 'node:worker_threads'
import { type OpeningReport, toWireError } from '../common/calls.ts'
import { ReaderLoop, type ReaderMessage } from '../common/reader-loop.ts'
import { openForReading } from './database.ts'

export interface PostgresReaderConfig {
  url: string
  /** Memory for the token ids of recent turns. */
  cacheBytes: number
}

const port = parentPort!

async function open({ url, cacheBytes }: PostgresReaderConfig): Promise<OpeningReport> {
  try {
    const reader = await openForReading(url, cacheBytes)
    const loop = new ReaderLoop(reader, () => void reader.close(), {
      reply: (replies, transfer) => port.postMessage(replies, transfer),
      close: () => port.close(),
    })
    port.on('message', (message: ReaderMessage) => loop.receive(message))
    return { opened: true }
  } catch (error) {
    return { opened: false, error: toWireError(error) }
  }
}

void open(workerData).then((report) => port.postMessage(report))
