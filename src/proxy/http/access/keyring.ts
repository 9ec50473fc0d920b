/** The keys that the proxy accepts, and the caller that each one identifies. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { createAgentKey, createRunKey, verifyAgentKey, verifyRunKey } from './agent-key.ts'
import type { Caller } from './scopes.ts'

/** All keys of a kind are valid, so that one can be replaced without a gap; new keys are made with the first secret. */
export interface KeySettings {
  /** If all lists are empty, the proxy is open to everyone. */
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
  /** Whether every caller may use every route. */
  readonly isOpen: boolean
  /** The digests of the keys, by the scope that they grant. */
  readonly #digests: readonly (readonly [is: KeyScope, digests: readonly Buffer[]])[]
  readonly #agentKeySecrets: readonly string[]

  constructor({ adminKeys, workerKeys, agentKeySecrets, viewKeys, metricsKeys }: KeySettings) {
    const keys = { admin: adminKeys, worker: workerKeys, view: viewKeys, metrics: metricsKeys }
    this.isOpen = [agentKeySecrets, ...Object.values(keys)].every((some) => some.length === 0)
    this.#digests = Object.entries(keys).map(([is, some]) => [is as KeyScope, some.map(digest)])
    this.#agentKeySecrets = agentKeySecrets
  }

  /**
   * Returns the key of the agent of a session; undefined if agents have no keys. @param tag the session's, if it has
   * one
   */
  getAgentKey(sessionId: string, tag: string | null = null): string | undefined {
    const [secret] = this.#agentKeySecrets
    return secret === undefined ? undefined : createAgentKey(secret, sessionId, tag)
  }

  /** Returns the key for the trainer of a run; undefined without a secret to make it with. */
  getRunKey(run: string): string | undefined {
    const [secret] = this.#agentKeySecrets
    return secret === undefined ? undefined : createRunKey(secret, run)
  }

  identify(headers: IncomingHttpHeaders): Caller {
    if (this.isOpen) return { is: 'anyone' }
    // Clients that are configured with one key may also send another one from their environment.
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
    // All are compared, so that the duration does not reveal which key matched.
    const owners = this.#digests.filter(([, digests]) => includes(digests, digestOfKey))
    const [first] = owners
    return first && { is: first[0] }
  }
}

/**
 * Returns the keys of a request: `x-api-key` (Anthropic's SDKs), `x-goog-api-key` (Google's), a bearer token (OpenAI's
 * and most others), or the password of basic authentication, which a client sends that accepts only a URL
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

/** Digests have equal lengths, so comparing them takes constant time. */
function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest()
}

/** Returns whether a digest matches. Compares with all digests, so that the time does not depend on the result. */
function includes(digests: readonly Buffer[], wanted: Buffer): boolean {
  return digests.filter((candidate) => timingSafeEqual(candidate, wanted)).length > 0
}
