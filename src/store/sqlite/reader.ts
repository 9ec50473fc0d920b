/** Answers reads from the database. Runs on the reader thread; knows nothing of threads. */
import type Database from 'better-sqlite3'
import type {
  SessionFilter,
  SessionGroup,
  SessionPage,
  SessionQuery,
  SessionRecord,
  SessionTotals,
  TurnOutline,
  TurnRecord,
  TurnStatus,
} from '../turn-store.ts'
import { expandEcho } from './echo.ts'
import {
  countIds,
  type StoredText,
  unpackIds,
  unpackLogprobs,
  unpackOptionalText,
  unpackText,
} from './packing.ts'
import { type CompletionRow, ROOT, toCompletion } from './requests.ts'
import { SessionReader } from './sessions.ts'
import { TokenSequences } from './token-sequences.ts'

export interface ReadMethods {
  getSession(sessionId: string): SessionRecord | undefined
  listSessions(query: SessionQuery): SessionPage
  totalSessions(filter: SessionFilter): SessionTotals
  groupSessions(by: string, filter: SessionFilter): SessionGroup[]
  readPage(reading: number, sessionId: string): TurnPage
  readOutlinePage(reading: number, sessionId: string): TurnPage<TurnOutline>
  endReading(reading: number): void
  readTurn(sessionId: string, turnId: string): TurnPage
}

/** The next turns of one reading. Texts come once per reading, however many turns point to them. */
export interface TurnPage<T extends TurnParts = TurnRecord> {
  texts: [id: number, text: string][]
  turns: PagedTurn<T>[]
  done: boolean
}

type TurnParts = TurnRecord | TurnOutline

/** A turn with texts by their id, and with its lists as the difference to the turn before it in the reading. */
export type PagedTurn<T extends TurnParts = TurnRecord> = Omit<
  T,
  'requestMessages' | 'promptPieces' | 'tools' | 'params'
> & {
  messages: PagedList
  prompt: PagedList
  tools: number | null
  params: number
}

export interface PagedList {
  /** How many texts are those of the turn before. */
  shared: number
  /** The ids of the texts after them. */
  added: number[]
}

interface TurnRow {
  id: number
  call_index: number
  turn_id: string
  status: TurnStatus
  dialect: string
  started_at_ms: number
  retry_count: number
  node: number
  tools: number | null
  params: number
  prompt_node: number
  ended_at_ms: number | null
  first_token_at_ms: number | null
  model: StoredText | null
  engine: StoredText | null
  finish_reason: StoredText | null
  stop_reason: StoredText | null
  exact: number | null
  inexact_reason: StoredText | null
  weight_version_start: StoredText | null
  weight_version_end: StoredText | null
  usage: StoredText | null
  annotations: StoredText | null
  error_code: string | null
  error_message: StoredText | null
  completion_text: StoredText | null
  reasoning: StoredText | null
  tool_calls: StoredText | null
  completion_logprobs: Buffer | null
}

interface OutlineRow extends TurnRow {
  prompt_shared: number | null
  prompt_rest: Buffer | null
  completion_ids: Buffer | null
  base_index: number | null
}

const TURN_COLUMNS = `
  id, call_index, turn_id, status, dialect, started_at_ms, retry_count, node, tools, params, prompt_node,
  ended_at_ms, first_token_at_ms, model, engine, finish_reason, stop_reason, exact, inexact_reason,
  weight_version_start, weight_version_end, usage, annotations, error_code, error_message,
  completion_text, reasoning, tool_calls, completion_logprobs`

/** A page ends with the turn that takes it past either bound: some milliseconds' work. */
const MAX_PAGE_TURNS = 64
const MAX_PAGE_BYTES = 2 * 1024 * 1024

/** A node and how many texts lie between the root and its end. */
interface PathNode {
  id: number
  depth: number
}

/** How far one reading of a session has come. */
interface Reading {
  sessionId: string
  tree: number
  /** The last turn given out. */
  index: number
  id: number
  /** The nodes from the root to that turn's messages, and to its prompt. */
  messages: PathNode[]
  prompt: PathNode[]
  textsGiven: Set<number>
}

export class Reader implements ReadMethods {
  readonly #sessions: SessionReader
  readonly #sequences: TokenSequences
  readonly #readings = new Map<number, Reading>()
  readonly #turnsAfter: Database.Statement<[{ tree: number; index: number; id: number }], TurnRow>
  readonly #turnById: Database.Statement<[number, string], TurnRow>
  readonly #node: Database.Statement<[number], { parent: number; depth: number; texts: Buffer }>
  readonly #text: Database.Statement<[number], { echo_of: number | null; body: StoredText }>
  readonly #completion: Database.Statement<[number], CompletionRow>
  readonly #outlinesAfter: Database.Statement<[{ tree: number; index: number; id: number }], OutlineRow>
  readonly #inOneSnapshot: <T>(read: () => T) => T

