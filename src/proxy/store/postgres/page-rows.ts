/**
 * The rows of a page of turns. They are fetched before the page is built, so that {@link Reader} can build it
 * synchronously.
 */
import type { Client } from 'pg'
import type { TokenDataKind } from '../../../protocol/token-data/kinds.ts'
import type { TokenDataBlob } from '../../../protocol/token-data/token-data.ts'
import { unpackRowIds } from '../common/packing.ts'
import type { Reader } from '../common/reader.ts'
import {
  MAX_PAGE_TURNS,
  type NodeRow,
  type ReaderTables,
  type ReadingPosition,
  type SequenceRow,
  type TextRow,
} from '../common/tables.ts'
import { STEP_COLUMNS } from '../common/turn-columns.ts'
import type { CompletionRow, StepRow, TurnRow } from '../common/turn-rows.ts'
import { fromDriver, toTextParameter } from './columns.ts'
import { SEQUENCE_CHAIN } from './missing-rows.ts'
import { selectTree } from './select-sessions.ts'

type DetailRow = TokenDataBlob & { detail_sum: number | null; turn_id: string }

/** The rows from which a page is built. */
class PageRows {
  tree: number | undefined
  turns: StepRow[] = []
  readonly nodes = new Map<number, NodeRow>()
  readonly texts = new Map<number, TextRow>()
  readonly blobs = new Map<number, Buffer>()
  readonly completions = new Map<number, CompletionRow>()
  readonly sequences = new Map<number, SequenceRow>()
  details: DetailRow[] = []
}

/** The tables, limited to the rows of the page that is being built. */
export class PageTables implements ReaderTables {
  rows = new PageRows()

  findTree(): number | undefined {
    return this.rows.tree
  }

  listTurnsAfter(): Iterable<TurnRow> {
    return this.rows.turns
  }

  listStepsAfter(): Iterable<StepRow> {
    return this.rows.turns
  }

  findTurn(): TurnRow | undefined {
    return this.rows.turns[0]
  }

  getNode(id: number): NodeRow | undefined {
    return this.rows.nodes.get(id)
  }

  getText(id: number): TextRow | undefined {
    return this.rows.texts.get(id)
  }

  findBlob(id: number): Buffer | undefined {
    return this.rows.blobs.get(id)
  }

  findCompletion(id: number): CompletionRow | undefined {
    return this.rows.completions.get(id)
  }

  listDetails(_tree: number, turnId: string) {
    return this.rows.details.filter(({ turn_id: of }) => of === turnId)
  }

  findSequence(id: number): SequenceRow | undefined {
    return this.rows.sequences.get(id)
  }

  listBases(): number[] {
    return []
  }

  listTurns(): number[] {
    return []
  }

  runInSnapshot<T>(read: () => T): T {
    return read()
  }
}

type PageReading = NonNullable<ReturnType<Reader['getProgress']>>

/**
 * The token ids that a page needs. `turns`: all of each turn; `steps`: only those that a turn adds to turns already
 * returned; `none`: no others than the rows of its turns contain.
 */
export type PageTokenScope = 'turns' | 'steps' | 'none'

const FIRST_POSITION = { index: -1, id: 0 }

export class PageFetch {
  readonly #client: Client
  readonly #reader: Reader
  readonly #rows = new PageRows()

  constructor(client: Client, reader: Reader) {
    this.#client = client
    this.#reader = reader
  }

  /** Fetches the next turns of a reading. */
  async fetchPage(
    sessionId: string,
    reading: PageReading | undefined,
    tokens: PageTokenScope,
  ): Promise<PageRows> {
    const tree = await selectTree(this.#client, sessionId)
    this.#rows.tree = tree
    if (tree === undefined || (reading !== undefined && reading.tree !== tree)) return this.#rows
    const position: ReadingPosition = reading ?? { tree, ...FIRST_POSITION }
    this.#rows.turns = await this.#select<StepRow>(
      `SELECT ${STEP_COLUMNS} FROM llm_proxy.turns WHERE tree = $1 AND (call_index, id) > ($2::bigint, $3::bigint)
       ORDER BY call_index, id LIMIT ${MAX_PAGE_TURNS}`,
      [position.tree, position.index, position.id],
    )
    await this.#fetchReferencedRows(reading, tokens)
    return this.#rows
  }

  async fetchTurn(sessionId: string, turnId: string): Promise<PageRows> {
    this.#rows.tree = await selectTree(this.#client, sessionId)
    this.#rows.turns = await this.#select<StepRow>(
      `SELECT ${STEP_COLUMNS} FROM llm_proxy.turns WHERE tree = $1 AND turn_id = $2`,
      [this.#rows.tree, toTextParameter(turnId)],
    )
    await this.#fetchReferencedRows(undefined, 'turns')
    return this.#rows
  }

