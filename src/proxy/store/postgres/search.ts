/** Finds turns by their text, and maintains the search index. A commit only adds its turns to `unsearched`. */
import type { Client } from 'pg'
import {
  CANDIDATE_COLUMNS,
  type SearchCandidate,
  type SearchPart,
  type SearchRequest,
  type SearchRow,
  type SearchSource,
  searchBatch,
  toSearchCandidate,
  unpackTextIds,
} from '../common/search.ts'
import { type SessionRow, toRecord } from '../common/session-rows.ts'
import type { TextRow } from '../common/tables.ts'
import { extractTurnText } from '../port/turn-search.ts'
import type { SessionRecord } from '../port/turn-store.ts'
import { fromDriver } from './columns.ts'
import { runInTransaction } from './connection.ts'
import { SELECT_SESSIONS } from './select-sessions.ts'

/** The number of turns that one step indexes. */
const INDEXED_AT_ONCE = 32

type TextRowWithId = TextRow & { id: number }

/** The queries of one search, over one connection. */
class PostgresSearch implements SearchSource {
  readonly #client: Client

  constructor(client: Client) {
    this.#client = client
  }

  async findCandidates(wanted: string, before: number, limit: number): Promise<number[]> {
    const rows = await this.#select<{ id: number }>(
      `(SELECT id FROM llm_proxy.unsearched WHERE id < $1 ORDER BY id DESC LIMIT $2)
       UNION
       (SELECT id FROM llm_proxy.searched WHERE id < $1 AND folded LIKE $3 ORDER BY id DESC LIMIT $2)
       ORDER BY id DESC LIMIT $2`,
      [before, limit, `%${fold(wanted).replace(/[\\%_]/g, '\\$&')}%`],
    )
    return rows.map(({ id }) => id)
  }

  async readTurns(turns: readonly number[], isWanted: (session: SessionRecord) => boolean) {
    const rows = await this.#rows(turns)
    const sessions = await this.#select<SessionRow>(`${SELECT_SESSIONS} WHERE tree = ANY($1::bigint[])`, [
      [...new Set(rows.map(({ tree }) => tree))],
    ])
    const byTree = new Map(sessions.map((row) => [row.tree, toRecord(row)]))
    const wanted = rows.filter(({ tree }) => byTree.has(tree) && isWanted(byTree.get(tree)!))
    const found = await this.#withTexts(wanted)
    return found.map((turn, index) => ({ turn, session: byTree.get(wanted[index]!.tree)! }))
  }

  async hasIndex(): Promise<boolean> {
    const rows = await this.#select('SELECT 1 FROM llm_proxy.searched LIMIT 1')
    return rows.length > 0
  }

  /** Indexes some turns. Several processes may run it at the same time. @returns whether more are left */
  indexSome(): Promise<boolean> {
    return runInTransaction(this.#client, async () => {
      const waiting = await this.#select<{ id: number }>(
        `SELECT id FROM llm_proxy.unsearched ORDER BY id LIMIT ${INDEXED_AT_ONCE} FOR UPDATE SKIP LOCKED`,
      )
      const ids = waiting.map(({ id }) => id)
      if (ids.length > 0) await this.#index(ids)
      return ids.length === INDEXED_AT_ONCE
    })
  }

  async #index(ids: readonly number[]): Promise<void> {
    const turns = await this.#withTexts(await this.#rows(ids))
    const texts = turns.map((turn) => {
      const { request, completion } = extractTurnText(turn)
      return fold(`${request}\n${completion}`)
    })
    // The lock makes a later deletion of the turn delete its text as well. A turn that is being deleted remains in
    // `unsearched` until it is gone.
    await this.#client.query(
      `INSERT INTO llm_proxy.searched (id, folded)
       SELECT turns.id, texts.folded FROM unnest($1::bigint[], $2::text[]) AS texts (id, folded)
       JOIN llm_proxy.turns ON turns.id = texts.id FOR KEY SHARE OF turns SKIP LOCKED
       ON CONFLICT (id) DO NOTHING`,
      [turns.map(({ id }) => id), texts],
    )
    await this.#client.query(
      `DELETE FROM llm_proxy.unsearched WHERE id = ANY($1::bigint[])
         AND (EXISTS (SELECT 1 FROM llm_proxy.searched WHERE searched.id = unsearched.id)
           OR NOT EXISTS (SELECT 1 FROM llm_proxy.turns WHERE turns.id = unsearched.id))`,
      [ids],
    )
  }

  #rows(turns: readonly number[]): Promise<SearchRow[]> {
    return this.#select(
      `SELECT ${CANDIDATE_COLUMNS} FROM llm_proxy.turns WHERE id = ANY($1::bigint[]) ORDER BY id DESC`,
      [turns],
    )
  }

  /** Adds the texts of the turns. A request's messages are omitted if an earlier turn has the same ones. */
  async #withTexts(rows: readonly SearchRow[]): Promise<SearchCandidate[]> {
    const nodes = await this.#select<{ turn: number; texts: Buffer }>(
      `SELECT turns.id AS turn, nodes.texts FROM llm_proxy.turns JOIN llm_proxy.nodes ON nodes.id = turns.prompt_node
         OR (nodes.id = turns.node AND NOT EXISTS (
           SELECT 1 FROM llm_proxy.turns AS earlier
           WHERE earlier.tree = turns.tree AND earlier.node = turns.node AND earlier.call_index < turns.call_index))
       WHERE turns.id = ANY($1::bigint[]) ORDER BY nodes.depth`,
      [rows.map(({ id }) => id)],
    )
    const ids = unpackTextIds(nodes.map(({ texts }) => texts))
    const texts = await this.#select<TextRowWithId>(
      'SELECT id, echo_of, blobs, body FROM llm_proxy.texts WHERE id = ANY($1::bigint[])',
      [[...new Set(ids)]],
    )
    const byId = new Map(texts.map((text) => [text.id, text]))
    return rows.map((row) => {
      const packed = nodes.filter(({ turn }) => turn === row.id).map((node) => node.texts)
      return toSearchCandidate(
        row,
        unpackTextIds(packed).flatMap((id) => byId.get(id) ?? []),
      )
    })
  }

  async #select<T extends object>(sql: string, values: readonly unknown[] = []): Promise<T[]> {
    const { rows } = await this.#client.query<Record<string, unknown>>(sql, [...values])
    return rows.map((row) => fromDriver(row) as T)
  }
}

/**
 * Returns a text in the form in which it is compared, in lower case, and which the server accepts: without U+0000 and
 * lone surrogates.
 */
function fold(text: string): string {
  return text.toLowerCase().toWellFormed().replaceAll('\0', ' ')
}

/** The reader's methods for searches. */
export const searchReads = {
  search: (client: Client, part: SearchRequest): Promise<SearchPart> =>
    searchBatch(new PostgresSearch(client), part),
  hasIndex: (client: Client) => new PostgresSearch(client).hasIndex(),
  indexSome: (client: Client) => new PostgresSearch(client).indexSome(),
}
