/**
 * Keys of agents. An agent's key names its session and proves it with an HMAC, so that nothing about it is kept: it is
 * the same after a restart, and whoever has the secret can make it. The form is part of the API (`docs/security.md`):
 *
 *     lp-{session_id}-{base64url(HMAC-SHA256(secret, "llm-proxy agent key 1\n" + session_id))}
 *
 * Keys travel in headers: where the id is shown, what is not of `A-Z a-z 0-9 . _ ~ : -` is percent-encoded.
 */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { decodeSessionId, encodeSessionId } from '../../session/session-id.ts'

const PREFIX = 'lp-'
/** A proof is 32 bytes in base64url, without padding. Load balancers go by the same pattern (`deploy/balancers`). */
const AGENT_KEY = /^lp-(.+)-([A-Za-z0-9_-]{43})$/

export function makeAgentKey(secret: string, sessionId: string): string {
  return `${PREFIX}${encodeSessionId(sessionId)}-${proofOf(secret, sessionId)}`
}

/** @returns the session whose key this is by any of the secrets; undefined if it is none */
export function sessionOfAgentKey(secrets: readonly string[], key: string): string | undefined {
  const parts = partsOfAgentKey(key)
  const sessionId = parts && decodeSessionId(parts.encodedId)
  if (parts === undefined || sessionId === undefined) return undefined
  // As text: the last character of base64url has bits that decoding ignores, and four keys would be one.
  const proof = Buffer.from(parts.proof)
  // No early end: how long it takes must not tell which secret it was.
  const matches = secrets.filter((secret) => equal(proof, Buffer.from(proofOf(secret, sessionId))))
  return matches.length > 0 ? sessionId : undefined
}

/** The session that a key names, as it stands there, and what is to prove it; undefined for another key. */
export function partsOfAgentKey(key: string): { encodedId: string; proof: string } | undefined {
  const [, encodedId, proof] = AGENT_KEY.exec(key) ?? []
  return encodedId === undefined || proof === undefined ? undefined : { encodedId, proof }
}

/** The label keeps a proof from being one for anything else that the secret may come to sign. */
function proofOf(secret: string, sessionId: string): string {
  return createHmac('sha256', secret).update(`llm-proxy agent key 1\n${sessionId}`).digest('base64url')
}

function equal(a: Buffer, b: Buffer): boolean {
  return a.length === b.length && timingSafeEqual(a, b)
}
