/** Creates the rows of sessions, and finds the session of a request. */
import { ProxyError } from '../../../base/errors.ts'
import { createSessionMovedError, type SessionOwnership } from '../../store/port/node-coordination.ts'
import type { SessionLimits, SessionRecord, TurnStore } from '../../store/port/turn-store.ts'
import type { Activity } from './activity.ts'
import type { NewSessionRequest } from './new-session.ts'
import { readPolicies } from './policies.ts'
import { parseSessionId } from './session-id.ts'

/** The options of {@link Sessions}. */
export interface SessionsOptions {
  /** Whether a request for a session that does not exist is rejected, instead of creating the session. */
  strict: boolean
  /** The time to live of sessions that are created without one; null: unlimited. */
  defaultTtlMs: number | null
  /** The budgets of sessions that are created without any; default: none. */
  limits?: SessionLimits | null
  /** The listeners of the sessions' events. */
  activity?: Activity
  /** Returns the wall-clock time in milliseconds since the epoch. */
  clock?: () => number
  /**
   * Returns the time of a monotonic clock in milliseconds, which changes of the wall clock do not affect. Default: the
   * process's, or `clock`.
   */
  steadyClock?: () => number
  generateId?: () => string
  /** Returns metadata that is added to each new session. The creator's metadata takes precedence. */
  metadata?: () => Record<string, unknown>
  /** How long a change waits for cancelled requests to close their turns. Default: 10 s. */
  settleMs?: number
  sweepIntervalMs?: number
  /** The maximum size of the caches of all sessions. Default: 512 MiB. */
  memoryBytes?: number
}

/** A session's row, with this node's ownership if several nodes share the database. */
export interface SessionClaim {
  record: SessionRecord
  claimed: SessionOwnership | undefined
}

/** Access to the rows of sessions. */
export class SessionRecords {
  readonly #store: TurnStore
  readonly #options: Required<SessionsOptions>

  constructor(store: TurnStore, options: Required<SessionsOptions>) {
    this.#store = store
    this.#options = options
  }

  /**
   * Creates a session, or finds the existing one unchanged.
   * @param isOwn whether this node becomes the owner, if several nodes share the database
   */
  async create(sessionId: string, request: NewSessionRequest, isOwn = false) {
    const result = await this.#store.createSession({
      sessionId,
      createdAtMs: this.#options.clock(),
      ttlMs: request.ttlMs === undefined ? this.#options.defaultTtlMs : request.ttlMs,
      // The creator's metadata is spread twice, so that its fields come first and also take precedence.
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
   * Finds or creates the session of a request, and makes this node its owner. A request whose key has a tag does not
   * create one.
   * @returns `claimed` undefined: the database is not shared
   * @throws ProxyError `invalid_request`, `session_not_found`, `unauthorized`, `session_moved`
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
   * Makes this node the owner of a session, if several nodes share the database.
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

/** Returns the session. @throws ProxyError `session_not_found` if it is undefined */
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
