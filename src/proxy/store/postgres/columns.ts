/** The columns that the writer writes, with their types. A group of rows is sent as one array per column. */
import { packText, type TextColumn } from '../common/packing.ts'
import { SESSION_COLUMNS } from '../common/session-rows.ts'
import {
  type ColumnType,
  getTurnColumnType,
  OUTCOME_COLUMNS,
  REQUEST_COLUMNS,
} from '../common/turn-columns.ts'

type SqlType = 'bigint' | 'double precision' | 'text' | 'bytea'

const SQL_TYPES: Readonly<Record<ColumnType, SqlType>> = {
  integer: 'bigint',
  real: 'double precision',
  text: 'text',
  bytes: 'bytea',
}

/** The columns of type `bytea`, except `body` and those of `turns`. */
const BYTES = new Set(['hash', 'texts', 'blobs', 'sha256'])

/** The columns of type `text`, except `texts.body` and those of `turns`. */
const TEXTS = new Set([
  ...['status', 'kind', 'session_id', 'metadata', 'sampling_params'],
  ...['record', 'policies', 'edited_calls', 'key_tag', 'limits', 'marks'],
  ...['reward_components', 'reward_lines', 'reward_turns'],
])

/** The columns of each table; the tables are in the order in which they are written. */
export const COLUMNS = {
  trees: ['id', 'dropped'],
  sessions: [...SESSION_COLUMNS, 'owner', 'epoch', 'version'],
  texts: ['id', 'tree', 'hash', 'echo_of', 'blobs', 'body'],
  nodes: ['id', 'tree', 'parent', 'depth', 'texts', 'hash', 'node_sum'],
  turns: ['id', ...REQUEST_COLUMNS, ...OUTCOME_COLUMNS],
  details: ['id', 'tree', 'turn', 'kind', 'body', 'detail_sum'],
  blobs: ['id', 'sha256', 'body'],
  blob_uses: ['id', 'tree', 'blob'],
} as const satisfies Record<string, readonly string[]>

export type Table = keyof typeof COLUMNS

export function getColumnType(table: Table, column: string): SqlType {
  if (table === 'turns') return SQL_TYPES[getTurnColumnType(column)]
  if (column === 'body') return table === 'texts' ? 'text' : 'bytea'
  if (column === 'reward') return 'double precision'
  if (BYTES.has(column)) return 'bytea'
  return TEXTS.has(column) ? 'text' : 'bigint'
}

/** Converts a value to what the driver expects in an array of its column. */
export function toDriver(type: SqlType, value: unknown): unknown {
  if (value === null || value === undefined) return null
  if (type === 'text') return toColumn(value as TextColumn)
  if (type !== 'bytea') return String(value)
  return Buffer.isBuffer(value) ? value : createView(value as Uint8Array)
}

/** Returns the row with its texts as they were before {@link toDriver} escaped them. */
export function fromDriver<T extends object>(row: T): T {
  const read = { ...row } as Record<string, unknown>
  for (const [column, value] of Object.entries(row)) {
    if (typeof value === 'string') read[column] = fromColumn(value)
  }
  return read as T
}

/**
 * Converts a text to a parameter of a query that compares it with a column, or stores it in one. Clients choose ids, and
 * PostgreSQL rejects a query with U+0000 in a parameter.
 */
export function toTextParameter(text: string): string {
  return toColumn(packText(text))
}

/** U+001A, SUBSTITUTE. */
const ESCAPE = '\u001a'
const UTF16 = `${ESCAPE}u`
const JSON_TEXT = `${ESCAPE}j`

/**
 * Returns a text in a form that the type `text` can store: the type rejects U+0000, and lone surrogates have no UTF-8.
 * Such texts, and those that begin like an escaped one, are stored after an escape; all others unchanged, so that SQL
 * can read them.
 */
function toColumn(text: TextColumn): string {
  if (typeof text !== 'string') return UTF16 + text.toString('base64')
  return text.includes('\0') || text.startsWith(ESCAPE) ? JSON_TEXT + JSON.stringify(text) : text
}

/** Reverses {@link toColumn}. */
function fromColumn(column: string): TextColumn {
  if (!column.startsWith(ESCAPE)) return column
  const rest = column.slice(UTF16.length)
  return column.startsWith(UTF16) ? Buffer.from(rest, 'base64') : (JSON.parse(rest) as string)
}

function createView(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}
