import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyRequest } from 'fastify'
import { ProxyError } from '../../errors.ts'
import { decodeSessionId, parseSessionId } from '../../session/session-id.ts'
import type { Sessions } from '../../session/sessions.ts'
import { keysOf } from '../access/keyring.ts'

/** The three forms of an agent's base URL; `POST /v1/chat/completions/{session_id}` is the fourth way to name one. */
export const BASE_PATHS = ['/:sessionId/v1', '/sessions/:sessionId/v1', '/v1'] as const

export interface CallParams {
  sessionId?: string
}

const NO_SESSION =
  'This call names no session. Use http://<proxy>/{session_id}/v1 as base URL, or create the session with ' +
  'POST /sessions and send its key as bearer token or x-api-key.'

/**
 * The session that a call belongs to: the one its path names, or the one whose key it carries.
 * @throws ProxyError `unauthorized` or `invalid_request` without a session, `invalid_request` for an id that cannot be
 *   one
 */
export async function sessionOfCall(request: FastifyRequest, sessions: Sessions): Promise<string> {
  const { sessionId } = request.params as CallParams
  if (sessionId !== undefined) return parseSessionId(sessionId)
  const { caller, headers } = request
  if (caller.is === 'agent') return parseSessionId(caller.sessionId)
  if (caller.is === 'anyone') return sessionNamedByKey(headers, sessions)
  throw new ProxyError('invalid_request', NO_SESSION)
}

/**
 * On an open proxy a session's key is its id, percent-encoded where a header cannot hold it. Such a key never makes a session: SDKs send keys that mean nothing
 * (`EMPTY`, `sk-none`), and every rollout that is set up wrongly would land in the same one.
 */
async function sessionNamedByKey(headers: IncomingHttpHeaders, sessions: Sessions): Promise<string> {
  for (const key of keysOf(headers)) {
    const sessionId = decodeSessionId(key)
    if (sessionId !== undefined && (await isSession(sessionId, sessions))) return sessionId
  }
  throw new ProxyError('unauthorized', NO_SESSION)
}

async function isSession(key: string, sessions: Sessions): Promise<boolean> {
  try {
    await sessions.get(parseSessionId(key))
    return true
  } catch (error) {
    if (error instanceof ProxyError && error.status < 500) return false
    throw error
  }
}

/** How often the agent's SDK tried this call before (the OpenAI and Anthropic SDKs count it in this header). */
export function retryCountOf({ headers }: FastifyRequest): number {
  const count = Number(headers['x-stainless-retry-count'])
  return Number.isInteger(count) && count > 0 ? count : 0
}
