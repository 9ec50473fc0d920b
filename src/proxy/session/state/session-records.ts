/** Makes sessions' records, and finds those that calls are for. */
import { ProxyError } from '../../../base/errors.ts'
import { type ClaimedSession, sessionMoved } from '../../store/port/shared-record.ts'
import type { SessionLimits, SessionRecord, TurnStore } from '../../store/port/turn-store.ts'
import type { Activity } from './activity.ts'
import type { NewSessionRequest } from './new-session.ts'
import { readPolicies } from './policies.ts'
import { parseSessionId } from './session-id.ts'

export interface SessionsOptions {
  /** A call for a session that does not exist is refused instead of creating it. */
  strict: boolean
  /** Time to live of sessions that name none; null: for ever. */
  defaultTtlMs: number | null
  /** Budgets of sessions that name none; default: none. */
  limits?: SessionLimits | null
  /** Called with what happens to sessions. */
  activity?: Activity
  /** Milliseconds since the epoch. */
  clock?: () => number
  /** Milliseconds from any beginning, which no setting of the clock changes. Default: the process's, or `clock`. */
  steadyClock?: () => number
  generateId?: () => string
  /** Metadata that a new session gets behind and below what its creator gives. */
  metadata?: () => Record<string, unknown>
  /** How long a change waits for cancelled calls to close their turns. */
  settleMs?: number
  sweepIntervalMs?: number
  /** What may be remembered of all sessions and their calls. Default: 512 MiB. */
  memoryBytes?: number
}

/** A session's record, with its epoch where several nodes share the database. */
export interface SessionClaim {
  record: SessionRecord
  claimed: ClaimedSession | undefined
}

export class SessionRecords {
  readonly #store: TurnStore
  readonly #options: Required<SessionsOptions>

  constructor(store: TurnStore, options: Required<SessionsOptions>) {
    this.#store = store
    this.#options = options
  }

  /** @param isOwn of a record that several proxies share: it is to be this one's */
  async create(sessionId: string, request: NewSessionRequest, isOwn = false) {
    const made = await this.#store.createSession({
      sessionId,
      createdAtMs: this.#options.clock(),
      ttlMs: request.ttlMs === undefined ? this.#options.defaultTtlMs : request.ttlMs,
      // Twice: what the creator says comes first, and holds.
      metadata: { ...request.metadata, ...this.#options.metadata(), ...request.metadata },
      samplingParams: request.samplingParams ?? {},
      trustAgent: request.trustAgent ?? false,
      record: request.record ?? null,
      policies: readPolicies(request.policy),
      editedCalls: request.editedCalls ?? null,
      limits: request.limits ?? this.#options.limits,
      keyTag: request.keyTag ?? null,
      isOwn,
    })
    if (made.created) this.#options.activity.tell({ type: 'session_opened', session_id: sessionId })
    return made
  }

  /** A key that was made for one session makes no other. @returns `claimed` undefined: the record is not shared */
  async forCall(sessionId: string, keyTag: string | null = null): Promise<SessionClaim> {
    const { shared } = this.#store
    if (keyTag === null && !this.#options.strict) {
      const { session, epoch } = await this.create(parseSessionId(sessionId), {}, true)
      const claimed = epoch === undefined ? undefined : { epoch, wasLost: false }
      if (shared === undefined || claimed !== undefined) return { record: session, claimed }
    }
    const existing = await this.claim(sessionId)
    if (existing === undefined && keyTag !== null) throw endedKey()
    return found(existing)
  }

  /**
   * Makes the session this node's own, where several share the database.
   * @returns undefined: there is no such session
   * @throws ProxyError `session_moved`: another node owns it
   */
  async claim(sessionId: string): Promise<SessionClaim | undefined> {
    const { shared } = this.#store
    const claimed = await shared?.claim(sessionId)
    const record = await this.#store.getSession(sessionId)
    if (record === undefined) return undefined
    if (shared !== undefined && claimed === undefined) throw sessionMoved(sessionId)
    return { record, claimed }
  }
}

export function found<T>(session: T | undefined): T {
  if (session === undefined) throw notFound()
  return session
}

export function notFound(): ProxyError {
  return new ProxyError('session_not_found', 'Session not found')
}

export function endedKey(): ProxyError {
  return new ProxyError('unauthorized', 'This key was made for a session that is no longer there')
}