  constructor(db: Database.Database, cacheBytes: number) {
    this.#sessions = new SessionReader(db)
    this.#sequences = new TokenSequences(db, cacheBytes)
    // The plus sign: see RequestWriter.
    this.#turnsAfter = db.prepare(`
      SELECT ${TURN_COLUMNS} FROM turns WHERE tree = +@tree AND (call_index, id) > (@index, @id)
      ORDER BY call_index, id LIMIT ${MAX_PAGE_TURNS}`)
    this.#outlinesAfter = db.prepare(`
      SELECT ${TURN_COLUMNS}, prompt_shared, prompt_rest, completion_ids,
        (SELECT call_index FROM turns base WHERE base.id = turns.prompt_base) AS base_index
      FROM turns WHERE tree = +@tree AND (call_index, id) > (@index, @id)
      ORDER BY call_index, id LIMIT ${MAX_PAGE_TURNS}`)
    this.#turnById = db.prepare(`SELECT ${TURN_COLUMNS} FROM turns WHERE tree = ? AND turn_id = ?`)
    this.#node = db.prepare('SELECT parent, depth, texts FROM nodes WHERE id = ?')
    this.#text = db.prepare('SELECT echo_of, body FROM texts WHERE id = ?')
    this.#completion = db.prepare('SELECT id, completion_text, reasoning, tool_calls FROM turns WHERE id = ?')
    const transaction = db.transaction((read: () => unknown) => read())
    this.#inOneSnapshot = <T>(read: () => T) => transaction(read) as T
  }

  getSession(sessionId: string): SessionRecord | undefined {
    return this.#sessions.get(sessionId)
  }

  listSessions(query: SessionQuery): SessionPage {
    return this.#sessions.list(query)
  }

  totalSessions(filter: SessionFilter): SessionTotals {
    return this.#sessions.totals(filter)
  }

  groupSessions(by: string, filter: SessionFilter): SessionGroup[] {
    return this.#sessions.groups(by, filter)
  }

  /** `reading` is the caller's number for one pass over a session; the first page begins it, the last one ends it. */
  readPage(reading: number, sessionId: string): TurnPage {
    return this.#pageOf(reading, sessionId, this.#turnsAfter, (row) => this.#wholePart(row))
  }

  readOutlinePage(reading: number, sessionId: string): TurnPage<TurnOutline> {
    return this.#pageOf(reading, sessionId, this.#outlinesAfter, outlinePart)
  }

  endReading(reading: number): void {
    this.#readings.delete(reading)
  }

  /** The one turn as a page of its own; empty if there is none. */
  readTurn(sessionId: string, turnId: string): TurnPage {
    return this.#inOneSnapshot(() => {
      const reading = this.#begin(sessionId)
      const row = reading && this.#turnById.get(reading.tree, turnId)
      const page: TurnPage = { texts: [], turns: [], done: true }
      if (reading === undefined || row === undefined) return page
      page.turns.push({ ...this.#sharedPart(row, reading, page), ...this.#wholePart(row) })
      return page
    })
  }

  #begin(sessionId: string): Reading | undefined {
    const tree = this.#sessions.tree(sessionId)
    if (tree === undefined) return undefined
    return { sessionId, tree, index: -1, id: 0, messages: [], prompt: [], textsGiven: new Set() }
  }

  #pageOf<T extends TurnParts, Row extends TurnRow>(
    number: number,
    sessionId: string,
    rowsAfter: Database.Statement<[Reading], Row>,
    partOf: (row: Row) => Omit<PagedTurn<T>, keyof SharedPart>,
  ): TurnPage<T> {
    const reading = this.#readings.get(number) ?? this.#begin(sessionId)
    if (reading === undefined) return { texts: [], turns: [], done: true }
    const page = this.#inOneSnapshot(() => this.#nextPage(reading, rowsAfter, partOf))
    if (page.done) this.#readings.delete(number)
    else this.#readings.set(number, reading)
    return page
  }

  #nextPage<T extends TurnParts, Row extends TurnRow>(
    reading: Reading,
    rowsAfter: Database.Statement<[Reading], Row>,
    partOf: (row: Row) => Omit<PagedTurn<T>, keyof SharedPart>,
  ): TurnPage<T> {
    const page: TurnPage<T> = { texts: [], turns: [], done: true }
    // Deleted or reset since the last page: some of its rows may be gone already.
    if (this.#sessions.tree(reading.sessionId) !== reading.tree) return page
    let bytes = 0
    for (const row of rowsAfter.iterate(reading)) {
      const part = partOf(row)
      const turn = { ...this.#sharedPart(row, reading, page), ...part } as PagedTurn<T>
      reading.index = row.call_index
      reading.id = row.id
      page.turns.push(turn)
      bytes += (part as Partial<TurnRecord>).promptTokenIds?.byteLength ?? 0
      bytes += turn.completionText?.length ?? 0
      page.done = page.turns.length < MAX_PAGE_TURNS && bytes + textLength(page) <= MAX_PAGE_BYTES
      if (!page.done) break
    }
    return page
  }

  /** What both a whole turn and its outline have. */
  #sharedPart(row: TurnRow, reading: Reading, page: Pick<TurnPage, 'texts'>): SharedPart {
    const give = (text: number) => this.#giveText(text, reading, page)
    const messages = this.#walkTo(row.node, reading.messages)
    const prompt = this.#walkTo(row.prompt_node, reading.prompt)
    messages.added.forEach(give)
    prompt.added.forEach(give)
    if (row.tools !== null) give(row.tools)
    give(row.params)
    return {
      ...requestPart(row, reading.sessionId),
      ...outcomePart(row),
      messages,
      prompt,
    }
  }

  #wholePart(row: TurnRow) {
    // Not before the turn is closed: what it will have must not be remembered as what it has.
    const closed = row.tool_calls !== null
    const { promptIds, completionIds } = closed ? this.#sequences.read(row.id) : NO_TOKEN_IDS()
    return {
      promptTokenIds: promptIds,
      completionTokenIds: completionIds,
      completionLogprobs:
        row.completion_logprobs === null ? new Float64Array(0) : unpackLogprobs(row.completion_logprobs),
    }
  }

  /** Moves `path` to `node`. */
  #walkTo(node: number, path: PathNode[]): PagedList {
    const added: PathNode[] = []
    const runs: Int32Array[] = []
    let at = node
    while (at !== ROOT) {
      const { parent, depth, texts } = this.#node.get(at)!
      // On the way up depth falls, so that what lies deeper than here is not on the way.
      while ((path.at(-1)?.depth ?? 0) > depth) path.pop()
      if (path.at(-1)?.id === at) break
      added.push({ id: at, depth })
      runs.push(unpackIds(texts))
      at = parent
    }
    if (at === ROOT) path.length = 0
    const shared = path.at(-1)?.depth ?? 0
    for (const step of added.reverse()) path.push(step)
    return { shared, added: runs.reverse().flatMap((run) => [...run]) }
  }

  #giveText(id: number, reading: Reading, page: Pick<TurnPage, 'texts'>): void {
    if (reading.textsGiven.has(id)) return
    reading.textsGiven.add(id)
    const { echo_of: echoOf, body } = this.#text.get(id)!
    const text = unpackText(body)
    const whole = echoOf === null ? text : expandEcho(text, toCompletion(this.#completion.get(echoOf)!))
    page.texts.push([id, whole])
  }
}

type SharedPart = Omit<PagedTurn, 'promptTokenIds' | 'completionTokenIds' | 'completionLogprobs'>

const NO_TOKEN_IDS = () => ({ promptIds: new Int32Array(0), completionIds: new Int32Array(0) })

function outlinePart(row: OutlineRow) {
  const { prompt_shared: shared, prompt_rest: rest, completion_ids: sampled, base_index: index } = row
  return {
    promptTokens: rest === null ? 0 : (shared ?? 0) + countIds(rest),
    sampledTokens: sampled === null ? 0 : countIds(sampled),
    base: index === null || shared === null ? null : { index, shared },
  }
}

function outcomePart(row: TurnRow) {
  return {
    endedAtMs: row.ended_at_ms,
    firstTokenAtMs: row.first_token_at_ms,
    model: unpackOptionalText(row.model),
    engine: unpackOptionalText(row.engine),
    ...toCompletion(row),
    toolCalls: unpackOptionalText(row.tool_calls) ?? '[]',
    finishReason: unpackOptionalText(row.finish_reason),
    stopReason: unpackOptionalText(row.stop_reason),
    exact: row.exact === 1,
    inexactReason: unpackOptionalText(row.inexact_reason),
    weightVersionStart: unpackOptionalText(row.weight_version_start),
    weightVersionEnd: unpackOptionalText(row.weight_version_end),
    usage: unpackOptionalText(row.usage),
    annotations: unpackOptionalText(row.annotations) ?? '{}',
    error:
      row.error_code === null
        ? null
        : { code: row.error_code, message: unpackOptionalText(row.error_message) ?? '' },
  }
}

function requestPart(row: TurnRow, sessionId: string) {
  return {
    turnId: row.turn_id,
    sessionId,
    index: row.call_index,
    status: row.status,
    dialect: row.dialect,
    startedAtMs: row.started_at_ms,
    retryCount: row.retry_count,
    tools: row.tools,
    params: row.params,
  }
}

function textLength(page: Pick<TurnPage, 'texts'>): number {
  return page.texts.reduce((sum, [, text]) => sum + text.length, 0)
}
