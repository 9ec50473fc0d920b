/** Rows of `imports`. */
import type { Client } from 'pg'
import type { ImportEntry } from '../port/imports.ts'

const IS_ITEM = 'kind = $1 AND name = $2 AND created_at_ms = $3'

async function wasImported(client: Client, { kind, name, createdAtMs }: ImportEntry): Promise<boolean> {
  const sql = `SELECT 1 FROM llm_proxy.imports WHERE ${IS_ITEM}`
  const { rowCount } = await client.query(sql, [kind, name, createdAtMs])
  return rowCount === 1
}

async function setImported(
  client: Client,
  { kind, name, createdAtMs }: ImportEntry,
  isImported: boolean,
): Promise<void> {
  const sql = isImported
    ? 'INSERT INTO llm_proxy.imports (kind, name, created_at_ms) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING'
    : `DELETE FROM llm_proxy.imports WHERE ${IS_ITEM}`
  await client.query(sql, [kind, name, createdAtMs])
}

export const importReads = { wasImported }
export const importWrites = { setImported }
