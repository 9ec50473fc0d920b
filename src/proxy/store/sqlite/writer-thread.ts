/** The writer thread, the only one that changes the database, so that no commit blocks the main thread. */
import { parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads'
import { type OpeningReport, toWireError } from '../common/calls.ts'
import type { Durability } from '../port/turn-store.ts'
import { openForWriting } from './database.ts'
import { Writer } from './writer.ts'
import { WriterLoop, type WriterMessage } from './writer-loop.ts'

export interface SqliteWriterConfig {
  path: string
  durability: Durability
  servesAgents: boolean
  /** Memory for recent turns' token ids. */
  cacheBytes: number
}

const port = parentPort!

function open({ path, durability, servesAgents, cacheBytes }: SqliteWriterConfig): OpeningReport {
  try {
    const { db, endedWell, migrated, close, files } = openForWriting(path, durability, servesAgents)
    const writer = new Writer(
      db,
      cacheBytes,
      () => files.check(),
      () => files.checkFreeSpace(),
    )
    const loop = new WriterLoop(writer, close, {
      reply: (replies) => port.postMessage(replies),
      next: () => receiveMessageOnPort(port)?.message,
      close: () => port.close(),
    })
    port.on('message', (message: WriterMessage) => loop.receive(message))
    return { opened: true, endedWell, migrated }
  } catch (error) {
    return { opened: false, error: toWireError(error) }
  }
}

port.postMessage(open(workerData))
