/**
 * A store without a database, for tests of its users: it satisfies the contract of `test/conformance/turn-store.ts`.
 */
import { setImmediate as nextPage } from 'node:timers/promises'
import { ProxyError } from '../../src/base/errors.ts'
import { getTextsUpTo, type Message, MessageTree } from '../../src/protocol/canonical/conversation.ts'
import type { TokenDataKind } from '../../src/protocol/token-data/kinds.ts'
import type { TokenDataBlob } from '../../src/protocol/token-data/token-data.ts'
import { getSharedLength } from '../../src/protocol/token-ids/token-ids.ts'
import { MAX_PAGE_TURNS } from '../../src/proxy/store/common/tables.ts'
import { type Annotations, answerFor } from '../../src/proxy/store/port/answered-retries.ts'
import type {
  AvailableQuery,
  Consumer,
  ConsumerSession,
  GroupMember,
  GroupQuery,
  LeaseChange,
  NewLease,
} from '../../src/proxy/store/port/consumers.ts'
import type { ImportEntry } from '../../src/proxy/store/port/imports.ts'
import { changedMarks, type MarksChange, noMarks } from '../../src/proxy/store/port/marks.ts'
import {
  decodeCursor,
  encodeCursor,
  firstPosition,
  getOrder,
  type ListOrder,
  type ListPosition,
  matchesFilter,
  sortValue,
} from '../../src/proxy/store/port/session-list.ts'
import { sumTotals, tallySessions, toGroups } from '../../src/proxy/store/port/session-summary.ts'
import {
  decodeSearchCursor,
  encodeSearchCursor,
  findIn,
  spokenText,
} from '../../src/proxy/store/port/turn-search.ts'
import {
  MIN_SHARED_TOKENS,
  type NewSession,
  type OpenTurn,
  type Reward,
  type SearchPage,
  type SessionCount,
  type SessionFilter,
  type SessionGroup,
  type SessionPage,
  type SessionQuery,
  type SessionRecord,
  type SessionTotals,
  type TurnDetails,
  type TurnError,
  type TurnOutcome,
  type TurnOutline,
  type TurnRecord,
  type TurnSearch,
  type TurnStep,
  type TurnStore,
} from '../../src/proxy/store/port/turn-store.ts'
import { MemoryConsumers } from './memory-consumers.ts'

interface Entry {
  /** A new object after each reset. */
  life: { readonly id: number }
  /** The order of creation. */
  key: number
  session: SessionRecord
  /** Turns in order of their index. */
  turns: TurnRecord[]
  messages: MessageTree
  /** Texts of the prompts of completions: each prompt repeats those of the previous one. */
  pieces: Map<string, string>
  /** Token data by turn. */
  details: Map<string, readonly TokenDataBlob[]>
}

export class MemoryTurnStore implements TurnStore {
  readonly #entries = new Map<string, Entry>()
  readonly #consumers = new MemoryConsumers()
  readonly #imports = new Set<string>()
  #lastKey = 0
  /** The order in which turns were opened. */
  readonly #numbers = new Map<string, number>()
  #closed = false
  readonly lost = new Promise<never>(() => {})

