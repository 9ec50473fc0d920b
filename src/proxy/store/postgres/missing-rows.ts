/** Fetches the rows that the writer requested and that its cache lacks. */
import type { Client } from 'pg'
import type { OpenRow, SequenceRow, TurnEndRow } from '../common/tables.ts'
import { REQUEST_COLUMNS } from '../common/turns.ts'
import { fromDriver } from './columns.ts'
import type { Layer } from './layers.ts'
import { SELECT_SESSIONS } from './select-sessions.ts'
import type { SessionOwnershipRow } from './writer-sessions.ts'
import { getKey, type WriterTables } from './writer-tables.ts'

/** The columns of a turn's tokens, as {@link SequenceRow} names them. */
export const SEQUENCE_COLUMNS = `
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

type MissingRow = Record<string, unknown> & { tree: number; hash: Buffer; id: number }

/** Fetches missing rows. @returns whether any exists, so that the result computed without it is invalid */
export async function fetchMissing(client: Client, tables: WriterTables): Promise<boolean> {
  const isThere = [
    await fetchSessions(client, tables.sessions.rows),
    await fetchHashed(client, tables, 'texts'),
    await fetchHashed(client, tables, 'nodes'),
    await fetchTextTrees(client, tables.textTrees),
    await fetchBlobs(client, tables.blobs),
    await fetchBlobUses(client, tables.blobUses),
    await fetchTurns(client, tables.openTurns, `id, ${REQUEST_COLUMNS.join(', ')}`, "AND status = 'open'"),
    await fetchTurns(client, tables.endedTurns, ENDED_COLUMNS, "AND status <> 'open'"),
    await fetchLastPrompts(client, tables.lastPrompts),
    await fetchSequences(client, tables.sequences),
  ]
  return isThere.some(Boolean)
}

const ENDED_COLUMNS = 'id, tree, turn_id, status, exact, finish_reason, error_code, annotations'

async function fetchSessions(client: Client, layer: Layer<string, SessionOwnershipRow>): Promise<boolean> {
  if (layer.missing.length === 0) return false
  const rows = await toRows<SessionOwnershipRow>(
    client,
    `${SELECT_SESSIONS} WHERE session_id = ANY($1::text[])`,
    [layer.missing],
  )
  return layer.load(new Map(rows.map((row) => [row.session_id, row])))
}

async function fetchHashed(client: Client, tables: WriterTables, table: 'texts' | 'nodes'): Promise<boolean> {
  const { missing } = tables[table]
  if (missing.length === 0) return false
  const keys = missing.map((key) => key.split(' '))
  const depth = table === 'nodes' ? ', depth' : ''
  const rows = await toRows<MissingRow & { depth: number }>(
    client,
    `SELECT id, ${table}.tree, ${table}.hash${depth} FROM llm_proxy.${table}
     JOIN unnest($1::bigint[], $2::bytea[]) AS wanted (tree, hash)
     ON ${table}.tree = wanted.tree AND ${table}.hash = wanted.hash`,
    [keys.map(([tree]) => tree), keys.map(([, hash]) => Buffer.from(hash!, 'hex'))],
  )
  if (table === 'texts')
    return tables.texts.load(new Map(rows.map((row) => [getKey(row.tree, row.hash), row.id])))
  return tables.nodes.load(
    new Map(rows.map((row) => [getKey(row.tree, row.hash), { id: row.id, depth: row.depth }])),
  )
}

async function fetchTextTrees(client: Client, layer: Layer<number, number>): Promise<boolean> {
  if (layer.missing.length === 0) return false
  const sql = 'SELECT id, tree FROM llm_proxy.texts WHERE id = ANY($1::bigint[])'
  const rows = await toRows<MissingRow>(client, sql, [layer.missing])
  return layer.load(new Map(rows.map(({ id, tree }) => [id, tree])))
}

async function fetchBlobs(client: Client, layer: Layer<string, number>): Promise<boolean> {
  if (layer.missing.length === 0) return false
  const sql = 'SELECT id, sha256 FROM llm_proxy.blobs WHERE sha256 = ANY($1::bytea[])'
  const rows = await toRows<MissingRow & { sha256: Buffer }>(client, sql, [
    layer.missing.map((sha256) => Buffer.from(sha256, 'hex')),
  ])
  return layer.load(new Map(rows.map(({ id, sha256 }) => [sha256.toString('hex'), id])))
}

async function fetchBlobUses(client: Client, layer: Layer<string, number>): Promise<boolean> {
  if (layer.missing.length === 0) return false
  const keys = layer.missing.map((key) => key.split(' '))
  const rows = await toRows<MissingRow & { blob: number }>(
    client,
    `SELECT id, blob_uses.tree, blob_uses.blob FROM llm_proxy.blob_uses
     JOIN unnest($1::bigint[], $2::bigint[]) AS wanted (tree, blob) USING (tree, blob)`,
    [keys.map(([tree]) => tree), keys.map(([, blob]) => blob)],
  )
  return layer.load(new Map(rows.map(({ id, tree, blob }) => [`${tree} ${blob}`, id])))
}

async function fetchTurns<T extends OpenRow | Omit<TurnEndRow, 'session_status'>>(
  client: Client,
  layer: Layer<string, T>,
  columns: string,
  condition: string,
): Promise<boolean> {
  if (layer.missing.length === 0) return false
  const keys = layer.missing.map((key) => [key.slice(0, key.indexOf(' ')), key.slice(key.indexOf(' ') + 1)])
  const rows = await toRows<T & { tree: number; turn_id: string }>(
    client,
    `SELECT ${columns} FROM llm_proxy.turns
     JOIN unnest($1::bigint[], $2::text[]) AS wanted (tree, turn_id) USING (tree, turn_id) WHERE true ${condition}`,
    [keys.map(([tree]) => tree), keys.map(([, turnId]) => turnId)],
  )
  return layer.load(new Map(rows.map((row) => [`${row.tree} ${row.turn_id}`, row])))
}

async function fetchLastPrompts(client: Client, layer: Layer<number, number>): Promise<boolean> {
  if (layer.missing.length === 0) return false
  const rows = await toRows<MissingRow>(
    client,
    `SELECT wanted.tree, last.id FROM unnest($1::bigint[]) AS wanted (tree), LATERAL (
       SELECT id FROM llm_proxy.turns WHERE turns.tree = wanted.tree AND prompt_rest IS NOT NULL
       ORDER BY call_index DESC, id DESC LIMIT 1
     ) AS last`,
    [layer.missing],
  )
  return layer.load(new Map(rows.map(({ tree, id }) => [tree, id])))
}

async function fetchSequences(client: Client, layer: Layer<number, SequenceRow>): Promise<boolean> {
  if (layer.missing.length === 0) return false
  const rows = await toRows<SequenceRow>(client, SEQUENCE_CHAIN, [layer.missing])
  return layer.load(new Map(rows.map((row) => [row.id, row])))
}

async function toRows<T extends object>(
  client: Client,
  sql: string,
  values: readonly unknown[],
): Promise<T[]> {
  const { rows } = await client.query<Record<string, unknown>>({
    name: getName(sql),
    text: sql,
    values: [...values],
  })
  return rows.map((row) => fromDriver(row) as T)
}

const names = new Map<string, string>()

function getName(sql: string): string {
  const name = names.get(sql) ?? `fetch ${names.size}`
  names.set(sql, name)
  return name
}
