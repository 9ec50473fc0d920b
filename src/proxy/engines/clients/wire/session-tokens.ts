import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'

/** The properties of a request that identify its session to routers and engines. */
export type RequestSession = Pick<GenerationRequest, 'sessionId' | 'subagent'>

/**
 * The header in which llm-d's router names the selected engine. The router expects the same header in the session's
 * next request (`encoded_endpoint_header` of `session-affinity-scorer` in llm-d/llm-d-router).
 */
const TOKEN = 'x-session-token'
/**
 * The number of sessions whose tokens are stored; beyond it, those of the least recently active session are discarded.
 */
const MAX_SESSIONS = 10_000

/** Returns the session's name. A sub-agent has its own conversation, and therefore its own prefix and name. */
export function getSessionName({ sessionId, subagent }: RequestSession): string {
  return subagent === undefined ? sessionId : `${sessionId}/subagent:${subagent}`
}

/**
 * The tokens that routers in front of engines return for sessions, and the headers by which a router sends all requests
 * of a session to one engine.
 */
export class SessionTokens {
  readonly #names: readonly string[]
  readonly #tokens = new Map<string, Map<string, string>>()

  /** @param names the names of the headers that contain the session's name */
  constructor(names: readonly string[]) {
    this.#names = names
  }

  getHeaders(request: RequestSession): Record<string, string> {
    const headers: Record<string, string> = {}
    for (const name of this.#names) {
      headers[name] = toHeaderValue(getSessionName(request))
      // Dynamo expects both headers (its `docs/agents/session-ids.md`).
      if (request.subagent !== undefined && /^x-dynamo-session-id$/i.test(name))
        headers['X-Dynamo-Parent-Session-ID'] = toHeaderValue(request.sessionId)
    }
    const token = this.#tokens.get(request.sessionId)?.get(getSessionName(request))
    return token === undefined ? headers : { ...headers, [TOKEN]: token }
  }

  /** Stores the token in a response. @param headers the headers of the response */
  storeToken(request: RequestSession, headers: Record<string, string | string[] | undefined>): void {
    const token = headers[TOKEN]
    if (typeof token !== 'string' || this.#names.length === 0) return
    const tokens = this.#tokens.get(request.sessionId) ?? new Map<string, string>()
    tokens.set(getSessionName(request), token)
    this.#tokens.delete(request.sessionId)
    this.#tokens.set(request.sessionId, tokens)
    if (this.#tokens.size > MAX_SESSIONS) this.#tokens.delete(this.#tokens.keys().next().value!)
  }

  forget(sessionId: string): void {
    this.#tokens.delete(sessionId)
  }
}

/** Encodes a name, since an id may contain characters that are invalid in headers. */
function toHeaderValue(name: string): string {
  return encodeURIComponent(name)
}
