/** Reads sessions and turns through the reader thread. */
import type { ProxyError } from '../../../base/errors.ts'
import { getAncestor, type Message, MessageTree } from '../../../protocol/canonical/conversation.ts'
import { CONSUMER_READS, type ConsumerReader } from '../port/consumers.ts'
import { IMPORT_READS, type ImportReader } from '../port/imports.ts'
import { decodeCursor, getOrder } from '../port/session-list.ts'
import { type AggregateMap, addAggregates, sumTotals, toGroups } from '../port/session-summary.ts'
import { decodeSearchCursor } from '../port/turn-search.ts'
import {
  SESSION_READS,
  type SearchPage,
  type SessionFilter,
  type SessionGroup,
  type SessionPage,
  type SessionQuery,
  type SessionTotals,
  TURN_READS,
  type TurnOutline,
  type TurnReader,
  type TurnRecord,
  type TurnSearch,
  type TurnStep,
} from '../port/turn-store.ts'
import type { RemoteMethods } from './calls.ts'
import { keepIndexing } from './keep-indexing.ts'
import type { PageableTurn, PageTurn, ReaderMethods, TextListDelta, TurnPage } from './reader.ts'
import { searchPage } from './search.ts'
import type { AggregatePart } from './session-rows.ts'
import { forwardMethods, type StoreThread } from './store-thread.ts'

const READS = [...SESSION_READS, ...TURN_READS, ...CONSUMER_READS, ...IMPORT_READS] as const

type ForwardableRead = (typeof READS)[number]

export type ThreadReader = PageReader & TurnReader & ConsumerReader & ImportReader

/** Returns a reader that sends its commands to the thread. */
export function connectReader(thread: StoreThread<ReaderMethods>): ThreadReader {
  return Object.assign(new PageReader(thread), forwardReads(thread))
}

/** Returns the reads whose arguments and results are forwarded unchanged. */
export function forwardReads(
  thread: StoreThread<ReaderMethods>,
): RemoteMethods<Pick<ReaderMethods, ForwardableRead>> {
  return forwardMethods<ReaderMethods, ForwardableRead>(thread, READS)
}

/** The reads that need several commands, or whose results are assembled from the replies. */
export class PageReader implements Omit<TurnReader, ForwardableRead> {
  readonly #thread: StoreThread<ReaderMethods>
  #lastReading = 0
  #beginIndex: (() => void) | undefined

  constructor(thread: StoreThread<ReaderMethods>) {
    this.#thread = thread
  }

  async listSessions(query: SessionQuery): Promise<SessionPage> {
    if (query.cursor !== undefined) decodeCursor(query.cursor, getOrder(query))
    const { sessions, ...found } = await this.#thread.execute('listSessions', [query])
    let { continueFrom, nextCursor } = found
    while (continueFrom !== undefined) {
      const rest = { ...query, limit: query.limit - sessions.length, cursor: continueFrom }
      const more = await this.#thread.execute('listSessions', [rest])
      sessions.push(...more.sessions)
      ;({ continueFrom, nextCursor } = more)
    }
    return { sessions, ...(nextCursor !== undefined && { nextCursor }) }
  }

