/** The writer thread: the only one that changes the database, so that packing rows blocks no request. */
import { parentPort, workerData } from 'node:worker_threads'
import { type OpeningReport, toWireError } from '../common/calls.ts'
import type { Durability } from '../port/turn-store.ts'
import { connect } from './connection.ts'
import { openForWriting } from './database.ts'
import { LeaseConnection } from './lease-connection.ts'
import { WriterLoop, type WriterMessage } from './writer-loop.ts'

export interface PostgresWriterConfig {
  url: string
  durability: Durability
  /** Name of the machine or pod. */
  name: string
  /** Memory for the token ids of recent turns. */
  cacheBytes: number
}

/** The time limit of a query about leases; after it the next query uses another connection. */
const LEASE_QUERY_MS = 2_500

const port = parentPort!

async function open(data: PostgresWriterConfig): Promise<OpeningReport> {
  try {
    const leaseConnection = new LeaseConnection(() =>
      connect(data.url, { timeoutMs: LEASE_QUERY_MS, writes: true }),
    )
    const { writer, migrated } = await openForWriting(data)
    const loop = new WriterLoop(writer, leaseConnection, {
      reply: (replies) => port.postMessage(replies),
      fail: (error) => {
        setImmediate(() => {
          throw error
        })
      },
      close: () => port.close(),
    })
    port.on('message', (message: WriterMessage) => loop.receive(message))
    return { opened: true, migrated }
  } catch (error) {
    return { opened: false, error: toWireError(error) }
  }
}

void open(workerData).then((report) => port.postMessage(report))
