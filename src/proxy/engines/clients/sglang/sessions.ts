import type { EngineConnection } from '../wire/connection.ts'
import { getSessionName, type RequestSession } from '../wire/session-tokens.ts'

/** The number of sessions that are kept open at the server; beyond it the least recently active one is closed. */
const MAX_OPEN = 4_096
const CLOSING_MS = 10_000

/**
 * Sessions on a server with `--enable-session-radix-cache` (0.5.23), which keeps the cache of each `session_id` until
 * `/close_session` (`mem_cache/unified_cache/session_ref_tracker.py`). Without that flag the id is only a name.
 */
export class SglangSessions {
  readonly #connection: EngineConnection
  readonly #open = new Map<string, Set<string>>()
  #areHeld = false

  constructor(connection: EngineConnection) {
    this.#connection = connection
  }

  /** @param serverInfo the server information of a health check */
  readSupport({ enable_session_radix_cache: holds }: Record<string, unknown>): void {
    this.#areHeld = holds === true
  }

  /** Returns the session id for the body of a request. */
  getSessionName(call: RequestSession): string {
    const name = getSessionName(call)
    if (!this.#areHeld) return name
    const names = this.#open.get(call.sessionId) ?? new Set()
    this.#open.delete(call.sessionId)
    this.#open.set(call.sessionId, names.add(name))
    if (this.#open.size > MAX_OPEN) this.end(this.#open.keys().next().value!)
    return name
  }

  end(sessionId: string): void {
    for (const session_id of this.#open.get(sessionId) ?? []) void this.#close(session_id)
    this.#open.delete(sessionId)
  }

  /** Closes a session. Errors are ignored: a server that is down has lost its sessions. */
  async #close(session_id: string): Promise<void> {
    const signal = AbortSignal.timeout(CLOSING_MS)
    try {
      await this.#connection.query('/close_session', signal, JSON.stringify({ session_id }))
    } catch {}
  }
}
