/** Loads the rows that a group has looked up and that the caches of the writer lack, with one query per table. */
import type { Client } from 'pg'
import type { OpenTurnRow, SequenceRow } from '../common/tables.ts'
import { REQUEST_COLUMNS } from '../common/turn-columns.ts'
import { fromDriver, toTextParameter } from './columns.ts'
import type { RowCache } from './row-cache.ts'
import { SELECT_SESSIONS } from './select-sessions.ts'
import type { WriterSessionRow } from './writer-sessions.ts'
import { getKey, type NodePosition, type TurnEndColumns, type WriterTables } from './writer-tables.ts'

/** The columns of a turn's tokens, as {@link SequenceRow} names them. */
const SEQUENCE_COLUMNS = `
  turns.id, turns.prompt_base AS base, turns.prompt_shared AS shared, turns.prompt_rest AS rest,
  turns.completion_ids AS completion, turns.ids_sum AS sum`

/** Selects a turn's tokens, and those of all turns that it is based on. */
export const SEQUENCE_CHAIN = `
  WITH RECURSIVE chain AS (
    SELECT ${SEQUENCE_COLUMNS} FROM llm_proxy.turns WHERE id = ANY($1::bigint[])
    UNION
    SELECT ${SEQUENCE_COLUMNS} FROM llm_proxy.turns JOIN chain ON turns.id = chain.base
  )
  SELECT * FROM chain`

/** The query that loads the rows of a cache. */
interface CacheQuery<K, V, R> {
  readonly sql: string
  /** Returns the query's parameters. */
  toValues(keys: readonly K[]): unknown[]
  toEntry(row: R): [K, V]
}

const SESSIONS: CacheQuery<string, WriterSessionRow, WriterSessionRow> = {
  sql: `${SELECT_SESSIONS} WHERE session_id = ANY($1::text[])`,
  toValues: (sessionIds) => [sessionIds.map(toTextParameter)],
  toEntry: (row) => [row.session_id, row],
}

const TEXTS: CacheQuery<string, number, RowWithHash> = {
  sql: `SELECT id, tree, hash FROM llm_proxy.texts
    JOIN unnest($1::bigint[], $2::bytea[]) AS wanted (tree, hash) USING (tree, hash)`,
  toValues: splitHashKeys,
  toEntry: ({ id, tree, hash }) => [getKey(tree, hash), id],
}

const TEXT_TREES: CacheQuery<number, number, { id: number; tree: number }> = {
  sql: 'SELECT id, tree FROM llm_proxy.texts WHERE id = ANY($1::bigint[])',
  toValues: (ids) => [ids],
  toEntry: ({ id, tree }) => [id, tree],
}

const NODES: CacheQuery<string, NodePosition, RowWithHash & NodePosition> = {
  sql: `SELECT id, tree, hash, depth FROM llm_proxy.nodes
    JOIN unnest($1::bigint[], $2::bytea[]) AS wanted (tree, hash) USING (tree, hash)`,
  toValues: splitHashKeys,
  toEntry: ({ id, tree, hash, depth }) => [getKey(tree, hash), { id, depth }],
}

const BLOBS: CacheQuery<string, number, { id: number; sha256: Buffer }> = {
  sql: 'SELECT id, sha256 FROM llm_proxy.blobs WHERE sha256 = ANY($1::bytea[])',
  toValues: (keys) => [keys.map((sha256) => Buffer.from(sha256, 'hex'))],
  toEntry: ({ id, sha256 }) => [sha256.toString('hex'), id],
}

const BLOB_USES: CacheQuery<string, number, { id: number; tree: number; blob: number }> = {
  sql: `SELECT id, tree, blob FROM llm_proxy.blob_uses
    JOIN unnest($1::bigint[], $2::bigint[]) AS wanted (tree, blob) USING (tree, blob)`,
  toValues: splitKeys,
  toEntry: ({ id, tree, blob }) => [`${tree} ${blob}`, id],
}

