/**
 * Keys of agents. An agent's key names its session and proves it with an HMAC, so that nothing about it is kept: it is
 * the same after a restart, and whoever has the secret can make it. The form is part of the API (`docs/security.md`):
 *
 *     lp-{session_id}-{base64url(HMAC-SHA256(secret, "llm-proxy agent key 1\n" + session_id))}
 *
 * Such a key is good for every session of its name, also one that is made again. A key that ends with its session has
 * a tag in it, eight random bytes that are on record with the session, before as much of the HMAC as there is room for:
 *
 *     lp-{session_id}-{base64url(tag + HMAC-SHA256(secret, "llm-proxy agent key 2\n" + tag + session_id)[0..24])}
 *
 * The key of a run is for whoever trains on it, and names all its sessions, `runs/{run}/{name}`:
 *
 *     lr-{run}-{base64url(HMAC-SHA256(secret, "llm-proxy run key 1\n" + run))}
 *
 * Keys travel in headers: where the id is shown, what is not of `A-Z a-z 0-9 . _ ~ : -` is percent-encoded.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { decodeSessionId, encodeSessionId } from '../../session/state/session-id.ts'

const PREFIX = 'lp-'
/** A proof is 32 bytes in base64url, without padding. Load balancers go by the same pattern (`deploy/balancers`). */
const AGENT_KEY = /^lp-(.+)-([A-Za-z0-9_-]{43})$/

const TAG_BYTES = 8

const RUN_KEY = /^lr-(.+)-([A-Za-z0-9_-]{43})$/

/** Whose key it is. */
interface AgentKeyOwner {
  readonly sessionId: string
  /** Of the one session that the key ends with, in base64url; null: it is good for every session of this name. */
  readonly tag: string | null
}

/** A tag for a new session, which no session before had. */
export function createKeyTag(): string {
  return randomBytes(TAG_BYTES).toString('base64url')
}

/** @param tag of the session, for a key that ends with it */
export function createAgentKey(secret: string, sessionId: string, tag: string | null = null): string {
  const proof = tag === null ? computeProof(secret, sessionId) : computeTaggedProof(secret, sessionId, tag)
  return `${PREFIX}${encodeSessionId(sessionId)}-${proof}`
}

/** @returns whose key this is by any of the secrets; undefined if it is none */
export function verifyAgentKey(secrets: readonly string[], key: string): AgentKeyOwner | undefined {
  const parts = parseAgentKey(key)
  const sessionId = parts && decodeSessionId(parts.encodedId)
  if (parts === undefined || sessionId === undefined) return undefined
  // As text: the last character of base64url has bits that decoding ignores, and four keys would be one.
  const proof = Buffer.from(parts.proof)
  // No early end: how long it takes must not tell which secret it was.
  const matches = (made: (secret: string) => string) =>
    secrets.filter((secret) => equal(proof, Buffer.from(made(secret)))).length > 0
  const tag = tagIn(parts.proof)
  const isPlain = matches((secret) => computeProof(secret, sessionId))
  const isTagged = matches((secret) => computeTaggedProof(secret, sessionId, tag))
  return isPlain || isTagged ? { sessionId, tag: isTagged ? tag : null } : undefined
}

/** The key of whoever trains on this run. */
export function createRunKey(secret: string, run: string): string {
  return `lr-${encodeSessionId(run)}-${computeRunProof(secret, run)}`
}

/** @returns which run's key this is by any of the secrets; undefined if it is none */
export function verifyRunKey(secrets: readonly string[], key: string): string | undefined {
  const [, encoded = '', proof = ''] = RUN_KEY.exec(key) ?? []
  const run = decodeSessionId(encoded)
  if (run === undefined) return undefined
  const made = secrets.filter((secret) =>
    equal(Buffer.from(proof), Buffer.from(computeRunProof(secret, run))),
  )
  return made.length > 0 ? run : undefined
}

function computeRunProof(secret: string, run: string): string {
  return createHmac('sha256', secret).update(`llm-proxy run key 1\n${run}`).digest('base64url')
}

/** The session that a key names, as it stands there, and what is to prove it; undefined for another key. */
function parseAgentKey(key: string): { encodedId: string; proof: string } | undefined {
  const [, encodedId, proof] = AGENT_KEY.exec(key) ?? []
  return encodedId === undefined || proof === undefined ? undefined : { encodedId, proof }
}

/** The label keeps a proof from being one for anything else that the secret may come to sign. */
function computeProof(secret: string, sessionId: string): string {
  return createHmac('sha256', secret).update(`llm-proxy agent key 1\n${sessionId}`).digest('base64url')
}

function computeTaggedProof(secret: string, sessionId: string, tag: string): string {
  const bytes = Buffer.from(tag, 'base64url')
  const hmac = createHmac('sha256', secret).update('llm-proxy agent key 2\n').update(bytes).update(sessionId)
  return Buffer.concat([bytes, hmac.digest().subarray(0, 32 - TAG_BYTES)]).toString('base64url')
}

function tagIn(proof: string): string {
  return Buffer.from(proof, 'base64url').subarray(0, TAG_BYTES).toString('base64url')
}

function equal(a: Buffer, b: Buffer): boolean {
  return a.length === b.length && timingSafeEqual(a, b)
}
