/** Creates stored sessions, and finds those that requests name. */
import { ProxyError } from '../../../base/errors.ts'
import { createSessionMovedError, type SessionOwnership } from '../../store/port/node-coordination.ts'
import type { SessionLimits, SessionRecord, TurnStore } from '../../store/port/turn-store.ts'
import type { Activity } from './activity.ts'
import type { NewSessionRequest } from './new-session.ts'
import { readPolicies } from './policies.ts'
import { parseSessionId } from './session-id.ts'

export interface SessionsOptions {
  /** Whether a request for a session that does not exist is rejected instead of creating it. */
  strict: boolean
  /** The time to live of sessions that name none; null: unlimited. */
  defaultTtlMs: number | null
  /** The budgets of sessions that name none; default: none. */
  limits?: SessionLimits | null
  /** The listeners of the sessions' events. */
  activity?: Activity
  /** The wall clock, in milliseconds since the epoch. */
  clock?: () => number
  /** The monotonic clock in milliseconds, which no change of the time affects. Default: the process's, or `clock`. */
  steadyClock?: () => number
  generateId?: () => string
  /** The metadata of each new session, after and with lower precedence than its creator's. */
  metadata?: () => Record<string, unknown>
  /** The time that a change waits for cancelled requests to close their turns. */
  settleMs?: number
  sweepIntervalMs?: number
  /** The limit on the caches of all sessions. Default: 512 MiB. */
  memoryBytes?: number
}

/** A session's row, with its epoch if several nodes share the database. */
export interface SessionClaim {
  record: SessionRecord
  claimed: SessionOwnership | undefined
}

export class SessionRecords {
  readonly #store: TurnStore
  readonly #options: Required<SessionsOptions>

  constructor(store: TurnStore, options: Required<SessionsOptions>) {
    this.#store = store
    this.#options = options
  }

  /** @param isOwn whether this node is to own the session, if several nodes share the database */
  async create(sessionId: string, request: NewSessionRequest, isOwn = false) {
    const result = await this.#store.createSession({
      sessionId,
      createdAtMs: this.#options.clock(),
      ttlMs: request.ttlMs === undefined ? this.#options.defaultTtlMs : request.ttlMs,
      // Spread twice: the creator's metadata comes first, and has precedence.
      metadata: { ...request.metadata, ...this.#options.metadata(), ...request.metadata },
      samplingParams: request.samplingParams ?? {},
      trustAgent: request.trustAgent ?? false,
      record: request.record ?? null,
      policies: readPolicies(request.policy),
      editedCalls: request.editedCalls ?? null,
      continueResponses: request.continueResponses ?? null,
      limits: request.limits ?? this.#options.limits,
      keyTag: request.keyTag ?? null,
      isOwn,
    })
    if (result.created) this.#options.activity.emit({ type: 'session_opened', session_id: sessionId })
    return result
  }

  /**
   * Finds or creates the session of a request; a key with a tag creates none. @returns `claimed` undefined: the
   * database is not shared
   */
  async findOrCreate(sessionId: string, keyTag: string | null = null): Promise<SessionClaim> {
    const { shared } = this.#store
    if (keyTag === null && !this.#options.strict) {
      const { session, epoch } = await this.create(parseSessionId(sessionId), {}, true)
      const claimed = epoch === undefined ? undefined : { epoch, wasLost: false }
      if (shared === undefined || claimed !== undefined) return { record: session, claimed }
    }
    const existing = await this.claim(sessionId)
    if (existing === undefined && keyTag !== null) throw createEndedKeyError()
    return requireSession(existing)
  }

  /**
   * Makes this node the owner of a session, if several share the database.
   * @returns undefined: there is no such session
   * @throws ProxyError `session_moved`: another node owns it
   */
  async claim(sessionId: string): Promise<SessionClaim | undefined> {
    const { shared } = this.#store
    const claimed = await shared?.claim(sessionId)
    const record = await this.#store.getSession(sessionId)
    if (record === undefined) return undefined
    if (shared !== undefined && claimed === undefined) throw createSessionMovedError(sessionId)
    return { record, claimed }
  }
}

export function requireSession<T>(session: T | undefined): T {
  if (session === undefined) throw createNotFoundError()
  return session
}

export function createNotFoundError(): ProxyError {
  return new ProxyError('session_not_found', 'Session not found')
}

export function createEndedKeyError(): ProxyError {
  return new ProxyError('unauthorized', 'This key is for a session that no longer exists')
}