const OPEN_TURNS: CacheQuery<string, OpenTurnRow, OpenTurnRow & TurnKey> = {
  sql: `SELECT id, ${REQUEST_COLUMNS.join(', ')} FROM llm_proxy.turns
    JOIN unnest($1::bigint[], $2::text[]) AS wanted (tree, turn_id) USING (tree, turn_id) WHERE status = 'open'`,
  toValues: splitTurnKeys,
  toEntry: (row) => [`${row.tree} ${row.turn_id}`, row],
}

const ENDED_TURNS: CacheQuery<string, TurnEndColumns, TurnEndColumns & TurnKey> = {
  sql: `SELECT id, tree, turn_id, status, exact, finish_reason, error_code, annotations FROM llm_proxy.turns
    JOIN unnest($1::bigint[], $2::text[]) AS wanted (tree, turn_id) USING (tree, turn_id) WHERE status <> 'open'`,
  toValues: splitTurnKeys,
  toEntry: (row) => [`${row.tree} ${row.turn_id}`, row],
}

const LAST_PROMPTS: CacheQuery<number, number, { id: number; tree: number }> = {
  sql: `SELECT wanted.tree, last.id FROM unnest($1::bigint[]) AS wanted (tree), LATERAL (
      SELECT id FROM llm_proxy.turns WHERE turns.tree = wanted.tree AND prompt_rest IS NOT NULL
      ORDER BY call_index DESC, id DESC LIMIT 1
    ) AS last`,
  toValues: (trees) => [trees],
  toEntry: ({ tree, id }) => [tree, id],
}

const SEQUENCES: CacheQuery<number, SequenceRow, SequenceRow> = {
  sql: SEQUENCE_CHAIN,
  toValues: (ids) => [ids],
  toEntry: (row) => [row.id, row],
}

interface RowWithHash {
  readonly id: number
  readonly tree: number
  readonly hash: Buffer
}

interface TurnKey {
  readonly tree: number
  readonly turn_id: string
}

/** Loads the missing rows. @returns whether any of them exists, so that the group must be computed again */
export async function loadMissingRows(client: Client, tables: WriterTables): Promise<boolean> {
  const exists = [
    await loadRows(client, tables.sessions.rows, SESSIONS),
    await loadRows(client, tables.texts, TEXTS),
    await loadRows(client, tables.nodes, NODES),
    await loadRows(client, tables.textTrees, TEXT_TREES),
    await loadRows(client, tables.blobs, BLOBS),
    await loadRows(client, tables.blobUses, BLOB_USES),
    await loadRows(client, tables.openTurns, OPEN_TURNS),
    await loadRows(client, tables.endedTurns, ENDED_TURNS),
    await loadRows(client, tables.lastPrompts, LAST_PROMPTS),
    await loadRows(client, tables.sequences, SEQUENCES),
  ]
  return exists.some(Boolean)
}

async function loadRows<K extends string | number, V, R extends object>(
  client: Client,
  cache: RowCache<K, V>,
  { sql, toValues, toEntry }: CacheQuery<K, V, R>,
): Promise<boolean> {
  if (cache.missing.length === 0) return false
  const { rows } = await client.query<R>({ name: getName(sql), text: sql, values: toValues(cache.missing) })
  return cache.load(new Map(rows.map((row) => toEntry(fromDriver(row)))))
}

/** Splits keys of the form `TREE REST` into an array of trees and one of the rests. */
function splitKeys(keys: readonly string[]): [trees: string[], rests: string[]] {
  const spaces = keys.map((key) => key.indexOf(' '))
  return [
    keys.map((key, index) => key.slice(0, spaces[index])),
    keys.map((key, index) => key.slice(spaces[index]! + 1)),
  ]
}

function splitTurnKeys(keys: readonly string[]): [trees: string[], turnIds: string[]] {
  const [trees, turnIds] = splitKeys(keys)
  return [trees, turnIds.map(toTextParameter)]
}

function splitHashKeys(keys: readonly string[]): [trees: string[], hashes: Buffer[]] {
  const [trees, hashes] = splitKeys(keys)
  return [trees, hashes.map((hash) => Buffer.from(hash, 'hex'))]
}

const names = new Map<string, string>()

function getName(sql: string): string {
  const name = names.get(sql) ?? `load ${names.size}`
  names.set(sql, name)
  return name
}
