/**
 * Builds the changes of a group of operations as one statement, which PostgreSQL runs as one transaction, in one round
 * trip. The statement first locks the rows that the group depends on (sessions in order of their ids, to avoid
 * deadlocks between groups). It changes nothing if one of them differs from the writer's cache.
 */
import type { Row } from '../common/tables.ts'
import { COLUMNS, getColumnType, type Table, toDriver } from './columns.ts'

/** The preconditions of a group. */
interface GroupConditions {
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
export interface GroupResponse {
  /** 1; or 0 if the lease is not the writer's any more, and nothing has changed. */
  writers: number
  /** Ids of the sessions that match the writer's cache. */
  sessions: number[]
  /** Ids of the blobs that still exist. */
  blobs: number[]
}

export class GroupStatement {
  readonly #parts: string[] = []
  readonly #values: unknown[] = []

  constructor({ lease, group, nextIds, sessions, blobs }: GroupConditions) {
    const ids = this.#bind(sessions.map(({ id }) => id))
    const known = this.#bind(blobs)
    const versions = this.#bind(sessions.map(({ version }) => version))
    this.#parts.push(
      `locked AS MATERIALIZED (
        SELECT id, version FROM llm_proxy.sessions WHERE id = ANY(${ids}::bigint[]) ORDER BY id FOR NO KEY UPDATE
      )`,
      `same AS MATERIALIZED (
        SELECT id FROM locked JOIN unnest(${ids}::bigint[], ${versions}::bigint[]) AS known (id, version) USING (id, version)
      )`,
      `kept AS MATERIALIZED (
        SELECT id FROM llm_proxy.blobs WHERE id = ANY(${known}::bigint[]) ORDER BY id FOR KEY SHARE
      )`,
      `me AS (
        UPDATE llm_proxy.proxies SET last_group = ${this.#bind(group)}, next_ids = ${this.#bind(nextIds)}
        WHERE (SELECT count(*) FROM same) = cardinality(${ids}::bigint[])
          AND (SELECT count(*) FROM kept) = cardinality(${known}::bigint[])
          AND id = ${this.#bind(lease.id)} AND epoch = ${this.#bind(lease.epoch)} AND ended = 0
        RETURNING id
      )`,
    )
  }

  /** Inserts rows. @param conflict the `ON CONFLICT` clause; default: a duplicate row is an error */
  insert(table: Table, rows: readonly Row[], conflict = ''): void {
    if (rows.length === 0) return
    const columns = COLUMNS[table]
    this.#add(`insert_${table}`, [
      `INSERT INTO llm_proxy.${table} (${columns.join(', ')})`,
      `SELECT ${columns.map((column) => `given.${column}`).join(', ')}`,
      `FROM ${this.#given(table, columns, rows)}, me ${conflict}`,
    ])
  }

  /**
   * Inserts rows, or replaces all columns but the id of a row with the same key. @param key columns of a unique index
   */
  put(table: Table, key: readonly string[], rows: readonly Row[]): void {
    const others = COLUMNS[table].filter((column) => column !== 'id' && !key.includes(column))
    const replaced = others.map((column) => `${column} = excluded.${column}`)
    this.insert(table, rows, `ON CONFLICT (${key.join(', ')}) DO UPDATE SET ${replaced.join(', ')}`)
  }

  /** Updates rows. @param columns the columns that change, without `id` */
  update(table: Table, columns: readonly string[], rows: readonly Row[]): void {
    if (rows.length === 0) return
    this.#add(`update_${table}_${columns.length}`, [
      `UPDATE llm_proxy.${table} SET ${columns.map((column) => `${column} = given.${column}`).join(', ')}`,
      `FROM ${this.#given(table, ['id', ...columns], rows)}, me WHERE ${table}.id = given.id`,
    ])
  }

  delete(table: Table, ids: readonly number[]): void {
    if (ids.length === 0) return
    const given = this.#given(
      table,
      ['id'],
      ids.map((id) => ({ id })),
    )
    this.#add(`delete_${table}`, [
      `DELETE FROM llm_proxy.${table} USING ${given}, me WHERE ${table}.id = given.id`,
    ])
  }

  /** The statement. Its one row is a {@link GroupResponse}. */
  get query(): { name: string; text: string; values: unknown[] } {
    const text = `WITH ${this.#parts.join(',\n')}
      SELECT (SELECT count(*) FROM me) AS writers, ARRAY(SELECT id FROM same) AS sessions, ARRAY(SELECT id FROM kept) AS blobs`
    return { name: getName(text), text, values: this.#values }
  }

  #add(name: string, lines: readonly string[]): void {
    this.#parts.push(`${name} AS (\n${lines.join('\n')}\n)`)
  }

  #given(table: Table, columns: readonly string[], rows: readonly Row[]): string {
    const arrays = columns.map((column) => {
      const type = getColumnType(table, column)
      return `${this.#bind(rows.map((row) => toDriver(type, row[column])))}::${type}[]`
    })
    return `unnest(${arrays.join(', ')}) AS given (${columns.join(', ')})`
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
