/** The writer and the reader of the store on a test's database, without their threads. */
import { join } from 'node:path'
import type { Test } from 'tap'
import { toNewRow } from '../../src/proxy/store/common/session-rows.ts'
import { openForReading, openForWriting } from '../../src/proxy/store/sqlite/database.ts'
import { createReader } from '../../src/proxy/store/sqlite/reader.ts'
import { Writer } from '../../src/proxy/store/sqlite/writer.ts'

const CACHE_BYTES = 64 * 1024

export function openStoreWriter(t: Test) {
  const path = join(t.testdir(), 'turns.db')
  const { db, close } = openForWriting(path, 'power')
  const reading = openForReading(path)
  t.teardown(() => {
    reading.close()
    close()
  })
  return { db, writer: new Writer(db, CACHE_BYTES), reader: createReader(reading, CACHE_BYTES) }
}

/** Creates a new session as the writer receives it. */
export function createSessionRow(sessionId: string) {
  const session = {
    sessionId,
    createdAtMs: 1,
    ttlMs: null,
    metadata: {},
    samplingParams: {},
    trustAgent: false,
  }
  return toNewRow(session)
}
