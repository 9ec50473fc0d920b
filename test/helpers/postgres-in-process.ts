/**
 * The threads of a store in PostgreSQL without threads, each of which costs a tenth of a second of CPU time to start.
 * The store and its messages are the same; tests of several nodes use the threads.
 */
import { type OpeningReport, toWireError } from '../../src/proxy/store/common/calls.ts'
import { ReaderLoop, type ReaderMessage } from '../../src/proxy/store/common/reader-loop.ts'
import type { ThreadSpawner } from '../../src/proxy/store/common/store-thread.ts'
import { connect } from '../../src/proxy/store/postgres/connection.ts'
import { openForReading, openForWriting } from '../../src/proxy/store/postgres/database.ts'
import { LeaseConnection } from '../../src/proxy/store/postgres/lease-connection.ts'
import type { PostgresReaderConfig } from '../../src/proxy/store/postgres/reader-thread.ts'
import { WriterLoop, type WriterMessage } from '../../src/proxy/store/postgres/writer-loop.ts'
import type { PostgresWriterConfig } from '../../src/proxy/store/postgres/writer-thread.ts'
import { InProcess } from './store-in-process.ts'

/** Opens databases, as `writer-thread.ts` and `reader-thread.ts` do. */
export const postgresInProcess: ThreadSpawner = (role, data) => {
  const port = new InProcess()
  const opened =
    role === 'writer'
      ? openWriter(port, data as PostgresWriterConfig)
      : openReader(port, data as PostgresReaderConfig)
  void opened
    .catch((error: unknown): OpeningReport => ({ opened: false, error: toWireError(error) }))
    .then((report) => port.reply(report))
  return port
}

async function openWriter(port: InProcess, data: PostgresWriterConfig): Promise<OpeningReport> {
  const lease = new LeaseConnection(() => connect(data.url, { writes: true }))
  const { writer, migrated } = await openForWriting(data)
  const loop = new WriterLoop(writer, lease, {
    reply: (replies) => port.reply(replies),
    fail: (error) => setImmediate(() => port.emit('error', error)),
    close: () => port.end(),
  })
  port.receive = (message) => loop.receive(message as WriterMessage)
  return { opened: true, migrated }
}

async function openReader(
  port: InProcess,
  { url, cacheBytes }: PostgresReaderConfig,
): Promise<OpeningReport> {
  const reader = await openForReading(url, cacheBytes)
  const loop = new ReaderLoop(reader, () => void reader.close(), {
    reply: (replies, transfer) => port.reply(replies, transfer),
    close: () => port.end(),
  })
  port.receive = (message) => loop.receive(message as ReaderMessage)
  return { opened: true }
}
