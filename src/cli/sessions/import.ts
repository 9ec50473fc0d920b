/**
 * `llm-proxy sessions import`: copies the sessions and consumers of one database to another, such as from SQLite to
 * PostgreSQL.
 */
import { ProxyError } from '../../base/errors.ts'
import type { SessionsImportConfig } from '../../proxy/config/options/sessions.ts'
import { toDatabaseName } from '../../proxy/store/port/database-name.ts'
import { openDatabase, openIdleDatabase } from '../open-database.ts'
import { toPrintable } from '../table.ts'
import { importConsumers } from './import-consumers.ts'
import { type ImportCounts, importSessions } from './import-sessions.ts'

/** Runs the command. @param args the database to read @returns the exit code */
export async function run({ db, durability }: SessionsImportConfig, args: string[]): Promise<number> {
  const [from] = args as [string]
  if (from === db)
    throw new ProxyError('config_invalid', '--db names the database that is to be read: name another one')
  const reader = await openDatabase(from)
  try {
    const store = await openIdleDatabase(db, durability)
    let report: string[]
    try {
      const consumers = await importConsumers(reader, store)
      const counts = await importSessions(reader, store, consumers.merged)
      report = toReport(toDatabaseName(db), counts, consumers)
    } finally {
      await store.close()
    }
    // Opening a database marks turns that were in flight as interrupted.
    await (await openIdleDatabase(db, durability)).close()
    process.stdout.write(`${report.map((line) => toPrintable(line)).join('\n')}\n`)
    return 0
  } finally {
    await reader.close()
  }
}

/** The maximum number of ids in the report. */
const MAX_LISTED = 10

function toReport(
  name: string,
  { sessions, turns, completed, kept, deleted, different }: ImportCounts,
  { created, dropped, merged }: Awaited<ReturnType<typeof importConsumers>>,
): string[] {
  const ids = `${different.slice(0, MAX_LISTED).join(', ')}${different.length > MAX_LISTED ? ', …' : ''}`
  return [
    `${name} has ${sessions} more sessions, with ${turns} turns; consumers: ${created} new, ${merged.size} with their acknowledgements`,
    ...(completed > 0
      ? [
          `${completed} sessions were completed that an interrupted import left, or that continued at their source`,
        ]
      : []),
    ...(kept > 0 ? [`${kept} sessions existed already and were not changed`] : []),
    ...(deleted > 0 ? [`${deleted} sessions were deleted there after an import and were not restored`] : []),
    ...(different.length > 0
      ? [`${different.length} of the unchanged sessions differ from their source: ${ids}`]
      : []),
    ...(dropped.length > 0
      ? [
          `consumers that were deleted or created again there after an import were not changed: ${dropped.join(', ')}`,
        ]
      : []),
  ]
}
