/** Rows of `rollouts`: a rollout id is run by one node, whichever node receives it. */
import { hash } from 'node:crypto'
import type { Client } from 'pg'
import { IS_OVER } from './lease.ts'

const IS_OWNED = `EXISTS (
  SELECT 1 FROM llm_proxy.proxies WHERE proxies.id = rollouts.owner AND ended = 0 AND NOT (${IS_OVER}))`

/**
 * Returns the key of a rollout. Ids may be too long for an index entry, and contain characters that PostgreSQL rejects.
 */
const getHash = (rolloutId: string) => hash('sha256', rolloutId, 'base64url')

/** Makes the node the owner of a rollout, unless a running node owns it. @returns the lease of the owner */
export async function claimRollout(client: Client, rolloutId: string, lease: number): Promise<number> {
  const { rows } = await client.query<{ owner: number }>(
    `INSERT INTO llm_proxy.rollouts (hash, owner) VALUES ($1, $2)
     ON CONFLICT (hash) DO UPDATE SET owner = CASE WHEN ${IS_OWNED} THEN rollouts.owner ELSE excluded.owner END
     RETURNING owner`,
    [getHash(rolloutId), lease],
  )
  return rows[0]!.owner
}

/** Returns the lease of the running node that owns a rollout; undefined: there is none. */
export async function findRollout(client: Client, rolloutId: string): Promise<number | undefined> {
  const { rows } = await client.query<{ owner: number }>(
    `SELECT owner FROM llm_proxy.rollouts WHERE hash = $1 AND ${IS_OWNED}`,
    [getHash(rolloutId)],
  )
  return rows[0]?.owner
}

/** Deletes a rollout that the node owns. */
export async function releaseRollout(client: Client, rolloutId: string, lease: number): Promise<void> {
  const sql = 'DELETE FROM llm_proxy.rollouts WHERE hash = $1 AND owner = $2'
  await client.query(sql, [getHash(rolloutId), lease])
}