  async createSession(session: NewSession): Promise<{ created: boolean; session: SessionRecord }> {
    const existing = this.#open().get(session.sessionId)
    if (existing !== undefined) return { created: false, session: snapshot(existing) }
    this.#lastKey += 1
    const record = newRecord(session)
    const maps = { messages: new MessageTree(), pieces: new Map(), details: new Map() }
    const entry: Entry = {
      key: this.#lastKey,
      life: { id: this.#lastKey },
      session: record,
      turns: [],
      ...maps,
    }
    this.#entries.set(session.sessionId, entry)
    return { created: true, session: snapshot(entry) }
  }

  async getSession(sessionId: string): Promise<SessionRecord | undefined> {
    const entry = this.#open().get(sessionId)
    return entry && snapshot(entry)
  }

  async listSessions(query: SessionQuery): Promise<SessionPage> {
    const order = getOrder(query)
    const after = query.cursor === undefined ? firstPosition(order) : decodeCursor(query.cursor, order)
    const found = this.#matching(query)
      .map((session) => ({ session, position: this.#positionOf(session, order) }))
      .sort((a, b) => comparePositions(a.position, b.position, order))
      .filter(({ position }) => comparePositions(after, position, order) < 0)
    const page = found.slice(0, query.limit)
    const last = page.at(-1)
    return {
      sessions: page.map(({ session }) => session),
      ...(last && found.length > page.length && { nextCursor: encodeCursor(last.position, order) }),
    }
  }

  async totalSessions(filter: SessionFilter): Promise<SessionTotals> {
    return sumTotals(tallySessions(this.#matching(filter)))
  }

  async searchTurns({ wanted, limit, perSession, cursor, ...filter }: TurnSearch): Promise<SearchPage> {
    const before = decodeSearchCursor(cursor)
    const turns = [...this.#entries.values()].flatMap(({ session, turns }) =>
      turns.map((turn) => ({ turn, session, number: this.#numbers.get(turn.turnId)! })),
    )
    const found = new Map<string, number>()
    const hits: SearchPage['hits'] = []
    for (const { turn, session, number } of turns.sort((a, b) => b.number - a.number)) {
      if (number >= before || turn.status === 'open' || !matchesFilter(session, filter)) continue
      const ofSession = found.get(session.sessionId) ?? 0
      const { turnId, index, startedAtMs } = turn
      const texts = getTextsUpTo(turn.lastMessage)
      const isNew = (text: string) =>
        !turns.some(
          ({ turn: of, session: its, number: then }) =>
            its === session && then < number && getTextsUpTo(of.lastMessage).includes(text),
        )
      const place = findIn(
        spokenText({ ...turn, messages: [...texts, ...turn.promptPieces].filter(isNew) }),
        wanted.toLowerCase(),
      )
      if (place === undefined || ofSession === perSession) continue
      hits.push({ session, turnId, index, startedAtMs, ...place })
      found.set(session.sessionId, ofSession + 1)
      if (hits.length === limit) return { hits, nextCursor: encodeSearchCursor(number) }
    }
    return { hits }
  }

  async groupSessions(by: string, filter: SessionFilter, passReward?: number): Promise<SessionGroup[]> {
    return toGroups(tallySessions(this.#matching(filter), by), passReward)
  }

  async endSession(sessionId: string, status: 'completed' | 'aborted', atMs: number) {
    return this.#change(sessionId, ({ session }) => {
      if (session.status !== 'active') return
      Object.assign(session, { status, endedAtMs: atMs, updatedAtMs: atMs })
    })
  }

  async setReward(sessionId: string, reward: Reward, atMs: number) {
    return this.#change(sessionId, ({ session }) => {
      Object.assign(session, { reward: structuredClone(reward), updatedAtMs: atMs })
    })
  }

  async changeMarks(sessionId: string, change: MarksChange, atMs: number) {
    return this.#change(sessionId, ({ session }) => {
      Object.assign(session, { marks: changedMarks(session.marks, change), updatedAtMs: atMs })
    })
  }

  async resetSession(sessionId: string, atMs: number) {
    return this.#change(sessionId, (entry) => {
      entry.turns = []
      this.#lastKey += 1
      entry.life = { id: this.#lastKey }
      entry.pieces.clear()
      entry.details.clear()
      Object.assign(entry.session, {
        status: 'active',
        endedAtMs: null,
        updatedAtMs: atMs,
        reward: null,
        marks: noMarks(),
      })
    })
  }

  async deleteSession(sessionId: string): Promise<boolean> {
    return this.#open().delete(sessionId)
  }

  async countSessions(nowMs: number): Promise<SessionCount> {
    const entries = [...this.#open().values()]
    const active = entries.filter(({ session }) => session.status === 'active').length
    return { sessions: entries.length, active, expired: this.#expired(nowMs).length }
  }

  async sweep(nowMs: number, sinceMs = 0): Promise<string[]> {
    const expired = this.#expired(nowMs).filter(
      ({ session }) => session.updatedAtMs + session.ttlMs! > sinceMs,
    )
    for (const { session } of expired) this.#entries.delete(session.sessionId)
    return expired.map(({ session }) => session.sessionId)
  }

  openTurn(turn: OpenTurn): Promise<void> {
    const opened = this.#openTurn(turn)
    // The caller may ignore the result.
    opened.catch(() => {})
    return opened
  }

  async closeTurn(outcome: TurnOutcome): Promise<void> {
    const entry = this.#open().get(outcome.sessionId)
    const turn = entry?.turns.find(({ turnId, status }) => turnId === outcome.turnId && status === 'open')
    if (entry === undefined || turn === undefined) return
    const { details, ...rest } = outcome
    Object.assign(turn, { ...rest, promptTokenIds: outcome.promptTokenIds.whole() })
    if (details !== undefined && details.length > 0) entry.details.set(outcome.turnId, details)
    touch(entry.session, outcome.endedAtMs)
  }

  async markUndelivered(sessionId: string, turnId: string, error: TurnError, retriesAnswered = 0) {
    const turn = this.#find(sessionId, turnId)
    if (turn?.status !== 'completed') return
    const { answered_retries: answered = [] } = JSON.parse(turn.annotations) as Annotations
    if (answered.length === retriesAnswered) Object.assign(turn, { status: 'aborted', error })
  }

  async answerRetry(sessionId: string, turnId: string, retryCount: number): Promise<number | undefined> {
    const turn = this.#find(sessionId, turnId)
    if (turn === undefined || this.#open().get(sessionId)?.session.status !== 'active') return undefined
    const { status, finishReason, error } = turn
    const annotations = JSON.parse(turn.annotations) as Annotations
    const ended = { status, finishReason, errorCode: error?.code ?? null, annotations }
    const answered = answerFor(retryCount, ended)
    if (answered === undefined) return undefined
    Object.assign(turn, { status: 'completed', error: null, annotations: JSON.stringify(answered) })
    return answered.answered_retries.length
  }

  async addDetails(sessionId: string, turns: readonly TurnDetails[]): Promise<void> {
    const entry = this.#open().get(sessionId)
    if (entry === undefined) throw new ProxyError('session_not_found', 'Session not found')
    for (const { turnId } of turns) {
      const turn = this.#find(sessionId, turnId)
      if (turn === undefined || turn.status === 'open')
        throw new ProxyError('turn_not_found', `The session has no turn '${turnId}' that has ended`)
    }
    for (const { turnId, details } of turns) {
      const kinds = new Set(details.map(({ kind }) => kind))
      const kept = entry.details.get(turnId)?.filter(({ kind }) => !kinds.has(kind)) ?? []
      entry.details.set(turnId, [...kept, ...details])
    }
  }

  async *readTurns(sessionId: string): AsyncIterable<TurnRecord> {
    for (const [place, turn] of [...(this.#open().get(sessionId)?.turns ?? [])].entries()) {
      // Yields between two pages, as a store's thread does.
      if (place % MAX_PAGE_TURNS === MAX_PAGE_TURNS - 1) await nextPage()
      yield copyOf(turn)
    }
  }

  async *readSteps(sessionId: string, messages?: MessageTree): AsyncIterable<TurnStep> {
    const given: TurnRecord[] = []
    for await (const turn of this.readTurns(sessionId)) {
      const { promptTokenIds: prompt, lastMessage: last, ...step } = turn
      const lastMessage = messages === undefined ? last : messages.addMessageTexts(getTextsUpTo(last))
      const { base, shared } = baseOf(turn, given)
      yield { ...step, lastMessage, promptStep: { base, shared, rest: prompt.slice(shared) } }
      given.push(turn)
    }
  }

  async *readOutlines(sessionId: string): AsyncIterable<TurnOutline> {
    const turns = [...(this.#open().get(sessionId)?.turns ?? [])]
    for (const turn of turns) {
      const { promptTokenIds, completionTokenIds, completionLogprobs: _logprobs, ...outline } = turn
      yield {
        ...copyOf(outline),
        promptTokens: promptTokenIds.length,
        sampledTokens: completionTokenIds.length,
      }
    }
  }

  async getTurn(sessionId: string, turnId: string): Promise<TurnRecord | undefined> {
    const turn = this.#find(sessionId, turnId)
    return turn && copyOf(turn)
  }

  async readDetails(sessionId: string, turnIds: readonly string[], kinds: readonly TokenDataKind[]) {
    const found = new Map<string, readonly TokenDataBlob[]>()
    const entry = this.#open().get(sessionId)
    for (const turnId of turnIds) {
      const details = entry?.details.get(turnId)?.filter(({ kind }) => kinds.includes(kind)) ?? []
      if (details.length > 0) found.set(turnId, structuredClone(details))
    }
    return found
  }

  async createConsumer(consumer: Consumer) {
    return this.#consumers.create(consumer)
  }

  async getConsumer(name: string) {
    return this.#consumers.get(name)
  }

  async listConsumers(idPrefix: string) {
    return this.#consumers.list(idPrefix)
  }

  async deleteConsumer(name: string) {
    return this.#consumers.delete(name)
  }

  async availableSessions(query: AvailableQuery) {
    return this.#consumers.available([...this.#open().values()].map(shown), query)
  }

  async countForConsumer(name: string, nowMs: number) {
    return this.#consumers.count([...this.#open().values()], name, nowMs)
  }

  async leaseSessions(lease: NewLease) {
    return this.#consumers.lease([...this.#open().values()], lease)
  }

  async changeLease(change: LeaseChange) {
    return this.#consumers.change([...this.#open().values()], change)
  }

  async putIntoGroups(consumer: string, members: readonly GroupMember[]) {
    this.#consumers.group([...this.#open().values()], consumer, members)
  }

  async findGroups(query: GroupQuery) {
    return this.#consumers.findGroups([...this.#open().values()].map(shown), query)
  }

  async discardGroups(consumer: string, groups: readonly string[], nowMs: number) {
    return this.#consumers.discard(consumer, groups, nowMs)
  }

  async listSessionStates(sessionId: string) {
    const entry = this.#open().get(sessionId)
    return entry === undefined ? [] : this.#consumers.given(entry)
  }

  async putSessionStates(sessionId: string, given: readonly ConsumerSession[]) {
    const entry = this.#open().get(sessionId)
    if (entry !== undefined) this.#consumers.put(entry, given)
  }

  async wasImported({ kind, name, createdAtMs }: ImportEntry) {
    return this.#imports.has(`${kind} ${createdAtMs} ${name}`)
  }

  async setImported({ kind, name, createdAtMs }: ImportEntry, isImported: boolean) {
    const key = `${kind} ${createdAtMs} ${name}`
    if (isImported) this.#imports.add(key)
    else this.#imports.delete(key)
  }

  async check(): Promise<void> {
    this.#open()
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#entries.clear()
  }

  async #openTurn(turn: OpenTurn): Promise<void> {
    const entry = this.#open().get(turn.sessionId)
    if (entry === undefined) throw new ProxyError('session_not_found', 'Session not found')
    if (entry.turns.some(({ turnId }) => turnId === turn.turnId)) {
      throw new ProxyError('store_failed', `turn ${turn.turnId} is on record already`)
    }
    const place = entry.turns.findLastIndex(({ index }) => index <= turn.index) + 1
    entry.turns.splice(place, 0, openRecord(turn, entry))
    this.#numbers.set(turn.turnId, this.#numbers.size + 1)
    touch(entry.session, turn.startedAtMs)
  }

  #find(sessionId: string, turnId: string): TurnRecord | undefined {
    return this.#open()
      .get(sessionId)
      ?.turns.find((each) => each.turnId === turnId)
  }

  #expired(nowMs: number): Entry[] {
    return [...this.#open().values()].filter(({ session, turns, life }) => {
      const { ttlMs, updatedAtMs } = session
      const isOver = ttlMs !== null && updatedAtMs + ttlMs <= nowMs
      return (
        isOver &&
        !turns.some(({ status }) => status === 'open') &&
        !this.#consumers.holds({ session, life }, nowMs)
      )
    })
  }

  #matching(filter: SessionFilter): SessionRecord[] {
    return [...this.#open().values()].map(snapshot).filter((session) => matchesFilter(session, filter))
  }

  #positionOf(session: SessionRecord, order: ListOrder): ListPosition {
    return { value: sortValue(session, order), key: this.#entries.get(session.sessionId)!.key }
  }

  #change(sessionId: string, change: (entry: Entry) => void): SessionRecord | undefined {
    const entry = this.#open().get(sessionId)
    if (entry === undefined) return undefined
    change(entry)
    return snapshot(entry)
  }

  #open(): Map<string, Entry> {
    if (this.#closed) throw new ProxyError('store_failed', 'the turn store is closed')
    return this.#entries
  }
}

/** Returns a session with the statistics of its turns. */
function shown(entry: Entry): Pick<Entry, 'life' | 'session'> {
  return { life: entry.life, session: snapshot(entry) }
}

function newRecord(session: NewSession): SessionRecord {
  const { sessionId, createdAtMs, ttlMs, metadata, samplingParams, trustAgent } = session
  const { record = null, policies = {}, editedCalls = null, limits = null, keyTag = null } = session
  return {
    sessionId,
    status: 'active',
    createdAtMs,
    updatedAtMs: createdAtMs,
    endedAtMs: null,
    ttlMs: ttlMs === null ? null : Math.max(1, Math.round(ttlMs)),
    metadata: structuredClone(metadata),
    samplingParams: JSON.stringify(samplingParams),
    trustAgent,
    record: record && [...record],
    policies: { ...policies },
    editedCalls,
    limits: structuredClone(limits),
    keyTag,
    reward: null,
    marks: noMarks(),
    ...countsOf([]),
  }
}

/** Copies a turn except its messages, which are immutable. */
function copyOf<T extends { lastMessage: Message | undefined }>({ lastMessage, ...turn }: T): T {
  return { ...structuredClone(turn), lastMessage } as unknown as T
}

function openRecord(turn: OpenTurn, { messages, pieces }: Entry): TurnRecord {
  return {
    ...turn,
    lastMessage: messages.addMessageTexts(getTextsUpTo(turn.lastMessage)),
    promptPieces: turn.promptPieces.map((piece) => knownPiece(piece, pieces)),
    status: 'open',
    endedAtMs: null,
    firstTokenAtMs: null,
    model: null,
    engine: null,
    completionText: null,
    reasoning: null,
    toolCalls: '[]',
    finishReason: null,
    stopReason: null,
    promptTokenIds: new Int32Array(0),
    completionTokenIds: new Int32Array(0),
    completionLogprobs: new Float64Array(0),
    exact: false,
    inexactReason: null,
    weightVersionStart: null,
    weightVersionEnd: null,
    usage: null,
    annotations: '{}',
    error: null,
  }
}

/**
 * Shares one string among all turns with equal text. It is copied because a slice would keep the complete prompt alive.
 */
function knownPiece(piece: string, known: Map<string, string>): string {
  const before = known.get(piece)
  if (before !== undefined) return before
  const copy = Buffer.from(piece, 'utf16le').toString('utf16le')
  known.set(copy, copy)
  return copy
}

function touch(session: SessionRecord, atMs: number): void {
  session.updatedAtMs = Math.max(session.updatedAtMs, atMs)
}

function snapshot({ session, turns }: Entry): SessionRecord {
  return { ...structuredClone(session), ...countsOf(turns) }
}

function countsOf(turns: readonly TurnRecord[]) {
  const count = (is: (turn: TurnRecord) => boolean) => turns.filter(is).length
  return {
    turnCount: turns.length,
    nextIndex: (turns.at(-1)?.index ?? -1) + 1,
    openTurns: count(({ status }) => status === 'open'),
    failedTurns: count(({ status }) => status === 'failed' || status === 'interrupted'),
    inexactTurns: count(({ status, exact }) => status === 'completed' && !exact),
    sampledTokens: turns.reduce((sum, { completionTokenIds }) => sum + completionTokenIds.length, 0),
  }
}

/** Finds the turn with the longest common prefix; among equals, the latest. */
function baseOf(turn: TurnRecord, given: readonly TurnRecord[]): Omit<TurnStep['promptStep'], 'rest'> {
  const prompt = turn.promptTokenIds
  let most = { base: null as string | null, shared: 0 }
  for (const earlier of given.toReversed()) {
    const least = Math.max(most.shared, MIN_SHARED_TOKENS - 1)
    if (least >= prompt.length) break
    // Only a turn that agrees at this index can share more. Without this check a session of a thousand turns takes
    // seconds.
    if (earlier.status === 'open' || idAt(earlier, least) !== prompt[least]) continue
    const shared = sharedWith(earlier, prompt)
    if (shared > least) most = { base: earlier.turnId, shared }
  }
  return most
}

function idAt({ promptTokenIds, completionTokenIds }: TurnRecord, at: number): number | undefined {
  const { length } = promptTokenIds
  return at < length ? promptTokenIds[at] : completionTokenIds[at - length]
}

function sharedWith({ promptTokenIds, completionTokenIds }: TurnRecord, prompt: Int32Array): number {
  const shared = getSharedLength(promptTokenIds, prompt)
  if (shared < promptTokenIds.length) return shared
  return shared + getSharedLength(completionTokenIds, prompt.subarray(shared))
}

/** Compares two positions; a negative result means that `a` comes first. */
function comparePositions(a: ListPosition, b: ListPosition, { order }: ListOrder): number {
  // Two infinities are equal, but their difference is NaN.
  const ascending = a.value === b.value ? a.key - b.key : a.value - b.value
  return order === 'desc' ? -ascending : ascending
}
