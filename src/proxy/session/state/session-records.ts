/** Makes sessions' records, and finds those that calls are for. */
import { ProxyError } from '../../../base/errors.ts'
import { type ClaimedSession, sessionMoved } from '../../store/port/shared-record.ts'
import type { SessionLimits, SessionRecord, TurnStore } from '../../store/port/turn-store.ts'
import type { Activity } from './activity.ts'
import type { NewSessionRequest } from './new-session.ts'
import { readPolicies } from './policies.ts'
import { parseSessionId } from './session-id.ts'

interface SessionDefaults {
  /** A call for a session that does not exist is refused instead of creating it. */
  readonly strict: boolean
  readonly defaultTtlMs: number | null
  readonly limits: SessionLimits | null
  readonly activity: Activity
  clock(): number
  metadata(): Record<string, unknown>
}

interface OwnedSession {
  record: SessionRecord
  /** undefined: the record is not shared. */
  claimed: ClaimedSession | undefined
}

export class SessionRecords {
  readonly #store: TurnStore
  readonly #options: SessionDefaults

  constructor(store: TurnStore, options: SessionDefaults) {
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

  /** A key that was made for one session makes no other. */
  async forCall(sessionId: string, keyTag: string | null = null): Promise<OwnedSession> {
    const { shared } = this.#store
    if (keyTag === null && !this.#options.strict) {
      const { session, epoch } = await this.create(parseSessionId(sessionId), {}, true)
      const claimed = epoch === undefined ? undefined : { epoch, wasLost: false }
      if (shared === undefined || claimed !== undefined) return { record: session, claimed }
    }
    const claimed = await shared?.claim(sessionId)
    const record = await this.#store.getSession(sessionId)
    if (record === undefined && keyTag !== null) throw endedKey()
    if (record !== undefined && shared !== undefined && claimed === undefined) throw sessionMoved(sessionId)
    return { record: found(record), claimed }
  }
}

export function found(session: SessionRecord | undefined): SessionRecord {
  if (session === undefined) throw notFound()
  return session
}

export function notFound(): ProxyError {
  return new ProxyError('session_not_found', 'Session not found')
}

export function endedKey(): ProxyError {
  return new ProxyError('unauthorized', 'This key was made for a session that is no longer there')
}
