/** Serves reads from the database. Runs on the reader thread, but does not depend on threads. */

import type { TokenDataKind } from '../../../protocol/token-data/kinds.ts'
import type { TokenDataBlob } from '../../../protocol/token-data/token-data.ts'
import type { ConsumerReader } from '../port/consumers.ts'
import type { ImportReader } from '../port/imports.ts'
import {
  type SESSION_READS,
  type SessionFilter,
  type SessionQuery,
  TURN_READS,
  type TurnOutline,
  type TurnReader,
  type TurnRecord,
  type TurnStep,
} from '../port/turn-store.ts'
import { insertBlobs } from './blobs.ts'
import type { ThreadMethods } from './calls.ts'
import { checkSum, createDamagedError, DETAIL_SUMMED, NODE_SUMMED } from './check-sums.ts'
import { expandEcho } from './echo.ts'
import { unpackRowIds, unpackText } from './packing.ts'
import { computeTextHash, ROOT } from './requests.ts'
import type { SearchPart, SearchRequest } from './search.ts'
import type { AggregatePart, ListPart } from './session-rows.ts'
import { MAX_PAGE_TURNS, type ReaderTables, type ReadingPosition, type TextRow } from './tables.ts'
import { TokenSequences } from './token-sequences.ts'
import { IDS_SUMMED, TURN_SUMMED } from './turn-columns.ts'
import {
  getOutlinePart,
  readIds,
  readLogprobs,
  type StepRow,
  type TurnRow,
  toCompletion,
  toFieldValues,
} from './turn-rows.ts'

/** The reads of sessions, as methods of a thread. */
export interface SessionReads extends ThreadMethods<Pick<TurnReader, (typeof SESSION_READS)[number]>> {
  listSessions(query: SessionQuery): ListPart
  tallySessions(filter: SessionFilter, by: string | undefined, after: number): AggregatePart
}

/** The reads of consumers, as methods of a thread. */
export type ConsumerReads = ThreadMethods<ConsumerReader>

export interface ReaderMethods extends TurnPages, SessionReads, ConsumerReads, ThreadMethods<ImportReader> {
  search(part: SearchRequest): SearchPart
  /** Returns whether a search index exists, which is the case after a first search. */
  hasIndex(): boolean
  /** Indexes some turns. @returns whether more can be indexed immediately */
  indexSome(): boolean
}

/** Reads of sessions' turns, in pages. */
export interface TurnPages extends ThreadMethods<Pick<TurnReader, (typeof TURN_READS)[number]>> {
  readPage(reading: number, sessionId: string): TurnPage
  readStepPage(reading: number, sessionId: string): TurnPage<TurnStep>
  readOutlinePage(reading: number, sessionId: string): TurnPage<TurnOutline>
  endReading(reading: number): void
  readTurn(sessionId: string, turnId: string): TurnPage
}

export const TURN_PAGES = [
  'readPage',
  'readStepPage',
  'readOutlinePage',
  'endReading',
  'readTurn',
  ...TURN_READS,
] as const satisfies (keyof TurnPages)[]

/** The next turns of a reading. Each text is included once per reading, even if several turns refer to it. */
export interface TurnPage<T extends PageableTurn = TurnRecord> {
  texts: [id: number, text: string][]
  turns: PageTurn<T>[]
  done: boolean
}

/** The forms in which pages contain turns. */
export type PageableTurn = TurnRecord | TurnStep | TurnOutline

/** A turn with text ids in place of texts, and with its lists as differences from the previous turn of the reading. */
export type PageTurn<T extends PageableTurn = TurnRecord> = Omit<
  T,
  'lastMessage' | 'promptPieces' | 'tools' | 'params'
> & {
  messages: TextListDelta
  prompt: TextListDelta
  tools: number | null
  params: number
}

/** A list of texts, as the difference from the list of the previous turn. */
export interface TextListDelta {
  /** The number of leading texts shared with the previous turn. */
  shared: number
  /** The ids of the texts after them. */
  added: number[]
}

/**
 * A page ends with the turn that exceeds this, or with the last of {@link MAX_PAGE_TURNS}: some milliseconds of work.
 */
const MAX_PAGE_BYTES = 2 * 1024 * 1024

/** A row of `nodes`, and the number of texts in its list. */
interface PathNode {
  id: number
  depth: number
}

/** The progress of one reading of a session. */
interface ReadingProgress extends ReadingPosition {
  sessionId: string
  /** The nodes from the root to the messages of the turn that was returned last, and to its prompt. */
  messages: PathNode[]
  prompt: PathNode[]
  returnedTexts: Set<number>
  /** The closed turns that were returned as steps: turn ids by row id. */
  returnedSteps: Map<number, string>
}

export class Reader implements TurnPages {
  readonly #tables: ReaderTables
  readonly #sequences: TokenSequences
  readonly #readings = new Map<number, ReadingProgress>()

