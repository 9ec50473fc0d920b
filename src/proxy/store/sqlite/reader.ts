/** Answers reads from the database. Runs on the reader thread; knows nothing of threads. */
import type Database from 'better-sqlite3'
import type { PackedDetail } from '../../../protocol/details/details.ts'
import type { DetailKind } from '../../../protocol/details/kinds.ts'
import type {
  SessionCount,
  SessionFilter,
  SessionQuery,
  SessionRecord,
  TurnOutline,
  TurnRecord,
  TurnStep,
} from '../port/turn-store.ts'
import { joinBlobs } from './blobs.ts'
import { checkSum, DETAIL_SUMMED, damaged, IDS_SUMMED, NODE_SUMMED, TURN_SUMMED } from './check-sums.ts'
import { expandEcho } from './echo.ts'
import { type StoredText, unpackIds, unpackText } from './packing.ts'
import { type CompletionRow, hashOf, ROOT, toCompletion } from './requests.ts'
import { type ListPart, SessionReader, type TallyPart } from './sessions.ts'
import { TokenSequences } from './token-sequences.ts'
import {
  idsOf,
  logprobsOf,
  outcomePart,
  outlinePart,
  requestPart,
  STEP_COLUMNS,
  type StepRow,
  TURN_COLUMNS,
  type TurnRow,
} from './turn-rows.ts'

export interface ReadMethods {
  getSession(sessionId: string): SessionRecord | undefined
  listSessions(query: SessionQuery): ListPart
  tallySessions(filter: SessionFilter, by: string | undefined, after: number): TallyPart
  countSessions(nowMs: number): SessionCount
  readPage(reading: number, sessionId: string): TurnPage
  readStepPage(reading: number, sessionId: string): TurnPage<TurnStep>
  readOutlinePage(reading: number, sessionId: string): TurnPage<TurnOutline>
  endReading(reading: number): void
  readTurn(sessionId: string, turnId: string): TurnPage
  readDetails(
    sessionId: string,
    turnIds: readonly string[],
    kinds: readonly DetailKind[],
  ): Map<string, PackedDetail[]>
}

/** The next turns of one reading. Texts come once per reading, however many turns point to them. */
export interface TurnPage<T extends TurnParts = TurnRecord> {
  texts: [id: number, text: string][]
  turns: PagedTurn<T>[]
  done: boolean
}

export type TurnParts = TurnRecord | TurnStep | TurnOutline

/** A turn with texts by their id, and with its lists as the difference to the turn before it in the reading. */
export type PagedTurn<T extends TurnParts = TurnRecord> = Omit<
  T,
  'lastMessage' | 'promptPieces' | 'tools' | 'params'
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

/** A page ends with the turn that takes it past either bound: some milliseconds' work. */
const MAX_PAGE_TURNS = 64
const MAX_PAGE_BYTES = 2 * 1024 * 1024

interface NodeRow {
  parent: number
  depth: number
  texts: Buffer
  node_sum: number | null
}

interface TextRow {
  echo_of: number | null
  blobs: Buffer | null
  body: StoredText
  hash: Buffer
}

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
  /** The turns that were given out as steps with all their tokens: their ids by those of their rows. */
  stepsGiven: Map<number, string>
}

export class Reader implements ReadMethods {
  readonly #sessions: SessionReader
  readonly #sequences: TokenSequences
  readonly #readings = new Map<number, Reading>()
  readonly #turnsAfter: Database.Statement<[{ tree: number; index: number; id: number }], TurnRow>
  readonly #turnById: Database.Statement<[number, string], TurnRow>
  readonly #node: Database.Statement<[number], NodeRow>
  readonly #text: Database.Statement<[number], TextRow>
  readonly #blob: Database.Statement<[number], Buffer>
  readonly #completion: Database.Statement<[number], CompletionRow>
  readonly #stepsAfter: Database.Statement<[{ tree: number; index: number; id: number }], StepRow>
  readonly #detailsOf: Database.Statement<[number, string], PackedDetail & { detail_sum: number | null }>
  readonly #inOneSnapshot: <T>(read: () => T) => T

