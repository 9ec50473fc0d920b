/** Reads and changes rows of `imports`. */
import type Database from 'better-sqlite3'
import type { ImportEntry } from '../port/imports.ts'

const IS_ITEM = 'kind = @kind AND name = @name AND created_at_ms = @createdAtMs'

/** Prepares the method of the reader. */
export function prepareImportReads(db: Database.Database) {
  const find = db.prepare<[ImportEntry]>(`SELECT 1 FROM imports WHERE ${IS_ITEM}`)
  return { wasImported: (item: ImportEntry) => find.get(item) !== undefined }
}

/** Prepares the method of the writer. */
export function prepareImportMethods(db: Database.Database) {
  const add = db.prepare<[ImportEntry]>(
    'INSERT INTO imports (kind, name, created_at_ms) VALUES (@kind, @name, @createdAtMs) ON CONFLICT DO NOTHING',
  )
  const remove = db.prepare<[ImportEntry]>(`DELETE FROM imports WHERE ${IS_ITEM}`)
  return {
    setImported(item: ImportEntry, isImported: boolean): void {
      const statement = isImported ? add : remove
      statement.run(item)
    },
  }
}