  async totalSessions(filter: SessionFilter): Promise<SessionTotals> {
    return sumTotals(await this.#tally(filter))
  }

  async searchTurns(search: TurnSearch): Promise<SearchPage> {
    this.#beginIndex?.()
    return searchPage(search, decodeSearchCursor(search.cursor), (part) =>
      this.#thread.execute('search', [part]),
    )
  }

  /**
   * Updates the search index in the background, from the first search in this database on: without searches, turns do
   * not incur its cost.
   */
  keepIndex(onFailed: (error: Error) => void): void {
    this.#beginIndex = () => {
      this.#beginIndex = undefined
      keepIndexing(() => this.#thread.execute('indexSome', []), onFailed)
    }
    const found = (hasIndex: boolean) => hasIndex && this.#beginIndex?.()
    this.#thread.execute('hasIndex', []).then(found, () => {})
  }

  async groupSessions(by: string, filter: SessionFilter, passReward?: number): Promise<SessionGroup[]> {
    return toGroups(await this.#tally(filter, by), passReward)
  }

  /** Aggregates in parts, so that other commands of the thread need not wait for the complete aggregate. */
  async #tally(filter: SessionFilter, by?: string): Promise<AggregateMap> {
    const aggregates: AggregateMap = new Map()
    let after: number | undefined = 0
    while (after !== undefined) {
      const part: AggregatePart = await this.#thread.execute('tallySessions', [filter, by, after])
      addAggregates(aggregates, part.tallies)
      after = part.continueAfter
    }
    return aggregates
  }

  readTurns(sessionId: string): AsyncIterable<TurnRecord> {
    return this.#read((reading) => this.#thread.execute('readPage', [reading, sessionId]))
  }

  readSteps(sessionId: string, messages?: MessageTree): AsyncIterable<TurnStep> {
    return this.#read((reading) => this.#thread.execute('readStepPage', [reading, sessionId]), messages)
  }

  readOutlines(sessionId: string): AsyncIterable<TurnOutline> {
    return this.#read((reading) => this.#thread.execute('readOutlinePage', [reading, sessionId]))
  }

  async *#read<T extends PageableTurn>(
    nextPage: (reading: number) => Promise<TurnPage<T>>,
    messages?: MessageTree,
  ): AsyncIterable<T> {
    this.#lastReading += 1
    const reading = this.#lastReading
    const assembler = new TurnAssembler(messages)
    let done = false
    try {
      while (!done) {
        const page = await nextPage(reading)
        done = page.done
        assembler.addTexts(page.texts)
        for (const turn of page.turns) yield assembler.assemble(turn)
      }
    } finally {
      // The caller stopped early. A thread that has ended has no readings.
      if (!done) this.#thread.execute('endReading', [reading]).catch(() => {})
    }
  }

  async getTurn(sessionId: string, turnId: string): Promise<TurnRecord | undefined> {
    const { texts, turns } = await this.#thread.execute('readTurn', [sessionId, turnId])
    const assembler = new TurnAssembler()
    assembler.addTexts(texts)
    return turns[0] && assembler.assemble(turns[0])
  }

  /** See {@link StoreThread.lost}. */
  get lost(): Promise<ProxyError> {
    return this.#thread.lost
  }

  close(): Promise<void> {
    return this.#thread.close()
  }
}

/** An assembler of turns from pages. Shared parts of their requests exist once, so that memory grows with the text. */
class TurnAssembler {
  readonly #tree: MessageTree
  readonly #texts = new Map<number, string>()
  /** The last message of the previous turn. */
  #lastMessage: Message | undefined
  #prompt: readonly string[] = []

  constructor(tree = new MessageTree()) {
    this.#tree = tree
  }

  addTexts(texts: [number, string][]): void {
    for (const [id, text] of texts) this.#texts.set(id, text)
  }

  assemble<T extends PageableTurn>(paged: PageTurn<T>): T {
    const { messages, prompt, ...turn } = paged
    this.#lastMessage = getAncestor(this.#lastMessage, messages.shared)
    for (const id of messages.added)
      this.#lastMessage = this.#tree.addMessageText(this.#lastMessage, this.#text(id))
    this.#prompt = this.#next(this.#prompt, prompt)
    return {
      ...turn,
      lastMessage: this.#lastMessage,
      promptPieces: this.#prompt,
      tools: turn.tools === null ? null : this.#text(turn.tools),
      params: this.#text(turn.params),
    } as unknown as T
  }

  #next(list: readonly string[], { shared, added }: TextListDelta): readonly string[] {
    return [...list.slice(0, shared), ...added.map((id) => this.#text(id))]
  }

  #text(id: number): string {
    return this.#texts.get(id)!
  }
}
