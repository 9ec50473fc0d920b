/**
 * Keys of agents. An agent's key names its session and proves it with an HMAC, so the proxy stores nothing about it:
 * the key is the same after a restart, and any holder of the secret can compute it. The form is part of the API
 * (`docs/security.md`):
 *
 *     lp-{session_id}-{base64url(HMAC-SHA256(secret, "llm-proxy agent key 1\n" + session_id))}
 *
 * Such a key is valid for every session of its name, including a session that is created again. A key that is valid
 * only for one session contains a tag, eight random bytes that are stored with the session, before as much of the HMAC
 * as fits:
 *
 *     lp-{session_id}-{base64url(tag + HMAC-SHA256(secret, "llm-proxy agent key 2\n" + tag + session_id)[0..24])}
 *
 * The key of a run is for the trainer of this run, and names all its sessions, `runs/{run}/{name}`:
 *
 *     lr-{run}-{base64url(HMAC-SHA256(secret, "llm-proxy run key 1\n" + run))}
 *
 * Keys travel in headers: characters of the id other than `A-Z a-z 0-9 . _ ~ : -` are percent-encoded.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { decodeSessionId, encodeSessionId } from '../../session/state/session-id.ts'

const PREFIX = 'lp-'
/** A proof is 32 bytes in base64url, without padding. Load balancers use the same pattern (`deploy/balancers`). */
const AGENT_KEY = /^lp-(.+)-([A-Za-z0-9_-]{43})$/

const TAG_BYTES = 8

const RUN_KEY = /^lr-(.+)-([A-Za-z0-9_-]{43})$/

/** The session that a key names. */
interface AgentKeyOwner {
  readonly sessionId: string
  /**
   * The tag of the only session for which the key is valid, in base64url; null: it is valid for every session of this
   * name.
   */
  readonly tag: string | null
}

/** Returns a random tag for a new session. */
export function createKeyTag(): string {
  return randomBytes(TAG_BYTES).toString('base64url')
}

/** @param tag the session's tag, for a key that ends with the session */
export function createAgentKey(secret: string, sessionId: string, tag: string | null = null): string {
  const proof = tag === null ? computeProof(secret, sessionId) : computeTaggedProof(secret, sessionId, tag)
  return `${PREFIX}${encodeSessionId(sessionId)}-${proof}`
}

/** @returns the session of a key that is valid by any of the secrets; undefined for an invalid key */
export function verifyAgentKey(secrets: readonly string[], key: string): AgentKeyOwner | undefined {
  const parts = parseAgentKey(key)
  const sessionId = parts && decodeSessionId(parts.encodedId)
  if (parts === undefined || sessionId === undefined) return undefined
  // Compared as text: decoding ignores bits of the last character of base64url, so four keys would be equal.
  const proof = Buffer.from(parts.proof)
  // All secrets are compared, so that the duration does not reveal which one matched.
  const matches = (made: (secret: string) => string) =>
    secrets.filter((secret) => isEqual(proof, Buffer.from(made(secret)))).length > 0
  const tag = findKeyTag(parts.proof)
  const isPlain = matches((secret) => computeProof(secret, sessionId))
  const isTagged = matches((secret) => computeTaggedProof(secret, sessionId, tag))
  return isPlain || isTagged ? { sessionId, tag: isTagged ? tag : null } : undefined
}

/** Returns the key for the trainer of a run. */
export function createRunKey(secret: string, run: string): string {
  return `lr-${encodeSessionId(run)}-${computeRunProof(secret, run)}`
}

/** @returns the run of a key that is valid by any of the secrets; undefined for an invalid key */
export function verifyRunKey(secrets: readonly string[], key: string): string | undefined {
  const [, encoded = '', proof = ''] = RUN_KEY.exec(key) ?? []
  const run = decodeSessionId(encoded)
  if (run === undefined) return undefined
  const made = secrets.filter((secret) =>
    isEqual(Buffer.from(proof), Buffer.from(computeRunProof(secret, run))),
  )
  return made.length > 0 ? run : undefined
}

function computeRunProof(secret: string, run: string): string {
  return createHmac('sha256', secret).update(`llm-proxy run key 1\n${run}`).digest('base64url')
}

/** Returns the session id of a key, still encoded, and the proof; undefined for a key of another form. */
function parseAgentKey(key: string): { encodedId: string; proof: string } | undefined {
  const [, encodedId, proof] = AGENT_KEY.exec(key) ?? []
  return encodedId === undefined || proof === undefined ? undefined : { encodedId, proof }
}

/** The label prevents that a proof is valid for anything else that is signed with the secret. */
function computeProof(secret: string, sessionId: string): string {
  return createHmac('sha256', secret).update(`llm-proxy agent key 1\n${sessionId}`).digest('base64url')
}

function computeTaggedProof(secret: string, sessionId: string, tag: string): string {
  const bytes = Buffer.from(tag, 'base64url')
  const hmac = createHmac('sha256', secret).update('llm-proxy agent key 2\n').update(bytes).update(sessionId)
  return Buffer.concat([bytes, hmac.digest().subarray(0, 32 - TAG_BYTES)]).toString('base64url')
}

function findKeyTag(proof: string): string {
  return Buffer.from(proof, 'base64url').subarray(0, TAG_BYTES).toString('base64url')
}

function isEqual(a: Buffer, b: Buffer): boolean {
  return a.length === b.length && timingSafeEqual(a, b)
}