  constructor(tables: ReaderTables, cacheBytes: number) {
    this.#tables = tables
    this.#sequences = new TokenSequences(tables, cacheBytes)
  }

  /** Returns the progress of a reading; undefined if it has not begun. */
  getProgress(reading: number): Readonly<ReadingProgress> | undefined {
    return this.#readings.get(reading)
  }

  /** Returns whether the token ids of the turn with this row id are cached. */
  hasCachedTokens(turn: number): boolean {
    return this.#sequences.isCached(turn)
  }

  /**
   * Reads a page. `reading` is the caller's number for one pass over a session; the first page begins it, the last one
   * ends it.
   */
  readPage(reading: number, sessionId: string): TurnPage {
    return this.#readNextPage(
      reading,
      sessionId,
      (position) => this.#tables.listTurnsAfter(position),
      (row) => this.#fullPart(row),
    )
  }

  readStepPage(reading: number, sessionId: string): TurnPage<TurnStep> {
    return this.#readNextPage(
      reading,
      sessionId,
      (position) => this.#tables.listStepsAfter(position),
      (row, { returnedSteps }) => this.#stepPart(row, returnedSteps),
    )
  }

  readOutlinePage(reading: number, sessionId: string): TurnPage<TurnOutline> {
    return this.#readNextPage(
      reading,
      sessionId,
      (position) => this.#tables.listStepsAfter(position),
      (row) => {
        checkSum(row, IDS_SUMMED, { sum: row.ids_sum, what: `Turn ${row.turn_id}` })
        return getOutlinePart(row)
      },
    )
  }

  endReading(reading: number): void {
    this.#readings.delete(reading)
  }

  /** Reads one turn as a page; the page is empty if the turn does not exist. */
  readTurn(sessionId: string, turnId: string): TurnPage {
    return this.#tables.runInSnapshot(() => {
      const reading = this.#begin(sessionId)
      const row = reading && this.#tables.findTurn(reading.tree, turnId)
      const page: TurnPage = { texts: [], turns: [], done: true }
      if (reading === undefined || row === undefined) return page
      page.turns.push({ ...this.#sharedPart(row, reading, page), ...this.#fullPart(row) })
      return page
    })
  }

  readDetails(sessionId: string, turnIds: readonly string[], kinds: readonly TokenDataKind[]) {
    return this.#tables.runInSnapshot(() => {
      const found = new Map<string, TokenDataBlob[]>()
      const tree = this.#tables.findTree(sessionId)
      if (tree === undefined) return found
      for (const turnId of turnIds) {
        const rows = this.#tables.listDetails(tree, turnId).filter(({ kind }) => kinds.includes(kind))
        const details = rows.map((row) => {
          checkSum(row, DETAIL_SUMMED, { sum: row.detail_sum, what: `A detail of turn ${turnId}` })
          return { kind: row.kind, body: row.body }
        })
        if (details.length > 0) found.set(turnId, details)
      }
      return found
    })
  }

  #begin(sessionId: string): ReadingProgress | undefined {
    const tree = this.#tables.findTree(sessionId)
    if (tree === undefined) return undefined
    const progress = { returnedTexts: new Set<number>(), returnedSteps: new Map<number, string>() }
    return { sessionId, tree, index: -1, id: 0, messages: [], prompt: [], ...progress }
  }

  #readNextPage<T extends PageableTurn, Row extends TurnRow>(
    number: number,
    sessionId: string,
    rowsAfter: (position: ReadingPosition) => Iterable<Row>,
    getPart: (row: Row, reading: ReadingProgress) => Omit<PageTurn<T>, keyof PageCommonPart>,
  ): TurnPage<T> {
    const reading = this.#readings.get(number) ?? this.#begin(sessionId)
    if (reading === undefined) return { texts: [], turns: [], done: true }
    const page = this.#tables.runInSnapshot(() => this.#nextPage(reading, rowsAfter, getPart))
    if (page.done) this.#readings.delete(number)
    else this.#readings.set(number, reading)
    return page
  }

  #nextPage<T extends PageableTurn, Row extends TurnRow>(
    reading: ReadingProgress,
    rowsAfter: (position: ReadingPosition) => Iterable<Row>,
    getPart: (row: Row, reading: ReadingProgress) => Omit<PageTurn<T>, keyof PageCommonPart>,
  ): TurnPage<T> {
    const page: TurnPage<T> = { texts: [], turns: [], done: true }
    // If the session was deleted or reset since the last page, some of its rows may have been removed.
    if (this.#tables.findTree(reading.sessionId) !== reading.tree) return page
    let bytes = 0
    for (const row of rowsAfter(reading)) {
      const part = getPart(row, reading)
      const turn = { ...this.#sharedPart(row, reading, page), ...part } as PageTurn<T>
      reading.index = row.call_index
      reading.id = row.id
      page.turns.push(turn)
      bytes += countPromptBytes(part)
      bytes += turn.completionText?.length ?? 0
      page.done = page.turns.length < MAX_PAGE_TURNS && bytes + countText(page) <= MAX_PAGE_BYTES
      if (!page.done) break
    }
    return page
  }

  /** Converts the columns that all kinds of page turns have, and adds their texts to the page. */
  #sharedPart(row: TurnRow, reading: ReadingProgress, page: Pick<TurnPage, 'texts'>): PageCommonPart {
    checkSum(row, TURN_SUMMED, { sum: row.turn_sum, what: `Turn ${row.turn_id}` })
    const give = (text: number) => this.#addText(text, reading, page)
    const messages = this.#walkTo(row.node, reading.messages)
    const prompt = this.#walkTo(row.prompt_node, reading.prompt)
    messages.added.forEach(give)
    prompt.added.forEach(give)
    if (row.tools !== null) give(row.tools)
    give(row.params)
    return { ...toFieldValues(row), sessionId: reading.sessionId, messages, prompt }
  }

  #fullPart(row: TurnRow) {
    // Sequences of open turns must not be cached, since they will change when the turn closes.
    const closed = row.tool_calls !== null
    const { promptIds, completionIds } = closed ? this.#sequences.read(row.id) : NO_TOKEN_IDS()
    return {
      promptTokenIds: promptIds,
      completionTokenIds: completionIds,
      completionLogprobs: readLogprobs(row),
    }
  }

  #stepPart(row: StepRow, progress: Map<number, string>) {
    checkSum(row, IDS_SUMMED, { sum: row.ids_sum, what: `Turn ${row.turn_id}` })
    const base = row.prompt_base === null ? null : progress.get(row.prompt_base)
    const promptStep =
      base === undefined
        ? // The base has a higher turn index, or was still open when this reading returned it.
          { base: null, shared: 0, rest: this.#sequences.read(row.id).promptIds }
        : { base, shared: row.prompt_shared ?? 0, rest: readIds(row.prompt_rest) }
    if (row.tool_calls !== null) progress.set(row.id, row.turn_id)
    return {
      promptStep,
      completionTokenIds: readIds(row.completion_ids),
      completionLogprobs: readLogprobs(row),
    }
  }

  /**
   * Changes `path` so that it leads to `node`.
   * @returns the list of `node`, as a difference from the list to which `path` led before
   */
  #walkTo(node: number, path: PathNode[]): TextListDelta {
    const added: PathNode[] = []
    const runs: number[][] = []
    let index = node
    while (index !== ROOT) {
      const row = this.#tables.getNode(index)!
      checkSum(row, NODE_SUMMED, { sum: row.node_sum, what: `Node ${index}` })
      const { parent, depth, texts } = row
      // Depth decreases on the way to the root: a node of the path that is deeper is not an ancestor.
      while ((path.at(-1)?.depth ?? 0) > depth) path.pop()
      if (path.at(-1)?.id === index) break
      added.push({ id: index, depth })
      runs.push(unpackRowIds(texts))
      index = parent
    }
    if (index === ROOT) path.length = 0
    const shared = path.at(-1)?.depth ?? 0
    for (const step of added.reverse()) path.push(step)
    return { shared, added: runs.reverse().flat() }
  }

  #addText(id: number, reading: ReadingProgress, page: Pick<TurnPage, 'texts'>): void {
    if (reading.returnedTexts.has(id)) return
    reading.returnedTexts.add(id)
    const row = this.#tables.getText(id)!
    const text = this.#restoreText(row)
    if (!computeTextHash(text).equals(row.hash)) throw createDamagedError(`Text ${id}`)
    page.texts.push([id, text])
  }

  /** Returns the text of a row, with its echo expanded or its blobs inserted. */
  #restoreText({ echo_of: echoOf, blobs, body }: TextRow): string {
    const text = unpackText(body)
    if (echoOf !== null) return expandEcho(text, toCompletion(this.#tables.findCompletion(echoOf)!))
    if (blobs === null) return text
    const rows = unpackRowIds(blobs).map((blob) => this.#tables.findBlob(blob)!)
    return insertBlobs({ literals: JSON.parse(text), blobs: rows })
  }
}

type PageCommonPart = Omit<PageTurn, 'promptTokenIds' | 'completionTokenIds' | 'completionLogprobs'>

const NO_TOKEN_IDS = () => ({ promptIds: new Int32Array(0), completionIds: new Int32Array(0) })

function countPromptBytes(part: {
  promptTokenIds?: Int32Array
  promptStep?: TurnStep['promptStep']
}): number {
  return (part.promptTokenIds ?? part.promptStep?.rest)?.byteLength ?? 0
}

function countText(page: Pick<TurnPage, 'texts'>): number {
  return page.texts.reduce((sum, [, text]) => sum + text.length, 0)
}
