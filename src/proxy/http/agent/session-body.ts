import type { ServerResponse } from 'node:http'
import type {
  FastifyInstance,
  FastifyRequest,
  preHandlerAsyncHookHandler,
  preParsingHookHandler,
} from 'fastify'
import {
  type BodyContent,
  NO_MEMO,
  type PartMemo,
  RequestReader,
} from '../../../protocol/canonical/request-reader.ts'
import { detachBuffer } from '../../../protocol/json/detach-buffer.ts'
import type { SessionReference } from '../../session/state/live-sessions.ts'
import type { Sessions } from '../../session/state/sessions.ts'
import { readBody, takeAnyBodyAsBytes } from '../transport/json-body.ts'
import { runOnClose } from '../transport/on-close.ts'
import { TimeSlices } from '../transport/time-slices.ts'
import { getNamedSession } from './request-session.ts'

/** A body that was parsed with the cache of its session's earlier ones. */
interface SessionBody {
  readonly read: BodyContent
  /** The parse results of the parts of earlier bodies. */
  readonly memo: PartMemo
  /** The session, until the response is complete; undefined: the request names none. */
  readonly session: SessionReference | undefined
  /** Schedules each further CPU-heavy step. @returns undefined: it may run now; else a promise of when it may */
  waitForSlice(): Promise<void> | undefined
}

/** Chunks of longer bodies are left to garbage collection, because they are rare. */
const MAX_DETACHED = 4 * 1024 * 1024

const startImmediately = () => undefined
const NO_BODY: SessionBody = {
  read: { value: undefined, newNodes: 0 },
  memo: NO_MEMO,
  session: undefined,
  waitForSlice: startImmediately,
}

/** Requests with shorter bodies take negligible time. */
const LARGE_BYTES = 16 * 1024

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Whether bodies have canonical messages, which are sent to engines unchanged. */
    forwardsMessages?: boolean
  }
  interface FastifyRequest {
    /** The parsed body; null: the request has none. */
    sessionBody: SessionBody | null
    /** The chunks of the body from the socket, to be detached; null: none are. */
    bodyChunks: Buffer[] | null
  }
}

/** Returns the body of a request in its handler. */
export function getSessionBody({ sessionBody }: FastifyRequest): SessionBody {
  return sessionBody ?? NO_BODY
}

/**
 * Parses each body once its session is known. The session's cache is kept until the response is complete. The body's
 * memory is charged to its caller, before and after parsing.
 */
export function readBodiesOfSessions(app: FastifyInstance, sessions: Sessions): void {
  takeAnyBodyAsBytes(app)
  app.decorateRequest('sessionBody', null)
  app.decorateRequest('bodyChunks', null)
  app.addHook('preParsing', keepChunks)
  app.addHook('preHandler', createBodyReader(sessions))
}

const keepChunks: preParsingHookHandler = (request, _reply, payload, done) => {
  const { headers, routeOptions } = request
  // A body that exceeds the limit is not kept.
  if (Number(headers['content-length']) <= Math.min(MAX_DETACHED, routeOptions.bodyLimit ?? 0)) {
    const chunks: Buffer[] = []
    request.bodyChunks = chunks
    payload.on('data', (chunk: Buffer) => chunks.push(chunk))
  }
  done(null, payload)
}

function createBodyReader(sessions: Sessions): preHandlerAsyncHookHandler {
  const slices = new TimeSlices()
  const heavy = new HeavyRequestLimiter()
  return async (request, { raw }) => {
    const { body, charge } = request
    if (!Buffer.isBuffer(body)) return
    const isLarge = body.length >= LARGE_BYTES
    charge.setMemory(body.length)
    const { account } = charge
    const slice = isLarge ? slices.waitForFirst(account) : undefined
    if (slice) {
      detachChunks(request)
      await slice
    }
    const named = getNamedSession(request, sessions)
    const sessionId = named instanceof Promise ? await named : named
    const session = sessionId === undefined ? undefined : acquireSession(sessionId, sessions, raw)
    const requests = session?.memory.requests ?? new RequestReader()
    if (isLarge) for (let wait = heavy.wait(account); wait; wait = heavy.wait(account)) await wait
    const listJson = request.routeOptions.config.forwardsMessages === true
    const read = readBody(request, body, requests, { listJson })
    heavy.addHeavy(account, read.newNodes, raw)
    request.sessionBody = {
      read,
      memo: requests,
      session,
      waitForSlice: isLarge ? () => slices.waitForNext(account) : startImmediately,
    }
    // The body has been parsed, and the request may take minutes.
    request.body = undefined
    detachBuffer(body)
    detachChunks(request)
    charge.setMemory(request.bodyMemoryBytes)
  }
}

/** Detaches the chunks, of which the body is a copy. */
function detachChunks(request: FastifyRequest): void {
  for (const chunk of request.bodyChunks ?? []) detachBuffer(chunk)
  request.bodyChunks = null
}

/** Acquires a session until a response is complete. */
export function acquireSession(
  sessionId: string,
  sessions: Sessions,
  response: ServerResponse,
): SessionReference {
  const session = sessions.acquire(sessionId)
  runOnClose(response, () => session[Symbol.dispose]())
  return session
}

/**
 * The number of new nodes of a heavy request, which brings thousands of new messages. A caller begins one heavy request
 * at a time: it blocks the event loop, and then the store's writer, for tenths of a second, so that requests of others
 * run between two of them, not after twenty. Normal agents are not affected, because repeated messages do not count.
 */
const HEAVY_NODES = 10_000

/**
 * The time after which a heavy request has been read and recorded and waits for its engine, so that the next may begin.
 */
const HEAVY_MS = 1_000

/** Lets each caller begin one heavy request at a time. */
class HeavyRequestLimiter {
  /** The callers whose heavy request has begun, with the functions that resume their waiting requests. */
  readonly #waiting = new Map<string, (() => void)[]>()

  /**
   * Returns when a body may be read. It must be called right before reading, and again after the wait. @returns
   * undefined: it may be read now
   */
  wait(caller: string): Promise<void> | undefined {
    const waiting = this.#waiting.get(caller)
    return waiting && new Promise((resolve) => waiting.push(resolve))
  }

  /**
   * Marks a request as heavy if its body brought many new nodes.
   * @param newNodes the number of new nodes
   */
  addHeavy(caller: string, newNodes: number, response: ServerResponse): void {
    if (newNodes < HEAVY_NODES || this.#waiting.has(caller)) return
    const waiting: (() => void)[] = []
    this.#waiting.set(caller, waiting)
    const end = () => {
      clearTimeout(timer)
      if (this.#waiting.get(caller) !== waiting) return
      this.#waiting.delete(caller)
      for (const resume of waiting) resume()
    }
    const timer = setTimeout(end, HEAVY_MS)
    runOnClose(response, end)
  }
}
