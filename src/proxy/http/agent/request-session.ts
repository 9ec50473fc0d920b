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
 * The three forms of an agent's base URL; `POST /v1/chat/completions/{session_id}` is a fourth way to identify a
 * session.
 */
export const BASE_PATHS = ['/:sessionId/v1', '/sessions/:sessionId/v1', '/v1'] as const

interface RouteParams {
  sessionId?: string
  responseId?: string
}

const NO_SESSION =
  'This request names no session. Use http://<proxy>/{session_id}/v1 as base URL, or create the session with ' +
  'POST /sessions and send its key as bearer token or x-api-key.'

/**
 * Returns the session of a request, which its path or its key identifies.
 * @throws ProxyError `unauthorized` or `invalid_request` without a session, `invalid_request` for an invalid id
 */
export async function getSessionId(request: FastifyRequest, sessions: Sessions): Promise<string> {
  const sessionId = await getNamedSession(request, sessions)
  if (sessionId !== undefined) return sessionId
  throw new ProxyError(request.caller.is === 'anyone' ? 'unauthorized' : 'invalid_request', NO_SESSION)
}

/**
 * Returns the session of a request as {@link getSessionId} does. On an open proxy, a request without a session gets
 * one that is created for it alone and is returned in `x-session-id`. A common session would mix up the rollouts that
 * are configured incorrectly. A request that continues an earlier one without a session belongs to that one's session.
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
  const sessionId = (await findUnnamedSession(continuedTurn, sessions)) ?? (await createBareSession(sessions))
  void reply.header('x-session-id', sessionId)
  return sessionId
}

async function createBareSession(sessions: Sessions): Promise<string> {
  const metadata = { made_for: 'a call that named no session' }
  const { session } = await sessions.create({ sessionId: newBareSessionId(), metadata })
  return session.sessionId
}

/**
 * Returns the session of a turn if it was created for a request without one. Named sessions are not found this way:
 * only clients that know the name may read them.
 */
async function findUnnamedSession(
  turnId: string | undefined,
  sessions: Sessions,
): Promise<string | undefined> {
  const sessionId = turnId && findBareSession(turnId)
  return sessionId && (await isSession(sessionId, sessions)) ? sessionId : undefined
}

/** Rejects the key of an ended session before the request reads or writes any of the session. */
export function rejectEndedKeys(sessions: Sessions): preHandlerHookHandler {
  return ({ caller }, _reply, done) => {
    if (caller.is !== 'agent') done()
    else sessions.rejectEndedKey(caller.sessionId, caller.keyTag).then(() => done(), done)
  }
}

/** A session's id; undefined: the request identifies none; a promise only if the store must be queried. */
type SessionLookup = string | undefined | Promise<string | undefined>

declare module 'fastify' {
  interface FastifyRequest {
    /** The session that the request identifies; null: not determined yet, or none. */
    namedSession: SessionLookup | null
  }
}

/**
 * Returns the session that a request identifies; determines it once.
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

/** Matches an API path, or the version before it, at the end of an id: a base URL contains neither. */
const API_PATH_END = /\/(?:v1|v1beta|chat|completions|messages|responses|models|count_tokens|tokenize)$/

/**
 * Rejects an id that ends like an API path. Clients append the path to their base URL: with one that already contains
 * it, such as `http://proxy/s/v1/messages`, they would record in a session with another name.
 */
function rejectApiPath(sessionId: string): string {
  const [end] = API_PATH_END.exec(sessionId) ?? []
  if (end === undefined) return sessionId
  const message = `The base URL is too long: '${sessionId}' ends in the API path '${end}'; use http://<proxy>/{session_id}/v1`
  throw new ProxyError('invalid_request', message, { param: 'session_id' })
}

/**
 * Returns the session that a key identifies. On an open proxy a session's key is its id, percent-encoded if a header
 * cannot contain it. Such a key never creates a session: SDKs send placeholder keys (`EMPTY`, `sk-none`), and all
 * rollouts that are configured incorrectly would share one session.
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

/** The maximum length of an idempotency key; longer ones are ignored. */
const MAX_KEY_CHARS = 255

/**
 * Returns the retry info that the client and other nodes declare. The OpenAI and Anthropic SDKs count attempts in this
 * header.
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