  async fetchDetails(
    sessionId: string,
    turnIds: readonly string[],
    kinds: readonly TokenDataKind[],
  ): Promise<PageRows> {
    this.#rows.tree = await selectTree(this.#client, sessionId)
    this.#rows.details = await this.#select<DetailRow>(
      `SELECT details.*, turns.turn_id FROM llm_proxy.turns
       JOIN llm_proxy.details ON details.tree = turns.tree AND details.turn = turns.id
       WHERE turns.tree = $1 AND turns.turn_id = ANY($2::text[]) AND kind = ANY($3::text[])`,
      [this.#rows.tree, turnIds.map(toTextParameter), kinds],
    )
    return this.#rows
  }

  async #fetchReferencedRows(reading: PageReading | undefined, tokens: PageTokenScope): Promise<void> {
    if (this.#rows.turns.length === 0) return
    await this.#fetchNodes(reading)
    await this.#fetchTexts(reading)
    if (tokens !== 'none') await this.#fetchSequences(reading, tokens)
  }

  /** Fetches the nodes of messages and prompts, up to those that the reading already has. */
  async #fetchNodes(reading: PageReading | undefined): Promise<void> {
    const known = [...(reading?.messages ?? []), ...(reading?.prompt ?? [])].map(({ id }) => id)
    const wanted = this.#rows.turns.flatMap(({ node, prompt_node: prompt }) => [node, prompt])
    const rows = await this.#select<NodeRow & { id: number }>(
      `WITH RECURSIVE up AS (
         SELECT id, tree, parent, depth, texts, node_sum FROM llm_proxy.nodes WHERE id = ANY($1::bigint[])
         UNION
         SELECT nodes.id, nodes.tree, nodes.parent, nodes.depth, nodes.texts, nodes.node_sum
         FROM llm_proxy.nodes JOIN up ON nodes.id = up.parent WHERE up.id <> ALL($2::bigint[])
       )
       SELECT * FROM up`,
      [removeDuplicateIds(wanted), known],
    )
    for (const row of rows) this.#rows.nodes.set(row.id, row)
  }

  async #fetchTexts(reading: PageReading | undefined): Promise<void> {
    const inNodes = [...this.#rows.nodes.values()].flatMap(({ texts }) => unpackRowIds(texts))
    const ofTurns = this.#rows.turns.flatMap(({ tools, params }) =>
      tools === null ? [params] : [tools, params],
    )
    const wanted = removeDuplicateIds([...inNodes, ...ofTurns]).filter(
      (id) => !reading?.returnedTexts.has(id),
    )
    const rows = await this.#select<TextRow & { id: number }>(
      'SELECT id, echo_of, blobs, body, hash FROM llm_proxy.texts WHERE id = ANY($1::bigint[])',
      [wanted],
    )
    for (const row of rows) this.#rows.texts.set(row.id, row)
    await this.#fetchCompletions(rows.flatMap(({ echo_of: turn }) => (turn === null ? [] : [turn])))
    await this.#fetchBlobs(rows.flatMap(({ blobs }) => (blobs === null ? [] : unpackRowIds(blobs))))
  }

  async #fetchCompletions(ids: readonly number[]): Promise<void> {
    if (ids.length === 0) return
    const rows = await this.#select<CompletionRow>(
      'SELECT id, completion_text, reasoning, tool_calls FROM llm_proxy.turns WHERE id = ANY($1::bigint[])',
      [removeDuplicateIds(ids)],
    )
    for (const row of rows) this.#rows.completions.set(row.id, row)
  }

  async #fetchBlobs(ids: readonly number[]): Promise<void> {
    if (ids.length === 0) return
    const rows = await this.#select<{ id: number; body: Buffer }>(
      'SELECT id, body FROM llm_proxy.blobs WHERE id = ANY($1::bigint[])',
      [removeDuplicateIds(ids)],
    )
    for (const { id, body } of rows) this.#rows.blobs.set(id, body)
  }

  /** Fetches the sequences of the page's turns and of their base turns, back to those in the cache. */
  async #fetchSequences(reading: PageReading | undefined, tokens: PageTokenScope): Promise<void> {
    const { sequences, turns } = this.#rows
    for (const { id, prompt_base, prompt_shared, prompt_rest, completion_ids, ids_sum } of turns) {
      const prompt = { base: prompt_base, shared: prompt_shared, rest: prompt_rest }
      sequences.set(id, { id, ...prompt, completion: completion_ids, sum: ids_sum })
    }
    const isKnown = (id: number) =>
      sequences.has(id) ||
      this.#reader.hasCachedTokens(id) ||
      (tokens === 'steps' && reading?.returnedSteps.has(id) === true)
    const bases = turns.flatMap(({ prompt_base: base }) => (base === null || isKnown(base) ? [] : [base]))
    if (bases.length === 0) return
    for (const row of await this.#select<SequenceRow>(SEQUENCE_CHAIN, [removeDuplicateIds(bases)]))
      sequences.set(row.id, row)
  }

  async #select<T extends object>(sql: string, values: readonly unknown[]): Promise<T[]> {
    const { rows } = await this.#client.query<Record<string, unknown>>(sql, [...values])
    return rows.map((row) => fromDriver(row) as T)
  }
}

function removeDuplicateIds(ids: readonly number[]): number[] {
  return [...new Set(ids)]
}
