import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyReply, FastifyRequest, preHandlerAsyncHookHandler } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { parseTurnId } from '../../dialects/responses/response.ts'
import {
  bareSessionOf,
  decodeSessionId,
  newBareSessionId,
  parseSessionId,
} from '../../session/state/session-id.ts'
import type { Sessions } from '../../session/state/sessions.ts'
import { getKeys } from '../access/keyring.ts'

/** The three forms of an agent's base URL; `POST /v1/chat/completions/{session_id}` is the fourth way to name one. */
export const BASE_PATHS = ['/:sessionId/v1', '/sessions/:sessionId/v1', '/v1'] as const

interface CallParams {
  sessionId?: string
  responseId?: string
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
  const sessionId = await namedSession(request, sessions)
  if (sessionId !== undefined) return sessionId
  throw new ProxyError(request.caller.is === 'anyone' ? 'unauthorized' : 'invalid_request', NO_SESSION)
}

/**
 * As {@link sessionOfCall}; but whoever tries an open proxy with a bare call gets an answer, in a session that is made
 * for this one call and that `x-session-id` names. Not one for all such calls: rollouts that are set up wrongly would
 * be mixed up in it. A call that continues an earlier bare one belongs to that one's session.
 * @param continuedTurn id of the turn that the call continues, by its own words
 */
export async function sessionForCall(
  request: FastifyRequest,
  reply: FastifyReply,
  sessions: Sessions,
  continuedTurn?: string,
): Promise<string> {
  if (request.caller.is !== 'anyone' || sessions.strict) return sessionOfCall(request, sessions)
  const named = await namedSession(request, sessions)
  if (named !== undefined) return named
  const sessionId = (await bareSession(continuedTurn, sessions)) ?? (await createBareSession(sessions))
  void reply.header('x-session-id', sessionId)
  return sessionId
}

async function createBareSession(sessions: Sessions): Promise<string> {
  const metadata = { made_for: 'a call that named no session' }
  const { session } = await sessions.create({ sessionId: newBareSessionId(), metadata })
  return session.sessionId
}

/** Only sessions that were made for a bare call are found by a turn: a session with a name is read by who knows that. */
async function bareSession(turnId: string | undefined, sessions: Sessions): Promise<string | undefined> {
  const sessionId = turnId && bareSessionOf(turnId)
  return sessionId && (await isSession(sessionId, sessions)) ? sessionId : undefined
}

/** Before anything of the session is read or written for the holder of a key that has ended with it. */
export function refuseEndedKeys(sessions: Sessions): preHandlerAsyncHookHandler {
  return async ({ caller }) => {
    if (caller.is === 'agent') await sessions.refuseEndedKey(caller.sessionId, caller.keyTag)
  }
}

/** @returns undefined for a call of nobody in particular */
export async function namedSession(request: FastifyRequest, sessions: Sessions): Promise<string | undefined> {
  const { sessionId, responseId } = request.params as CallParams
  if (sessionId !== undefined) return rejectApiPath(parseSessionId(sessionId))
  const { caller, headers } = request
  if (caller.is === 'agent') return parseSessionId(caller.sessionId)
  if (caller.is !== 'anyone') return undefined
  return (await sessionNamedByKey(headers, sessions)) ?? bareSession(parseTurnId(responseId ?? ''), sessions)
}

/** The last segment of an API path, or of the version before it: a base URL has neither. */
const API_PATH_END = /\/(?:v1|v1beta|chat|completions|messages|responses|models|count_tokens|tokenize)$/

/**
 * Rejects an id that ends like an API path. Clients append the path to their base URL: with one that has it already, such
 * as `http://proxy/s/v1/messages`, they would record in a session of another name.
 */
function rejectApiPath(sessionId: string): string {
  const [end] = API_PATH_END.exec(sessionId) ?? []
  if (end === undefined) return sessionId
  const message = `The base URL is too long: '${sessionId}' ends in the API path '${end}'; use http://<proxy>/{session_id}/v1`
  throw new ProxyError('invalid_request', message, { param: 'session_id' })
}

/**
 * On an open proxy a session's key is its id, percent-encoded where a header cannot hold it. Such a key never makes a
 * session of its name: SDKs send keys that mean nothing (`EMPTY`, `sk-none`), and every rollout that is set up wrongly
 * would land in the same one.
 */
async function sessionNamedByKey(
  headers: IncomingHttpHeaders,
  sessions: Sessions,
): Promise<string | undefined> {
  for (const key of getKeys(headers)) {
    const sessionId = decodeSessionId(key)
    if (sessionId !== undefined && (await isSession(sessionId, sessions))) return sessionId
  }
  return undefined
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

/** Longer ones are no key that a client made. */
const MAX_KEY_CHARS = 255

/** What the agent's client says of its tries of this call. The OpenAI and Anthropic SDKs count them in this header. */
export function triesOf({ headers }: FastifyRequest) {
  const header = headers['x-stainless-retry-count']
  const count = Number(header)
  const { 'idempotency-key': key } = headers
  const isKey = typeof key === 'string' && key !== '' && key.length <= MAX_KEY_CHARS
  return {
    retryCount: Number.isInteger(count) && count > 0 ? count : 0,
    tellsTries: header !== undefined,
    idempotencyKey: isKey ? key : undefined,
  }
}
