/** Removes rows of deleted and reset sessions, some at a time. */
import type { Client } from 'pg'
import { runInTransaction } from './connection.ts'

/** The number of rows that one step removes, within several milliseconds. */
const PURGE_ROWS = 1_000
/** The tables in the order of deletion: a table precedes those that its rows refer to. */
const PURGED_TABLES = ['consumer_sessions', 'details', 'turns', 'nodes', 'texts'] as const

/**
 * Removes some rows of a dropped tree.
 * @returns `done`: there were none; `blobs`: blobs may be among the removed rows, so cached ones are invalid
 */
export async function purgeRows(client: Client): Promise<'done' | 'rows' | 'blobs'> {
  const { rows } = await client.query<{ id: number }>(
    'SELECT id FROM llm_proxy.trees WHERE dropped = 1 LIMIT 1',
  )
  if (rows[0] === undefined) return 'done'
  const tree = rows[0].id
  for (const table of PURGED_TABLES) {
    const { rowCount } = await client.query(
      table === 'turns' ? addUnsearchedDeletion(deleteSome(table)) : deleteSome(table),
      [tree],
    )
    if (rowCount! > 0) return 'rows'
  }
  if (await purgeBlobs(client, tree)) return 'blobs'
  await client.query('DELETE FROM llm_proxy.trees WHERE id = $1', [tree])
  return 'rows'
}

function deleteSome(table: string): string {
  const some = `SELECT id FROM llm_proxy.${table} WHERE tree = $1 LIMIT ${PURGE_ROWS}`
  return `DELETE FROM llm_proxy.${table} WHERE id IN (${some})`
}

/**
 * Extends the SQL of a deletion of turns by that of their rows in `unsearched`, which exist until an indexer has
 * processed them.
 */
function addUnsearchedDeletion(deleteTurns: string): string {
  return `WITH deleted AS (${deleteTurns} RETURNING id),
    notes AS (DELETE FROM llm_proxy.unsearched USING deleted WHERE unsearched.id = deleted.id)
    SELECT FROM deleted`
}

/** Deletes some references to blobs, and the blobs without other references. @returns whether there were references */
function purgeBlobs(client: Client, tree: number): Promise<boolean> {
  return runInTransaction(client, async () => {
    const { rows: uses } = await client.query<{ blob: number }>(`${deleteSome('blob_uses')} RETURNING blob`, [
      tree,
    ])
    const blobs = uses.map(({ blob }) => blob)
    if (blobs.length === 0) return false
    // A group that references one of the blobs locks its row, so the deletion waits for the group and sees its
    // references.
    await client.query('SELECT FROM llm_proxy.blobs WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE', [
      blobs,
    ])
    await client.query(
      `DELETE FROM llm_proxy.blobs WHERE id = ANY($1::bigint[])
         AND NOT EXISTS (SELECT 1 FROM llm_proxy.blob_uses WHERE blob_uses.blob = blobs.id)`,
      [blobs],
    )
    return true
  })
}
