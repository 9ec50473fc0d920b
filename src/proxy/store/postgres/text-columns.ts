/**
 * Text as PostgreSQL's `text` can store it: the type rejects U+0000, and lone surrogates have no UTF-8. Such texts, and
 * those that begin like an escaped one, are stored after an escape; all others unchanged, so that SQL can read them.
 */
import type { TextColumn } from '../common/packing.ts'

/** U+001A, SUBSTITUTE. */
const ESCAPE = '\u001a'
const UTF16 = `${ESCAPE}u`
const JSON_TEXT = `${ESCAPE}j`

export function toColumn(text: TextColumn): string {
  if (typeof text !== 'string') return UTF16 + text.toString('base64')
  return text.includes('\0') || text.startsWith(ESCAPE) ? JSON_TEXT + JSON.stringify(text) : text
}

/** Reverses {@link toColumn}. */
export function fromColumn(column: string): TextColumn {
  if (!column.startsWith(ESCAPE)) return column
  const rest = column.slice(UTF16.length)
  return column.startsWith(UTF16) ? Buffer.from(rest, 'base64') : (JSON.parse(rest) as string)
}
