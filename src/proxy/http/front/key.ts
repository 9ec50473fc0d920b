import type { IncomingHttpHeaders } from 'node:http'
import { decodeSessionId } from '../../session/state/session-id.ts'
import { partsOfAgentKey } from '../access/agent-key.ts'
import { keysOf } from '../access/keyring.ts'

/** The session that an agent's key names, unproved: its node will ask for the proof. On an open proxy the key is the id. */
export function sessionOfKey(headers: IncomingHttpHeaders): string | undefined {
  for (const key of keysOf(headers)) {
    const sessionId = decodeSessionId(partsOfAgentKey(key)?.encodedId ?? key)
    if (sessionId !== undefined) return sessionId
  }
  return undefined
}
