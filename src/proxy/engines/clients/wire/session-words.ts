import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'

/** What a call tells routers and engines of where it belongs. */
export type SessionOfCall = Pick<GenerationRequest, 'sessionId' | 'subagent'>

/**
 * llm-d's router names its engine with this header and wants to hear it again in the session's next call
 * (`encoded_endpoint_header` of `session-affinity-scorer` in llm-d/llm-d-router).
 */
const TOKEN = 'x-session-token'
/** Sessions of which such a word is kept: the longest silent ones go first. */
const MAX_SESSIONS = 10_000

/** A sub-agent has a conversation of its own, and with it a prefix of its own. */
export function nameOfSession({ sessionId, subagent }: SessionOfCall): string {
  return subagent === undefined ? sessionId : `${sessionId}/subagent:${subagent}`
}

/** Headers by which routers in front of engines keep a session on one engine. */
export class SessionWords {
  readonly #names: readonly string[]
  readonly #tokens = new Map<string, Map<string, string>>()

  /** @param names of headers with the session's name */
  constructor(names: readonly string[]) {
    this.#names = names
  }

  of(call: SessionOfCall): Record<string, string> {
    const headers: Record<string, string> = {}
    for (const name of this.#names) {
      headers[name] = asHeader(nameOfSession(call))
      // The other half of Dynamo's way (its `docs/agents/session-ids.md`).
      if (call.subagent !== undefined && /^x-dynamo-session-id$/i.test(name))
        headers['X-Dynamo-Parent-Session-ID'] = asHeader(call.sessionId)
    }
    const token = this.#tokens.get(call.sessionId)?.get(nameOfSession(call))
    return token === undefined ? headers : { ...headers, [TOKEN]: token }
  }

  /** @param headers of the answer */
  hear(call: SessionOfCall, headers: Record<string, string | string[] | undefined>): void {
    const token = headers[TOKEN]
    if (typeof token !== 'string' || this.#names.length === 0) return
    const tokens = this.#tokens.get(call.sessionId) ?? new Map<string, string>()
    tokens.set(nameOfSession(call), token)
    this.#tokens.delete(call.sessionId)
    this.#tokens.set(call.sessionId, tokens)
    if (this.#tokens.size > MAX_SESSIONS) this.#tokens.delete(this.#tokens.keys().next().value!)
  }

  forget(sessionId: string): void {
    this.#tokens.delete(sessionId)
  }
}

/** An id may hold what a header may not; encoded it is as good a name. */
function asHeader(name: string): string {
  return encodeURIComponent(name)
}
