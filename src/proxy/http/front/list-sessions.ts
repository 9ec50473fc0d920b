/** `GET /sessions` of all nodes, page by page. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { answerAll } from './ask-all.ts'
import { type ListedSession, mergeLists, mergeTotals, type Totals } from './merge.ts'
import type { NodeAnswer, Nodes } from './nodes.ts'
import { withQuery } from './with-query.ts'

interface Page {
  sessions: ListedSession[]
  next_cursor: string | null
  totals?: Totals
}

/**
 * Where each node's list goes on: at the node's own cursor. `''`: at its beginning; null: it is at its end; false: the node was
 * away on an earlier page, and what it has is in none.
 */
type NodeCursor = string | null | false

const DEFAULT_LIMIT = 100
const FROM_THE_START = ''

export async function listSessions(
  nodes: Nodes,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<unknown> {
  const { limit: asked, sort = 'created', order = 'desc', cursor } = request.query as Record<string, string>
  const limit = Number(asked ?? DEFAULT_LIMIT)
  const from = readCursor(cursor, nodes.count)
  const answers = await nodes.askAll(request, (place) => pageUrl(request.url, from[place]!, limit))
  for (const [place, at] of from.entries())
    if (at === false) answers[place] = { node: nodes.nameOf(place), error: 'it was away on an earlier page' }
  const pages = answers.map(pageOf)
  // A node whose list has ended is asked all the same, for its totals.
  const lists = pages.map((page, place) => (from[place] === null ? [] : (page?.sessions ?? [])))
  const { sessions, taken } = mergeLists(lists, { sort, order, limit })
  const next = await Promise.all(pages.map((page, place) => placeAfter(page, place)))
  return answerAll(reply, answers, () => {
    const totals = mergeTotals(pages.flatMap((page) => (page?.totals ? [page.totals] : [])))
    const goesOn = next.some((each) => typeof each === 'string')
    return { sessions, next_cursor: goesOn ? writeCursor(next) : null, ...(totals && { totals }) }
  })

  /** A node's cursors stand at the ends of its pages: a page of as many as were taken ends where this one does. */
  async function placeAfter(page: Page | undefined, place: number): Promise<NodeCursor> {
    const before = from[place]!
    if (page === undefined) return false
    if (before === null || taken[place] === lists[place]!.length)
      return before === null ? null : page.next_cursor
    if (taken[place] === 0) return before
    const short = pageOf(await nodes.ask(place, request, pageUrl(request.url, before, taken[place]!)))
    return short === undefined ? false : short.next_cursor
  }
}

function pageUrl(url: string, cursor: NodeCursor, limit: number): string {
  return withQuery(url, { limit: String(limit), cursor: cursor || undefined })
}

function pageOf(answer: NodeAnswer): Page | undefined {
  return 'status' in answer && answer.status === 200 ? JSON.parse(answer.text) : undefined
}

function writeCursor(cursor: readonly NodeCursor[]): string {
  return Buffer.from(JSON.stringify(cursor)).toString('base64url')
}

/** @throws ProxyError `invalid_request` for one that this front has not made */
function readCursor(text: string | undefined, count: number): NodeCursor[] {
  if (text === undefined) return Array.from({ length: count }, () => FROM_THE_START)
  try {
    const cursor: unknown = JSON.parse(Buffer.from(text, 'base64url').toString())
    const isPlace = (each: unknown) => each === null || each === false || typeof each === 'string'
    if (Array.isArray(cursor) && cursor.length === count && cursor.every(isPlace)) return cursor
  } catch {
    // As any other that was not made here.
  }
  throw new ProxyError('invalid_request', "'cursor' is not one of this list", { param: 'cursor' })
}
