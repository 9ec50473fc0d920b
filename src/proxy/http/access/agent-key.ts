/**
 * Creates and verifies the keys of agents and runs. An agent key contains its session id and an HMAC that proves it, so
 * the proxy stores no keys: a key stays valid after a restart, and any holder of the secret can compute it. The format
 * is part of the API (`docs/security.md`):
 *
 *     lp-{session_id}-{base64url(HMAC-SHA256(secret, "llm-proxy agent key 1\n" + session_id))}
 *
 * Such a key is valid for every session with this id, including one that is deleted and created again. A key for one
 * session only contains a tag, eight random bytes that are stored with the session, followed by the first 24 bytes of
 * the HMAC:
 *
 *     lp-{session_id}-{base64url(tag + HMAC-SHA256(secret, "llm-proxy agent key 2\n" + tag + session_id)[0..24])}
 *
 * A run key is for the trainer of a run, and is valid for all sessions of the run, `runs/{run}/{name}`:
 *
 *     lr-{run}-{base64url(HMAC-SHA256(secret, "llm-proxy run key 1\n" + run))}
 *
 * Keys travel in headers: characters of the id other than `A-Z a-z 0-9 . _ ~ : -` are percent-encoded.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { decodeSessionId, encodeSessionId } from '../../session/state/session-id.ts'

const PREFIX = 'lp-'
/**
 * Matches an agent key; the proof is 32 bytes in base64url without padding. `deploy/balancers` has the same pattern.
 */
const AGENT_KEY = /^lp-(.+)-([A-Za-z0-9_-]{43})$/

const TAG_BYTES = 8

const RUN_KEY = /^lr-(.+)-([A-Za-z0-9_-]{43})$/

/** The session that an agent key identifies. */
interface AgentKeyOwner {
  readonly sessionId: string
  /**
   * The tag of the only session for which the key is valid, in base64url; null: the key is valid for every session with
   * this id.
   */
  readonly tag: string | null
}

/** Returns a random tag for a new session. */
export function createKeyTag(): string {
  return randomBytes(TAG_BYTES).toString('base64url')
}

/** Creates an agent key. @param tag the session's tag, for a key that is valid for this session only */
export function createAgentKey(secret: string, sessionId: string, tag: string | null = null): string {
  const proof = tag === null ? computeProof(secret, sessionId) : computeTaggedProof(secret, sessionId, tag)
  return `${PREFIX}${encodeSessionId(sessionId)}-${proof}`
}

/** Verifies an agent key with each of the secrets. @returns undefined for an invalid key */
export function verifyAgentKey(secrets: readonly string[], key: string): AgentKeyOwner | undefined {
  const parts = parseAgentKey(key)
  const sessionId = parts && decodeSessionId(parts.encodedId)
  if (parts === undefined || sessionId === undefined) return undefined
  // Proofs are compared as text: decoding base64url ignores bits of the last character, so four texts would be equal.
  const proof = Buffer.from(parts.proof)
  // All secrets are compared, so that the duration does not reveal which one matched.
  const matches = (made: (secret: string) => string) =>
    secrets.filter((secret) => isEqual(proof, Buffer.from(made(secret)))).length > 0
  const tag = findKeyTag(parts.proof)
  const isPlain = matches((secret) => computeProof(secret, sessionId))
  const isTagged = matches((secret) => computeTaggedProof(secret, sessionId, tag))
  return isPlain || isTagged ? { sessionId, tag: isTagged ? tag : null } : undefined
}

/** Creates the key for the trainer of a run. */
export function createRunKey(secret: string, run: string): string {
  return `lr-${encodeSessionId(run)}-${computeRunProof(secret, run)}`
}

/** Verifies a run key with each of the secrets. @returns the run; undefined for an invalid key */
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

/** Computes the proof of a key without a tag. The label keeps it distinct from all other HMACs with the same secret. */
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
