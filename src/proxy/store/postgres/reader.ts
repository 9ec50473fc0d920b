/** Serves reads from the database, several at a time. Runs on the reader thread, without dependence on threads. */
import type { Client } from 'pg'
import type { TokenDataKind } from '../../../protocol/token-data/kinds.ts'
import type { TokenDataBlob } from '../../../protocol/token-data/token-data.ts'
import { Reader as Pages, type TurnPage } from '../common/reader.ts'
import type { Reads } from '../common/reader-loop.ts'
import { type SearchPart, type SearchRequest, searchPart } from '../common/search.ts'
import type { AggregatePart, ListPart } from '../common/session-rows.ts'
import type {
  AvailableQuery,
  AvailableSession,
  Consumer,
  ConsumerCounts,
  ConsumerSession,
  GroupQuery,
  GroupsPage,
} from '../port/consumers.ts'
import type { ImportEntry } from '../port/imports.ts'
import type {
  SessionCount,
  SessionFilter,
  SessionQuery,
  SessionRecord,
  TurnOutline,
  TurnStep,
} from '../port/turn-store.ts'
import { isConnectionLoss } from './connection.ts'
import {
  availableSessions,
  countForConsumer,
  findGroups,
  givenSessions,
  listConsumers,
  selectConsumer,
} from './consumers.ts'
import { wasImported } from './imports.ts'
import { PageFetch, PageTables } from './page-rows.ts'
import { PostgresSearch } from './search.ts'
import { countSessions, listSessions, selectSession, tallySessions } from './select-sessions.ts'

type PageRows = PageTables['rows']

export class Reader implements Reads {
  readonly #connect: () => Promise<Client>
  readonly #tables = new PageTables()
  readonly #pages: Pages
  readonly #free: Client[] = []
  readonly #waiting: ((client: Client | undefined) => void)[] = []
  #open = 0
  #isClosed = false
  readonly #most: number

  /** @param most maximum number of connections */
  constructor(connect: () => Promise<Client>, cacheBytes: number, most: number) {
    this.#connect = connect
    this.#pages = new Pages(this.#tables, cacheBytes)
    this.#most = most
  }

  getSession(sessionId: string): Promise<SessionRecord | undefined> {
    return this.#ask((client) => selectSession(client, sessionId))
  }

  listSessions(query: SessionQuery): Promise<ListPart> {
    return this.#ask((client) => listSessions(client, query))
  }

  tallySessions(filter: SessionFilter, by: string | undefined, after: number): Promise<AggregatePart> {
    return this.#ask((client) => tallySessions(client, filter, by, after))
  }

  countSessions(nowMs: number): Promise<SessionCount> {
    return this.#ask((client) => countSessions(client, nowMs))
  }

  getConsumer(name: string): Promise<Consumer | undefined> {
    return this.#ask((client) => selectConsumer(client, name))
  }

  listConsumers(idPrefix: string): Promise<Consumer[]> {
    return this.#ask((client) => listConsumers(client, idPrefix))
  }

  availableSessions(query: AvailableQuery): Promise<AvailableSession[]> {
    return this.#ask((client) => availableSessions(client, query))
  }

  countForConsumer(name: string): Promise<ConsumerCounts | undefined> {
    return this.#ask((client) => countForConsumer(client, name))
  }

  findGroups(query: GroupQuery): Promise<GroupsPage> {
    return this.#ask((client) => findGroups(client, query))
  }

  givenSessions(sessionId: string): Promise<ConsumerSession[]> {
    return this.#ask((client) => givenSessions(client, sessionId))
  }

  wasImported(item: ImportEntry): Promise<boolean> {
    return this.#ask((client) => wasImported(client, item))
  }

  search(part: SearchRequest): Promise<SearchPart> {
    return this.#ask((client) => searchPart(new PostgresSearch(client), part))
  }

  hasIndex(): Promise<boolean> {
    return this.#ask((client) => new PostgresSearch(client).hasIndex())
  }

  indexSome(): Promise<boolean> {
    return this.#ask((client) => new PostgresSearch(client).indexSome())
  }

  readPage(reading: number, sessionId: string): Promise<TurnPage> {
    const fetch = (page: PageFetch) => page.page(sessionId, this.#pages.reading(reading), 'turns')
    return this.#from(fetch, () => this.#pages.readPage(reading, sessionId))
  }

  readStepPage(reading: number, sessionId: string): Promise<TurnPage<TurnStep>> {
    const fetch = (page: PageFetch) => page.page(sessionId, this.#pages.reading(reading), 'steps')
    return this.#from(fetch, () => this.#pages.readStepPage(reading, sessionId))
  }

  readOutlinePage(reading: number, sessionId: string): Promise<TurnPage<TurnOutline>> {
    const fetch = (page: PageFetch) => page.page(sessionId, this.#pages.reading(reading), 'none')
    return this.#from(fetch, () => this.#pages.readOutlinePage(reading, sessionId))
  }

  endReading(reading: number): void {
    this.#pages.endReading(reading)
  }

  readTurn(sessionId: string, turnId: string): Promise<TurnPage> {
    return this.#from(
      (page) => page.turn(sessionId, turnId),
      () => this.#pages.readTurn(sessionId, turnId),
    )
  }

  readDetails(
    sessionId: string,
    turnIds: readonly string[],
    kinds: readonly TokenDataKind[],
  ): Promise<Map<string, TokenDataBlob[]>> {
    return this.#from(
      (page) => page.details(sessionId, turnIds, kinds),
      () => this.#pages.readDetails(sessionId, turnIds, kinds),
    )
  }

  /**
   * Closes idle connections. One in use closes after its read, because an open connection would keep the process
   * running.
   */
  async close(): Promise<void> {
    this.#isClosed = true
    await Promise.all(this.#free.map((client) => client.end().catch(() => {})))
  }

  /** Fetches rows from one snapshot, and builds the page from them synchronously. */
  async #from<T>(fetch: (page: PageFetch) => Promise<PageRows>, make: () => T): Promise<T> {
    const rows = await this.#ask(async (client) => {
      await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY')
      const fetched = await fetch(new PageFetch(client, this.#pages))
      await client.query('COMMIT')
      return fetched
    })
    this.#tables.rows = rows
    return make()
  }

  /** Runs a read, once more over another connection if it is lost. Idle connections are likely lost with it. */
  async #ask<T>(ask: (client: Client) => Promise<T>): Promise<T> {
    for (let isLast = false; ; isLast = true) {
      const client = await this.#take()
      try {
        const answer = await ask(client)
        this.#give(client)
        return answer
      } catch (error) {
        this.#discard(client)
        if (isLast || !isConnectionLoss(error)) throw error
        for (const idle of this.#free.splice(0)) this.#discard(idle)
      }
    }
  }

  async #take(): Promise<Client> {
    const free = this.#free.pop()
    if (free !== undefined) return free
    if (this.#open >= this.#most) {
      const given = await new Promise<Client | undefined>((resolve) => this.#waiting.push(resolve))
      if (given !== undefined) return given
    }
    this.#open += 1
    try {
      return await this.#connect()
    } catch (error) {
      this.#open -= 1
      this.#waiting.shift()?.(undefined)
      throw error
    }
  }

  #give(client: Client): void {
    const next = this.#waiting.shift()
    if (next !== undefined) next(client)
    else if (this.#isClosed) client.end().catch(() => {})
    else this.#free.push(client)
  }

  #discard(client: Client): void {
    this.#open -= 1
    client.end().catch(() => {})
    this.#waiting.shift()?.(undefined)
  }
}
