/** The order, cursor and filter of `listSessions`, which the stores share. */
import { ProxyError } from '../../../base/errors.ts'
import { parseJson } from '../../../base/json.ts'
import { hasLabel } from './marks.ts'
import type { SessionFilter, SessionQuery, SessionRecord, SessionSort } from './turn-store.ts'

/** The order of a list. */
export interface ListOrder {
  sort: SessionSort
  order: 'asc' | 'desc'
}

/**
 * The position at which a page ended: the sort value of its last session, and the row id of that session, which breaks
 * ties. The next page continues after this position, so that sessions created between two pages neither repeat nor hide
 * others.
 */
export interface ListPosition {
  value: number
  key: number
}

export function getOrder({ sort = 'created', order = 'desc' }: SessionQuery): ListOrder {
  return { sort, order }
}

/** Returns the value by which a session is sorted. */
export function getSortValue(session: SessionRecord, { sort, order }: ListOrder): number {
  switch (sort) {
    case 'created':
      return session.createdAtMs
    case 'changed':
      return session.updatedAtMs
    case 'turns':
      return session.turnCount
    case 'tokens':
      return session.sampledTokens
    case 'reward':
      return session.reward?.reward ?? getLastValue(order)
  }
}

/** Returns the position before all sessions. */
export function getFirstPosition({ order }: ListOrder): ListPosition {
  return order === 'desc'
    ? { value: Number.POSITIVE_INFINITY, key: Number.MAX_SAFE_INTEGER }
    : { value: Number.NEGATIVE_INFINITY, key: 0 }
}

/** Returns the sort value of sessions without a reward, which puts them last. */
export function getLastValue(order: ListOrder['order']): number {
  return order === 'desc' ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY
}

export function encodeCursor({ value, key }: ListPosition, { sort, order }: ListOrder): string {
  return Buffer.from(JSON.stringify([sort, order, value, key])).toString('base64url')
}

/** Parses a cursor. @throws ProxyError `invalid_request` with param `cursor` unless a list in this order returned it */
export function decodeCursor(cursor: string, { sort, order }: ListOrder): ListPosition {
  const position = parseJson(Buffer.from(cursor, 'base64url').toString())
  if (!Array.isArray(position) || position.length !== 4 || position[0] !== sort || position[1] !== order) {
    throw createInvalidCursorError()
  }
  // JSON has no infinity: null is the sort value of a session without a reward.
  const value = position[2] ?? getLastValue(order)
  const key = position[3]
  if (typeof value !== 'number' || !Number.isFinite(key)) throw createInvalidCursorError()
  return { value, key }
}

/** The fields of a session that filters read. */
export type SessionFilterFields = Pick<
  SessionRecord,
  'sessionId' | 'status' | 'updatedAtMs' | 'reward' | 'inexactTurns' | 'failedTurns' | 'metadata' | 'marks'
>

export function matchesFilter(session: SessionFilterFields, filter: SessionFilter): boolean {
  const { status, idPrefix = '', sinceMs = 0, rewardMin, rewardMax, inexact, failed } = filter
  const { metadata, label, text } = filter
  const reward = session.reward?.reward
  if (status !== undefined && session.status !== status) return false
  if (!session.sessionId.startsWith(idPrefix)) return false
  if (session.updatedAtMs < sinceMs) return false
  if (rewardMin !== undefined && !(reward !== undefined && reward >= rewardMin)) return false
  if (rewardMax !== undefined && !(reward !== undefined && reward <= rewardMax)) return false
  if (inexact !== undefined && session.inexactTurns > 0 !== inexact) return false
  if (failed !== undefined && session.failedTurns > 0 !== failed) return false
  if (metadata !== undefined && !matchesMetadata(session.metadata, metadata)) return false
  if (label !== undefined && !hasLabel(session.marks, label)) return false
  return text === undefined || containsText(session, text.toLowerCase())
}

function matchesMetadata(
  metadata: Record<string, unknown>,
  wanted: NonNullable<SessionFilter['metadata']>,
): boolean {
  return Object.entries(wanted).every(
    ([key, value]) => Object.hasOwn(metadata, key) && metadata[key] === value,
  )
}

/** Returns whether the id, metadata or marks of a session contain a text. @param text in lower case */
function containsText({ sessionId, metadata, marks }: SessionFilterFields, text: string): boolean {
  return sessionId.toLowerCase().includes(text) || matchesValue(metadata, text) || matchesValue(marks, text)
}

function matchesValue(value: unknown, text: string): boolean {
  if (typeof value === 'object' && value !== null) {
    return Object.values(value).some((part) => matchesValue(part, text))
  }
  return value !== null && String(value).toLowerCase().includes(text)
}

function createInvalidCursorError(): ProxyError {
  const message = 'cursor must be one that this list returned, with the same sort and order'
  return new ProxyError('invalid_request', message, { param: 'cursor' })
}
