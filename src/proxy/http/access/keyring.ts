/** Identifies callers by the keys that the proxy accepts. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { createAgentKey, createRunKey, verifyAgentKey, verifyRunKey } from './agent-key.ts'
import type { Caller } from './scopes.ts'

/**
 * The configured keys. All keys of a list are valid at the same time, so that a key can be rotated without
 * interruption. New agent and run keys are created with the first secret. If all lists are empty, the proxy is open to
 * every caller.
 */
export interface KeySettings {
  /** If all lists of this interface are empty, the proxy is open to every caller. */
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

/** The scopes of keys that are configured as text. */
type KeyScope = 'admin' | 'worker' | 'view' | 'metrics'

/** The keys that a proxy accepts. */
export class Keyring {
  /** Whether every caller may use every route. */
  readonly isOpen: boolean
  /** The digests of the keys by the scope that they grant. */
  readonly #digests: readonly (readonly [is: KeyScope, digests: readonly Buffer[]])[]
  readonly #agentKeySecrets: readonly string[]

  constructor({ adminKeys, workerKeys, agentKeySecrets, viewKeys, metricsKeys }: KeySettings) {
    const keys = { admin: adminKeys, worker: workerKeys, view: viewKeys, metrics: metricsKeys }
    this.isOpen = [agentKeySecrets, ...Object.values(keys)].every((some) => some.length === 0)
    this.#digests = Object.entries(keys).map(([is, some]) => [is as KeyScope, some.map(digest)])
    this.#agentKeySecrets = agentKeySecrets
  }

  /**
   * Returns the agent key of a session; undefined if agents have no keys.
   * @param tag the session's tag, if it has one
   */
  getAgentKey(sessionId: string, tag: string | null = null): string | undefined {
    const [secret] = this.#agentKeySecrets
    return secret === undefined ? undefined : createAgentKey(secret, sessionId, tag)
  }

  /** Returns the key for the trainer of a run; undefined if no secret is configured. */
  getRunKey(run: string): string | undefined {
    const [secret] = this.#agentKeySecrets
    return secret === undefined ? undefined : createRunKey(secret, run)
  }

  /** Returns the caller that the first valid key of a request identifies. */
  identify(headers: IncomingHttpHeaders): Caller {
    if (this.isOpen) return { is: 'anyone' }
    // A client may send a configured key together with another one from its environment.
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
    // All keys are compared, so that the duration does not reveal which one matched.
    const owners = this.#digests.filter(([, digests]) => includes(digests, digestOfKey))
    const [first] = owners
    return first && { is: first[0] }
  }
}

/**
 * Returns the keys of a request: `x-api-key` (Anthropic's SDKs), `x-goog-api-key` (Google's), a bearer token (OpenAI's
 * and most others), or the password of basic authentication, for clients that are configured with a URL only
 * (`ws://:key@proxy`).
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

/** Returns the digest of a key. Digests have equal lengths, so that comparing them takes constant time. */
function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest()
}

/**
 * Returns whether a list contains a digest. All digests are compared, so that the time does not depend on the result.
 */
function includes(digests: readonly Buffer[], wanted: Buffer): boolean {
  return digests.filter((candidate) => timingSafeEqual(candidate, wanted)).length > 0
}
