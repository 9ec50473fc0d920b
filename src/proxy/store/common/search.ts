/** Searches the text of turns, latest first, in bounded time slices. */
import { matchesFilter } from '../port/session-list.ts'
import { encodeSearchCursor, extractTurnText, findMatch, type TurnContent } from '../port/turn-search.ts'
import type { SearchPage, SessionRecord, TurnSearch } from '../port/turn-store.ts'
import { unpackOptionalText, unpackRowIds, unpackText } from './packing.ts'
import type { TextRow } from './tables.ts'
import type { CompletionRow } from './turn-rows.ts'

/** The length of a time slice, after which other reads are served. */
const PART_MS = 20

/** The number of turns that are fetched at a time. */
const BATCH = 32

export interface SearchPart extends Pick<SearchPage, 'hits'> {
  /** The turn before which to continue; absent: the search is complete. */
  continueBefore?: number
}

export type SearchRequest = Omit<TurnSearch, 'cursor'> & {
  /** Only turns before this one (`turns.id`) are searched. */
  before: number
  /** The ids of sessions whose hits have reached the limit per session. */
  full: readonly string[]
}

/** A turn that may contain the text. */
export interface SearchCandidate extends TurnContent {
  /** The id of its row, `turns.id`. */
  id: number
  turnId: string
  index: number
  startedAtMs: number
}

type Awaitable<T> = T | Promise<T>

export interface SearchSource {
  /**
   * Returns the row ids of turns before `before` that may contain the text: all turns that are not indexed yet, and the
   * indexed turns that match. Latest first; at most `limit`.
   */
  findCandidates(wanted: string, before: number, limit: number): Awaitable<number[]>
  /** Reads turns by row id, in order. Omits deleted turns, and turns of sessions that are not wanted. */
  readTurns(
    turns: readonly number[],
    isWanted: (session: SessionRecord) => boolean,
  ): Awaitable<{ turn: SearchCandidate; session: SessionRecord }[]>
}

/** Searches for one time slice, or until the limit of hits is reached. */
export async function searchBatch(source: SearchSource, part: SearchRequest): Promise<SearchPart> {
  const began = performance.now()
  const wanted = part.wanted.toLowerCase()
  const found = new Map<string, number>()
  const isFull = ({ sessionId }: SessionRecord) =>
    part.full.includes(sessionId) || (found.get(sessionId) ?? 0) >= part.perSession
  const hits: SearchPart['hits'] = []
  let before = part.before
  while (performance.now() - began < PART_MS) {
    const candidates = await source.findCandidates(wanted, before, BATCH)
    if (candidates.length === 0) return { hits }
    before = candidates.at(-1)!
    const isWanted = (session: SessionRecord) => !isFull(session) && matchesFilter(session, part)
    for (const { turn, session } of await source.readTurns(candidates, isWanted)) {
      const match = isFull(session) ? undefined : findMatch(extractTurnText(turn), wanted)
      if (match === undefined) continue
      const { turnId, index, startedAtMs } = turn
      hits.push({ session, turnId, index, startedAtMs, ...match })
      found.set(session.sessionId, (found.get(session.sessionId) ?? 0) + 1)
      if (hits.length === part.limit) return { hits, continueBefore: turn.id }
    }
  }
  return { hits, continueBefore: before }
}

/** The time limit of a page: after it the page ends with the hits so far and a cursor. */
const PAGE_MS = 2_000

/** Searches for a page of hits, in time slices. @param next searches for one time slice */
export async function searchPage(
  { cursor: _, ...search }: TurnSearch,
  before: number,
  next: (part: SearchRequest) => Promise<SearchPart>,
): Promise<SearchPage> {
  const began = performance.now()
  const hits: SearchPage['hits'] = []
  let at: number | undefined = before
  while (at !== undefined && hits.length < search.limit && performance.now() - began < PAGE_MS) {
    const full = Map.groupBy(hits, ({ session }) => session.sessionId)
    const isFull = ([, of]: [string, unknown[]]) => of.length >= search.perSession
    const part: SearchPart = await next({
      ...search,
      limit: search.limit - hits.length,
      before: at,
      full: [...full].filter(isFull).map(([sessionId]) => sessionId),
    })
    hits.push(...part.hits)
    at = part.continueBefore
  }
  return { hits, ...(at !== undefined && { nextCursor: encodeSearchCursor(at) }) }
}

/** The columns of `turns` from which a {@link SearchCandidate} is built. */
export const CANDIDATE_COLUMNS =
  'id, tree, call_index, turn_id, started_at_ms, node, prompt_node, completion_text, reasoning, tool_calls'

export interface SearchRow extends CompletionRow {
  tree: number
  call_index: number
  turn_id: string
  started_at_ms: number
  node: number
  prompt_node: number
}

/** A text without its hash. */
type TextWithoutHash = Omit<TextRow, 'hash'>

/** Builds a candidate from its row. @param texts the texts of its request that no earlier turn has, in order */
export function toSearchCandidate(row: SearchRow, texts: readonly TextWithoutHash[]): SearchCandidate {
  return {
    id: row.id,
    turnId: row.turn_id,
    index: row.call_index,
    startedAtMs: row.started_at_ms,
    messages: texts.flatMap(listLiteralTexts),
    completionText: unpackOptionalText(row.completion_text),
    reasoning: unpackOptionalText(row.reasoning),
    toolCalls: unpackOptionalText(row.tool_calls),
  }
}

/** Returns the searchable text. Echoes are omitted, since the completion itself is searched; blobs contain no text. */
function listLiteralTexts({ echo_of: echo, blobs, body }: TextWithoutHash): string[] {
  if (echo !== null) return []
  return [blobs === null ? unpackText(body) : (JSON.parse(unpackText(body)) as string[]).join('')]
}

/** Unpacks text ids. @param packed `nodes.texts` */
export function unpackTextIds(packed: readonly Buffer[]): number[] {
  return packed.flatMap((texts) => unpackRowIds(texts))
}
