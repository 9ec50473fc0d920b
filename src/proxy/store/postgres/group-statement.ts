/**
 * Builds the changes of a group as one statement, which PostgreSQL runs as one transaction in one round trip:
 *
 *     WITH locked_sessions AS (SELECT … FROM sessions … ORDER BY id FOR NO KEY UPDATE),
 *       valid_sessions AS (… those with the version that the writer read …),
 *       valid_blobs AS (… blobs that still exist … FOR KEY SHARE),
 *       lease AS (UPDATE proxies … WHERE … all preconditions are met … RETURNING id),
 *       insert_turns AS (INSERT INTO turns … SELECT … FROM unnest(…) AS input, lease),
 *       update_sessions AS (UPDATE sessions … FROM unnest(…) AS input, lease …), …
 *     SELECT … whether the lease was updated, and which preconditions are met
 *
 * Every change joins `lease`, which has no row if a precondition is not met: then nothing changes. Sessions are locked
 * in the order of their ids, so that groups of two nodes cannot deadlock.
 */
import type { ColumnValues } from '../common/tables.ts'
import { COLUMNS, getColumnType, type Table, toDriver } from './columns.ts'

/** The preconditions of a group, and its number. */
interface GroupPreconditions {
  /** The writer's lease and the epoch of its connection. */
  readonly lease: { readonly id: number; readonly epoch: number }
  readonly group: number
  readonly nextIds: string
  /** Each session that the group depends on, with the version that was read. */
  readonly sessions: readonly { readonly id: number; readonly version: number }[]
  /** Blobs that exist already and that the group references. */
  readonly blobs: readonly number[]
}

/** The result of a group's statement. */
export interface GroupResult {
  /** 1: the group is committed. 0: a precondition is not met, and nothing has changed. */
  committed: number
  /** Ids of the sessions whose version is the expected one. */
  sessions: number[]
  /** Ids of the blobs that still exist. */
  blobs: number[]
}

export class GroupStatement {
  readonly #parts: string[] = []
  readonly #values: unknown[] = []

  constructor({ lease, group, nextIds, sessions, blobs }: GroupPreconditions) {
    const sessionIds = this.#bind(sessions.map(({ id }) => id))
    const blobIds = this.#bind(blobs)
    const versions = this.#bind(sessions.map(({ version }) => version))
    this.#parts.push(
      `locked_sessions AS MATERIALIZED (
        SELECT id, version FROM llm_proxy.sessions WHERE id = ANY(${sessionIds}::bigint[])
        ORDER BY id FOR NO KEY UPDATE
      )`,
      `valid_sessions AS MATERIALIZED (
        SELECT id FROM locked_sessions
        JOIN unnest(${sessionIds}::bigint[], ${versions}::bigint[]) AS expected (id, version) USING (id, version)
      )`,
      `valid_blobs AS MATERIALIZED (
        SELECT id FROM llm_proxy.blobs WHERE id = ANY(${blobIds}::bigint[]) ORDER BY id FOR KEY SHARE
      )`,
      `lease AS (
        UPDATE llm_proxy.proxies SET last_group = ${this.#bind(group)}, next_ids = ${this.#bind(nextIds)}
        WHERE (SELECT count(*) FROM valid_sessions) = cardinality(${sessionIds}::bigint[])
          AND (SELECT count(*) FROM valid_blobs) = cardinality(${blobIds}::bigint[])
          AND id = ${this.#bind(lease.id)} AND epoch = ${this.#bind(lease.epoch)} AND ended = 0
        RETURNING id
      )`,
    )
  }

  /** Inserts rows. @param conflict the `ON CONFLICT` clause; default: a duplicate row is an error */
  insert(table: Table, rows: readonly ColumnValues[], conflict = ''): void {
    if (rows.length === 0) return
    const columns = COLUMNS[table]
    this.#add(`insert_${table}`, [
      `INSERT INTO llm_proxy.${table} (${columns.join(', ')})`,
      `SELECT ${columns.map((column) => `input.${column}`).join(', ')}`,
      `FROM ${this.#unnest(table, columns, rows)}, lease ${conflict}`,
    ])
  }

  /**
   * Inserts rows, or replaces all columns but the id of a row with the same key. @param key columns of a unique index
   */
  put(table: Table, key: readonly string[], rows: readonly ColumnValues[]): void {
    const others = COLUMNS[table].filter((column) => column !== 'id' && !key.includes(column))
    const replaced = others.map((column) => `${column} = excluded.${column}`)
    this.insert(table, rows, `ON CONFLICT (${key.join(', ')}) DO UPDATE SET ${replaced.join(', ')}`)
  }

  /** Updates rows. @param columns the columns that change, without `id` */
  update(table: Table, columns: readonly string[], rows: readonly ColumnValues[]): void {
    if (rows.length === 0) return
    this.#add(`update_${table}_${columns.length}`, [
      `UPDATE llm_proxy.${table} SET ${columns.map((column) => `${column} = input.${column}`).join(', ')}`,
      `FROM ${this.#unnest(table, ['id', ...columns], rows)}, lease WHERE ${table}.id = input.id`,
    ])
  }

  delete(table: Table, ids: readonly number[]): void {
    if (ids.length === 0) return
    this.#add(`delete_${table}`, [
      `DELETE FROM llm_proxy.${table} USING lease WHERE ${table}.id = ANY(${this.#bind(ids)}::bigint[])`,
    ])
  }

  /** The statement. Its one row is a {@link GroupResult}. */
  get query(): { name: string; text: string; values: unknown[] } {
    const text = `WITH ${this.#parts.join(',\n')}
      SELECT (SELECT count(*) FROM lease) AS committed, ARRAY(SELECT id FROM valid_sessions) AS sessions,
        ARRAY(SELECT id FROM valid_blobs) AS blobs`
    return { name: getName(text), text, values: this.#values }
  }

  #add(name: string, lines: readonly string[]): void {
    this.#parts.push(`${name} AS (\n${lines.join('\n')}\n)`)
  }

  /** Returns rows as a table `input`. They are sent as an array per column. */
  #unnest(table: Table, columns: readonly string[], rows: readonly ColumnValues[]): string {
    const arrays = columns.map((column) => {
      const type = getColumnType(table, column)
      return `${this.#bind(rows.map((row) => toDriver(type, row[column])))}::${type}[]`
    })
    return `unnest(${arrays.join(', ')}) AS input (${columns.join(', ')})`
  }

  #bind(value: unknown): string {
    this.#values.push(value)
    return `$${this.#values.length}`
  }
}

/** Names of the statements so far. The server caches the plan of each under a name of at most 63 bytes. */
const names = new Map<string, string>()

function getName(text: string): string {
  const name = names.get(text) ?? `group ${names.size}`
  names.set(text, name)
  return name
}
