import type { ServerResponse } from 'node:http'
import type { FastifyInstance, FastifyRequest, preHandlerAsyncHookHandler } from 'fastify'
import { NO_REPEATS, type ReadRequest, type Repeats, RequestReader } from '../../canonical/request-reader.ts'
import type { Sessions } from '../../session/sessions.ts'
import { readBody, takeAnyBodyAsBytes } from '../json-body.ts'
import { whenClosed } from '../when-closed.ts'
import { namedSession } from './session-of-call.ts'

/** A body, read with what is remembered of its session's earlier ones. */
export interface SessionBody {
  readonly read: ReadRequest
  /** What was made of the parts of those. */
  readonly repeats: Repeats
}

const NO_BODY: SessionBody = { read: { value: undefined }, repeats: NO_REPEATS }

declare module 'fastify' {
  interface FastifyRequest {
    /** null: it has no body. */
    sessionBody: SessionBody | null
  }
}

/** Of a call whose handler runs. */
export function sessionBodyOf({ sessionBody }: FastifyRequest): SessionBody {
  return sessionBody ?? NO_BODY
}

/** Reads each body once its session is known. What is remembered of the session is held until the call is answered. */
export function readBodiesOfSessions(app: FastifyInstance, sessions: Sessions): void {
  takeAnyBodyAsBytes(app)
  app.decorateRequest('sessionBody', null)
  app.addHook('preHandler', readWith(sessions))
}

function readWith(sessions: Sessions): preHandlerAsyncHookHandler {
  return async (request, { raw }) => {
    const { body } = request
    if (!Buffer.isBuffer(body)) return
    const sessionId = await namedSession(request, sessions)
    const requests = sessionId === undefined ? new RequestReader() : requestsOf(sessionId, sessions, raw)
    request.sessionBody = { read: readBody(request, body, requests), repeats: requests }
    // All of it has been read, and the call may take minutes.
    request.body = undefined
    giveBack(body)
  }
}

/**
 * Frees the memory of a buffer that nobody will read again, where it has its own. The collector would find it too, but it
 * runs for buffers as soon as 64 MB of them have come, however few there are: for fifty bodies of long conversations.
 */
function giveBack({ buffer, length }: Buffer): void {
  if (buffer instanceof ArrayBuffer && buffer.byteLength === length) buffer.transfer(0)
}

function requestsOf(sessionId: string, sessions: Sessions, response: ServerResponse): RequestReader {
  const held = sessions.hold(sessionId)
  whenClosed(response, () => held[Symbol.dispose]())
  return held.memory.requests
}
