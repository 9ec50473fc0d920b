/** The writer thread: the only one that changes the record, so that packing rows stops no call. */
import { parentPort, workerData } from 'node:worker_threads'
import { type OpeningReport, toWireError } from '../record/calls.ts'
import type { Durability } from './connection.ts'
import { openForWriting } from './database.ts'
import { WriterLoop, type WriterMessage } from './writer-loop.ts'

export interface WriterData {
  url: string
  durability: Durability
  /** Memory for recent turns' token ids. */
  cacheBytes: number
}

const port = parentPort!

async function open(data: WriterData): Promise<OpeningReport> {
  try {
    const loop = new WriterLoop(await openForWriting(data), {
      reply: (replies) => port.postMessage(replies),
      fail: (error) => {
        setImmediate(() => {
          throw error
        })
      },
      close: () => port.close(),
    })
    port.on('message', (message: WriterMessage) => loop.receive(message))
    return { opened: true }
  } catch (error) {
    return { opened: false, error: toWireError(error) }
  }
}

void open(workerData).then((report) => port.postMessage(report))
