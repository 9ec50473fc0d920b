/** The keys that the proxy accepts, and whose each one is. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { createAgentKey, createRunKey, verifyAgentKey, verifyRunKey } from './agent-key.ts'
import type { Caller } from './scopes.ts'

/** Several of a kind are all valid, so that one can be replaced without a gap; what is made anew is made with the first. */
export interface KeySettings {
  /** None: the proxy is open to everybody. */
  adminKeys: readonly string[]
  workerKeys: readonly string[]
  agentKeySecrets: readonly string[]
  viewKeys: readonly string[]
  metricsKeys: readonly string[]
}

export const NO_KEYS: KeySettings = {
  adminKeys: [],
  workerKeys: [],
  agentKeySecrets: [],
  viewKeys: [],
  metricsKeys: [],
}

type KeyScope = 'admin' | 'worker' | 'view' | 'metrics'

export class Keyring {
  /** Whether everybody may do everything. */
  readonly isOpen: boolean
  /** By what a caller with one of these keys is. */
  readonly #digests: readonly (readonly [is: KeyScope, digests: readonly Buffer[]])[]
  readonly #agentKeySecrets: readonly string[]

  constructor({ adminKeys, workerKeys, agentKeySecrets, viewKeys, metricsKeys }: KeySettings) {
    const keys = { admin: adminKeys, worker: workerKeys, view: viewKeys, metrics: metricsKeys }
    this.isOpen = [agentKeySecrets, ...Object.values(keys)].every((some) => some.length === 0)
    this.#digests = Object.entries(keys).map(([is, some]) => [is as KeyScope, some.map(digest)])
    this.#agentKeySecrets = agentKeySecrets
  }

  /** The key that the agent of this session gets; undefined when agents have none. @param tag the session's, if it has one */
  agentKey(sessionId: string, tag: string | null = null): string | undefined {
    const [secret] = this.#agentKeySecrets
    return secret === undefined ? undefined : createAgentKey(secret, sessionId, tag)
  }

  /** The key of whoever trains on this run; undefined when there is no secret to make it with. */
  runKey(run: string): string | undefined {
    const [secret] = this.#agentKeySecrets
    return secret === undefined ? undefined : createRunKey(secret, run)
  }

  identify(headers: IncomingHttpHeaders): Caller {
    if (this.isOpen) return { is: 'anyone' }
    // Clients that are told one key in their settings may send another from their environment beside it.
    const keys = getKeys(headers)
    for (const key of keys) {
      const caller = this.#findOwner(key)
      if (caller) return caller
    }
    return { is: 'stranger', hasKey: keys.length > 0 }
  }

  #findOwner(key: string): Caller | undefined {
    const owner = verifyAgentKey(this.#agentKeySecrets, key)
    if (owner !== undefined) return { is: 'agent', sessionId: owner.sessionId, keyTag: owner.tag }
    const run = verifyRunKey(this.#agentKeySecrets, key)
    if (run !== undefined) return { is: 'run', run }
    const digestOfKey = digest(key)
    // All of them, so that how long it takes does not tell whose key it is.
    const owners = this.#digests.filter(([, digests]) => includes(digests, digestOfKey))
    const [first] = owners
    return first && { is: first[0] }
  }
}

/**
 * The keys of a request: `x-api-key` (Anthropic's SDKs), `x-goog-api-key` (Google's), a bearer token (OpenAI's and most others), or the password of
 * basic authentication, which a client sends that can be given no more than a URL (`ws://:key@proxy`).
 */
export function getKeys(headers: IncomingHttpHeaders): string[] {
  const { 'x-api-key': apiKey, 'x-goog-api-key': googleKey } = headers
  const [, scheme = '', credentials] = /^(bearer|basic) +(\S+)$/i.exec(headers.authorization ?? '') ?? []
  const fromAuthorization = scheme.toLowerCase() === 'basic' ? parsePassword(credentials!) : credentials
  return [apiKey, googleKey, fromAuthorization].filter(
    (key) => typeof key === 'string' && key !== '',
  ) as string[]
}

function parsePassword(credentials: string): string {
  const text = Buffer.from(credentials, 'base64').toString()
  return text.slice(text.indexOf(':') + 1)
}

/** Digests have one length, so that comparing them takes the same time whatever the key. */
function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest()
}

/** Compares with all of them, whichever matches. */
function includes(digests: readonly Buffer[], wanted: Buffer): boolean {
  return digests.filter((candidate) => timingSafeEqual(candidate, wanted)).length > 0
}