  constructor(db: Database.Database, cacheBytes: number) {
    this.#sessions = new SessionReader(db)
    this.#sequences = new TokenSequences(db, cacheBytes)
    // The plus sign: see RequestWriter.
    this.#turnsAfter = db.prepare(`
      SELECT ${TURN_COLUMNS} FROM turns WHERE tree = +@tree AND (call_index, id) > (@index, @id)
      ORDER BY call_index, id LIMIT ${MAX_PAGE_TURNS}`)
    this.#stepsAfter = db.prepare(`
      SELECT ${STEP_COLUMNS} FROM turns WHERE tree = +@tree AND (call_index, id) > (@index, @id)
      ORDER BY call_index, id LIMIT ${MAX_PAGE_TURNS}`)
    this.#turnById = db.prepare(`SELECT ${TURN_COLUMNS} FROM turns WHERE tree = ? AND turn_id = ?`)
    this.#node = db.prepare('SELECT tree, parent, depth, texts, node_sum FROM nodes WHERE id = ?')
    this.#text = db.prepare('SELECT echo_of, blobs, body, hash FROM texts WHERE id = ?')
    this.#blob = db.prepare<[number], Buffer>('SELECT body FROM blobs WHERE id = ?').pluck()
    this.#completion = db.prepare('SELECT id, completion_text, reasoning, tool_calls FROM turns WHERE id = ?')
    this.#detailsOf = db.prepare(`
      SELECT details.* FROM turns JOIN details ON details.tree = turns.tree AND details.turn = turns.id
      WHERE turns.tree = ? AND turns.turn_id = ?`)
    const transaction = db.transaction((read: () => unknown) => read())
    this.#inOneSnapshot = <T>(read: () => T) => transaction(read) as T
  }

  getSession(sessionId: string): SessionRecord | undefined {
    return this.#sessions.getSound(sessionId)
  }

  listSessions(query: SessionQuery): ListPart {
    return this.#sessions.list(query)
  }

  tallySessions(filter: SessionFilter, by: string | undefined, after: number): TallyPart {
    return this.#sessions.tally(filter, by, after)
  }

  countSessions(nowMs: number): SessionCount {
    return this.#sessions.countSessions(nowMs)
  }

  /** `reading` is the caller's number for one pass over a session; the first page begins it, the last one ends it. */
  readPage(reading: number, sessionId: string): TurnPage {
    return this.#pageOf(reading, sessionId, this.#turnsAfter, (row) => this.#wholePart(row))
  }

  readStepPage(reading: number, sessionId: string): TurnPage<TurnStep> {
    return this.#pageOf(reading, sessionId, this.#stepsAfter, (row, { stepsGiven }) =>
      this.#stepPart(row, stepsGiven),
    )
  }

  readOutlinePage(reading: number, sessionId: string): TurnPage<TurnOutline> {
    return this.#pageOf(reading, sessionId, this.#stepsAfter, (row) => {
      checkSum(row, IDS_SUMMED, { sum: row.ids_sum, what: `Turn ${row.turn_id}` })
      return outlinePart(row)
    })
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

  readDetails(sessionId: string, turnIds: readonly string[], kinds: readonly DetailKind[]) {
    return this.#inOneSnapshot(() => {
      const found = new Map<string, PackedDetail[]>()
      const tree = this.#sessions.tree(sessionId)
      if (tree === undefined) return found
      for (const turnId of turnIds) {
        const rows = this.#detailsOf.all(tree, turnId).filter(({ kind }) => kinds.includes(kind))
        const details = rows.map((row) => {
          checkSum(row, DETAIL_SUMMED, { sum: row.detail_sum, what: `A detail of turn ${turnId}` })
          return { kind: row.kind, body: row.body }
        })
        if (details.length > 0) found.set(turnId, details)
      }
      return found
    })
  }

  #begin(sessionId: string): Reading | undefined {
    const tree = this.#sessions.tree(sessionId)
    if (tree === undefined) return undefined
    const given = { textsGiven: new Set<number>(), stepsGiven: new Map<number, string>() }
    return { sessionId, tree, index: -1, id: 0, messages: [], prompt: [], ...given }
  }

  #pageOf<T extends TurnParts, Row extends TurnRow>(
    number: number,
    sessionId: string,
    rowsAfter: Database.Statement<[Reading], Row>,
    partOf: (row: Row, reading: Reading) => Omit<PagedTurn<T>, keyof SharedPart>,
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
    partOf: (row: Row, reading: Reading) => Omit<PagedTurn<T>, keyof SharedPart>,
  ): TurnPage<T> {
    const page: TurnPage<T> = { texts: [], turns: [], done: true }
    // Deleted or reset since the last page: some of its rows may be gone already.
    if (this.#sessions.tree(reading.sessionId) !== reading.tree) return page
    let bytes = 0
    for (const row of rowsAfter.iterate(reading)) {
      const part = partOf(row, reading)
      const turn = { ...this.#sharedPart(row, reading, page), ...part } as PagedTurn<T>
      reading.index = row.call_index
      reading.id = row.id
      page.turns.push(turn)
      bytes += promptBytes(part)
      bytes += turn.completionText?.length ?? 0
      page.done = page.turns.length < MAX_PAGE_TURNS && bytes + textLength(page) <= MAX_PAGE_BYTES
      if (!page.done) break
    }
    return page
  }

  /** What both a whole turn and its outline have. */
  #sharedPart(row: TurnRow, reading: Reading, page: Pick<TurnPage, 'texts'>): SharedPart {
    checkSum(row, TURN_SUMMED, { sum: row.turn_sum, what: `Turn ${row.turn_id}` })
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
      completionLogprobs: logprobsOf(row),
    }
  }

  #stepPart(row: StepRow, given: Map<number, string>) {
    checkSum(row, IDS_SUMMED, { sum: row.ids_sum, what: `Turn ${row.turn_id}` })
    const base = row.prompt_base === null ? null : given.get(row.prompt_base)
    const promptStep =
      base === undefined
        ? // The base was called later than this turn, or was still open when it was given out.
          { base: null, shared: 0, rest: this.#sequences.read(row.id).promptIds }
        : { base, shared: row.prompt_shared ?? 0, rest: idsOf(row.prompt_rest) }
    if (row.tool_calls !== null) given.set(row.id, row.turn_id)
    return {
      promptStep,
      completionTokenIds: idsOf(row.completion_ids),
      completionLogprobs: logprobsOf(row),
    }
  }

  /** Moves `path` to `node`. */
  #walkTo(node: number, path: PathNode[]): PagedList {
    const added: PathNode[] = []
    const runs: Int32Array[] = []
    let at = node
    while (at !== ROOT) {
      const row = this.#node.get(at)!
      checkSum(row, NODE_SUMMED, { sum: row.node_sum, what: `Node ${at}` })
      const { parent, depth, texts } = row
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
    const row = this.#text.get(id)!
    const text = this.#wholeText(row)
    if (!hashOf(text).equals(row.hash)) throw damaged(`Text ${id}`)
    page.texts.push([id, text])
  }

  #wholeText({ echo_of: echoOf, blobs, body }: TextRow): string {
    const text = unpackText(body)
    if (echoOf !== null) return expandEcho(text, toCompletion(this.#completion.get(echoOf)!))
    if (blobs === null) return text
    const rows = Array.from(unpackIds(blobs), (blob) => this.#blob.get(blob)!)
    return joinBlobs({ literals: JSON.parse(text), blobs: rows })
  }
}

type SharedPart = Omit<PagedTurn, 'promptTokenIds' | 'completionTokenIds' | 'completionLogprobs'>

const NO_TOKEN_IDS = () => ({ promptIds: new Int32Array(0), completionIds: new Int32Array(0) })

function promptBytes(part: { promptTokenIds?: Int32Array; promptStep?: TurnStep['promptStep'] }): number {
  return (part.promptTokenIds ?? part.promptStep?.rest)?.byteLength ?? 0
}

function textLength(page: Pick<TurnPage, 'texts'>): number {
  return page.texts.reduce((sum, [, text]) => sum + text.length, 0)
}
