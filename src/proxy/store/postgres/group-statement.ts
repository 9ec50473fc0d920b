/**
 * The changes of a group of calls as one statement, which PostgreSQL runs as one transaction: one way there and back,
 * and never half done. It changes nothing once another writer has taken over.
 */
import type { Row } from '../record/tables.ts'
import { COLUMNS, type Table, toDriver, typeOf } from './columns.ts'

export class GroupStatement {
  readonly #parts: string[] = []
  readonly #values: unknown[] = []

  /** @param group its number @param nextIds JSON text */
  constructor({ epoch, group, nextIds }: { epoch: number; group: number; nextIds: string }) {
    this.#parts.push(`
      me AS (
        UPDATE llm_proxy.writer SET last_group = ${this.#bind(group)}, next_ids = ${this.#bind(nextIds)}
        WHERE epoch = ${this.#bind(epoch)} RETURNING id
      )`)
  }

  /** @param conflict what to do about a row that is there already; default: that is an error */
  insert(table: Table, rows: readonly Row[], conflict = ''): void {
    if (rows.length === 0) return
    const columns = COLUMNS[table]
    this.#add(`insert_${table}`, [
      `INSERT INTO llm_proxy.${table} (${columns.join(', ')})`,
      `SELECT ${columns.map((column) => `given.${column}`).join(', ')}`,
      `FROM ${this.#given(table, columns, rows)}, me ${conflict}`,
    ])
  }

  /** Inserts, or replaces all but the id of a row that has the same key. @param key columns of a unique index */
  put(table: Table, key: readonly string[], rows: readonly Row[]): void {
    const others = COLUMNS[table].filter((column) => column !== 'id' && !key.includes(column))
    const replaced = others.map((column) => `${column} = excluded.${column}`)
    this.insert(table, rows, `ON CONFLICT (${key.join(', ')}) DO UPDATE SET ${replaced.join(', ')}`)
  }

  /** @param columns those that change, beside `id` */
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

  /** Its one row tells how many writers it was: none, when another one has taken over. */
  get query(): { name: string; text: string; values: unknown[] } {
    const text = `WITH ${this.#parts.join(',\n')}\nSELECT count(*) AS writers FROM me`
    return { name: nameOf(text), text, values: this.#values }
  }

  #add(name: string, lines: readonly string[]): void {
    this.#parts.push(`${name} AS (\n${lines.join('\n')}\n)`)
  }

  #given(table: Table, columns: readonly string[], rows: readonly Row[]): string {
    const arrays = columns.map((column) => {
      const type = typeOf(table, column)
      return `${this.#bind(rows.map((row) => toDriver(type, row[column])))}::${type}[]`
    })
    return `unnest(${arrays.join(', ')}) AS given (${columns.join(', ')})`
  }

  #bind(value: unknown): string {
    this.#values.push(value)
    return `$${this.#values.length}`
  }
}

/** Of the statements that there have been: the server keeps the plan of each under a name of at most 63 bytes. */
const names = new Map<string, string>()

function nameOf(text: string): string {
  const name = names.get(text) ?? `group ${names.size}`
  names.set(text, name)
  return name
}
