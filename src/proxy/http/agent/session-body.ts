import type { ServerResponse } from 'node:http'
import type {
  FastifyInstance,
  FastifyRequest,
  preHandlerAsyncHookHandler,
  preParsingHookHandler,
} from 'fastify'
import {
  NO_MEMO,
  type PartMemo,
  type RequestContent,
  RequestReader,
} from '../../../protocol/canonical/request-reader.ts'
import { detachBuffer } from '../../../protocol/json/detach-buffer.ts'
import type { Sessions } from '../../session/state/sessions.ts'
import { readBody, takeAnyBodyAsBytes } from '../transport/json-body.ts'
import { onClose } from '../transport/on-close.ts'
import { TimeSlices } from '../transport/time-slices.ts'
import { HeavyCalls } from './heavy-calls.ts'
import { namedSession } from './session-of-call.ts'

/** A body, read with what is remembered of its session's earlier ones. */
interface SessionBody {
  readonly read: RequestContent
  /** What was made of the parts of those. */
  readonly repeats: PartMemo
  /** Before each further step of the call that takes time. @returns undefined: now; else when it may be done */
  nextStep(): Promise<void> | undefined
}

/** Pieces of a longer body are left to the collector: they are rare. */
const MAX_GIVEN_BACK = 4 * 1024 * 1024

const AT_ONCE = () => undefined
const NO_BODY: SessionBody = {
  read: { value: undefined, newNodes: 0 },
  repeats: NO_MEMO,
  nextStep: AT_ONCE,
}

/** Calls with shorter ones take no time. */
const LARGE_BYTES = 16 * 1024

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Bodies have canonical messages: engines are sent them as they came. */
    sendsMessagesOn?: boolean
  }
  interface FastifyRequest {
    /** null: it has no body. */
    sessionBody: SessionBody | null
    /** What came of the body from the socket, to be given back; null: nothing is. */
    bodyPieces: Buffer[] | null
  }
}

/** Of a call whose handler runs. */
export function sessionBodyOf({ sessionBody }: FastifyRequest): SessionBody {
  return sessionBody ?? NO_BODY
}

/**
 * Reads each body once its session is known. What is remembered of the session is held until the call is answered; what
 * the body takes is charged to its caller, before it is read and after.
 */
export function readBodiesOfSessions(app: FastifyInstance, sessions: Sessions): void {
  takeAnyBodyAsBytes(app)
  app.decorateRequest('sessionBody', null)
  app.decorateRequest('bodyPieces', null)
  app.addHook('preParsing', keepPieces)
  app.addHook('preHandler', readWith(sessions))
}

const keepPieces: preParsingHookHandler = (request, _reply, payload, done) => {
  const { headers, routeOptions } = request
  // Of one that is refused for its length nobody keeps anything.
  if (Number(headers['content-length']) <= Math.min(MAX_GIVEN_BACK, routeOptions.bodyLimit ?? 0)) {
    const pieces: Buffer[] = []
    request.bodyPieces = pieces
    payload.on('data', (piece: Buffer) => pieces.push(piece))
  }
  done(null, payload)
}

function readWith(sessions: Sessions): preHandlerAsyncHookHandler {
  const slices = new TimeSlices()
  const heavy = new HeavyCalls()
  return async (request, { raw }) => {
    const { body, charge } = request
    if (!Buffer.isBuffer(body)) return
    const isLarge = body.length >= LARGE_BYTES
    charge.setMemory(body.length)
    const { account } = charge
    const turn = isLarge ? slices.first(account) : undefined
    if (turn) {
      giveBackPieces(request)
      await turn
    }
    const sessionId = await namedSession(request, sessions)
    const requests = sessionId === undefined ? new RequestReader() : requestsOf(sessionId, sessions, raw)
    if (isLarge) for (let wait = heavy.turnOf(account); wait; wait = heavy.turnOf(account)) await wait
    const listJson = request.routeOptions.config.sendsMessagesOn === true
    const read = readBody(request, body, requests, { listJson })
    heavy.note(account, read.newNodes, raw)
    request.sessionBody = {
      read,
      repeats: requests,
      nextStep: isLarge ? () => slices.further(account) : AT_ONCE,
    }
    // All of it has been read, and the call may take minutes.
    request.body = undefined
    detachBuffer(body)
    giveBackPieces(request)
    charge.setMemory(request.bodyMemoryBytes)
  }
}

/** The body is a copy of them. */
function giveBackPieces(request: FastifyRequest): void {
  for (const piece of request.bodyPieces ?? []) detachBuffer(piece)
  request.bodyPieces = null
}

function requestsOf(sessionId: string, sessions: Sessions, response: ServerResponse): RequestReader {
  const used = sessions.use(sessionId)
  onClose(response, () => used[Symbol.dispose]())
  return used.memory.requests
}
