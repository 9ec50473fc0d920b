import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyReply, FastifyRequest, preHandlerHookHandler } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { parseTurnId } from '../../dialects/responses/response.ts'
import type { RetryInfo } from '../../session/state/live-turn.ts'
import {
  decodeSessionId,
  findBareSession,
  newBareSessionId,
  parseSessionId,
} from '../../session/state/session-id.ts'
import type { Sessions } from '../../session/state/sessions.ts'
import { getKeys } from '../access/keyring.ts'

/**
 * The three forms of an agent's base URL. A session can also be identified by `POST /v1/chat/completions/{session_id}`.
 */
export const BASE_PATHS = ['/:sessionId/v1', '/sessions/:sessionId/v1', '/v1'] as const

/** The path parameters that may identify a session. */
interface RouteParams {
  sessionId?: string
  responseId?: string
}

const NO_SESSION =
  'This request names no session. Use http://<proxy>/{session_id}/v1 as base URL, or create the session with ' +
  'POST /sessions and send its key as bearer token or x-api-key.'

/**
 * Returns the id of the session that the path or the key of a request identifies.
 * @throws ProxyError `unauthorized` or `invalid_request` if they identify none, `invalid_request` for an invalid id
 */
export async function getSessionId(request: FastifyRequest, sessions: Sessions): Promise<string> {
  const sessionId = await getNamedSession(request, sessions)
  if (sessionId !== undefined) return sessionId
  throw new ProxyError(request.caller.is === 'anyone' ? 'unauthorized' : 'invalid_request', NO_SESSION)
}

/**
 * Returns the id of a request's session as {@link getSessionId} does. On an open proxy, a request that identifies no
 * session receives a new one, whose id is sent in `x-session-id`: in a common session, all agents without a session id
 * would be mixed up. If the request continues a turn of such a session, it belongs to that session.
 * @param continuedTurn id of the turn that the request continues, according to its body
 */
export async function getOrCreateSessionId(
  request: FastifyRequest,
  reply: FastifyReply,
  sessions: Sessions,
  continuedTurn?: string,
): Promise<string> {
  if (request.caller.is !== 'anyone' || sessions.strict) return getSessionId(request, sessions)
  const named = await getNamedSession(request, sessions)
  if (named !== undefined) return named
  const sessionId =
    (await findUnnamedSession(continuedTurn, sessions)) ?? (await createUnnamedSession(sessions))
  void reply.header('x-session-id', sessionId)
  return sessionId
}

async function createUnnamedSession(sessions: Sessions): Promise<string> {
  const metadata = { made_for: 'a call that named no session' }
  const { session } = await sessions.create({ sessionId: newBareSessionId(), metadata })
  return session.sessionId
}

/**
 * Returns the session of a turn, but only if it was created for a request that identified none. A session with a name
 * may only be read by clients that know the name.
 */
async function findUnnamedSession(
  turnId: string | undefined,
  sessions: Sessions,
): Promise<string | undefined> {
  const sessionId = turnId && findBareSession(turnId)
  return sessionId && (await isSession(sessionId, sessions)) ? sessionId : undefined
}

/** Returns a hook that rejects an agent key whose session was removed, before the handler reads or writes a session. */
export function rejectEndedKeys(sessions: Sessions): preHandlerHookHandler {
  return ({ caller }, _reply, done) => {
    if (caller.is !== 'agent') done()
    else sessions.rejectEndedKey(caller.sessionId, caller.keyTag).then(() => done(), done)
  }
}

/** The id of a request's session; undefined: the request identifies none; a promise if the store must be queried. */
type SessionLookup = string | undefined | Promise<string | undefined>

declare module 'fastify' {
  interface FastifyRequest {
    /** The result of {@link getNamedSession}; null: it was not called yet. */
    namedSession: SessionLookup | null
  }
}

/**
 * Returns the id of the session that a request identifies. It is determined once per request.
 * @throws ProxyError `invalid_request` for an invalid id
 */
export function getNamedSession(request: FastifyRequest, sessions: Sessions): SessionLookup {
  request.namedSession ??= findNamedSession(request, sessions)
  return request.namedSession
}

function findNamedSession(request: FastifyRequest, sessions: Sessions): SessionLookup {
  const { sessionId, responseId } = request.params as RouteParams
  if (sessionId !== undefined) return rejectApiPath(parseSessionId(sessionId))
  const { caller, headers } = request
  if (caller.is === 'agent') return parseSessionId(caller.sessionId)
  if (caller.is !== 'anyone') return undefined
  return findSessionOfKey(headers, sessions).then(
    (named) => named ?? findUnnamedSession(parseTurnId(responseId ?? ''), sessions),
  )
}

/** Matches an API path at the end of an id. A base URL does not contain one after the id. */
const API_PATH_END = /\/(?:v1|v1beta|chat|completions|messages|responses|models|count_tokens|tokenize)$/

/**
 * Rejects an id that ends in an API path. Clients append the path to their base URL; if that already contains it, as in
 * `http://proxy/s/v1/messages`, their turns would be recorded in another session.
 */
function rejectApiPath(sessionId: string): string {
  const [end] = API_PATH_END.exec(sessionId) ?? []
  if (end === undefined) return sessionId
  const message = `The base URL is too long: '${sessionId}' ends in the API path '${end}'; use http://<proxy>/{session_id}/v1`
  throw new ProxyError('invalid_request', message, { param: 'session_id' })
}

/**
 * Returns the session that a key identifies on an open proxy, where the key of a session is its id, percent-encoded
 * where a header requires it. Such a key never creates a session: SDKs send placeholder keys (`EMPTY`, `sk-none`), so
 * that all agents without a session id would share one session.
 */
async function findSessionOfKey(
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

/** The maximum length of an idempotency key; longer keys are ignored. */
const MAX_KEY_CHARS = 255

/**
 * Returns the retry info of a request: the retry count that the OpenAI and Anthropic SDKs send in a header, the
 * idempotency key, and the ids of the messages between nodes.
 */
export function readRetryInfo({ headers, forwarding }: FastifyRequest): RetryInfo {
  const header = headers['x-stainless-retry-count']
  const count = Number(header)
  const { 'idempotency-key': key } = headers
  const isKey = typeof key === 'string' && key !== '' && key.length <= MAX_KEY_CHARS
  return {
    retryCount: Number.isInteger(count) && count > 0 ? count : 0,
    sendsRetryCount: header !== undefined,
    idempotencyKey: isKey ? key : undefined,
    ...forwarding,
  }
}
