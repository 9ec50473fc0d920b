import type { EngineConnection } from '../wire/connection.ts'
import { getSessionName, type RequestSession } from '../wire/session-tokens.ts'

/** The number of sessions that stay open at the server; beyond it, the least recently active one is closed. */
const MAX_OPEN = 4_096
const CLOSING_MS = 10_000

/**
 * Sessions on a server with `--enable-session-radix-cache` (0.5.23), which retains the cache of each `session_id` until
 * `/close_session` (`mem_cache/unified_cache/session_ref_tracker.py`). Without that flag, sessions need not be closed.
 */
export class SglangSessions {
  readonly #connection: EngineConnection
  readonly #open = new Map<string, Set<string>>()
  #retainsCaches = false

  constructor(connection: EngineConnection) {
    this.#connection = connection
  }

  /** Determines from the server information of a health check whether the server retains the cache of sessions. */
  readSupport({ enable_session_radix_cache: isEnabled }: Record<string, unknown>): void {
    this.#retainsCaches = isEnabled === true
  }

  /** Returns the session id for the body of a request. Stores it, so that {@link end} closes the session. */
  getSessionName(request: RequestSession): string {
    const name = getSessionName(request)
    if (!this.#retainsCaches) return name
    const names = this.#open.get(request.sessionId) ?? new Set()
    this.#open.delete(request.sessionId)
    this.#open.set(request.sessionId, names.add(name))
    if (this.#open.size > MAX_OPEN) this.end(this.#open.keys().next().value!)
    return name
  }

  end(sessionId: string): void {
    for (const session_id of this.#open.get(sessionId) ?? []) void this.#close(session_id)
    this.#open.delete(sessionId)
  }

  /** Closes a session. Errors are ignored, because a server that is down has no sessions after its restart. */
  async #close(session_id: string): Promise<void> {
    const signal = AbortSignal.timeout(CLOSING_MS)
    try {
      await this.#connection.query('/close_session', signal, JSON.stringify({ session_id }))
    } catch {}
  }
}
