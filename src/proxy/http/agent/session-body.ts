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
import { keepAnyBodyAsBytes, readBody } from '../transport/json-body.ts'
import { runOnClose } from '../transport/on-close.ts'
import { TimeSliceScheduler } from '../transport/time-slices.ts'
import { getNamedSession } from './request-session.ts'

/** The body of an agent's request, parsed with the cache of the session's earlier bodies. */
interface SessionBody {
  readonly read: BodyContent
  /** The cache of the parsed parts of earlier bodies. */
  readonly memo: PartMemo
  /** The session, acquired until the response is complete; undefined: the request identifies none. */
  readonly session: SessionReference | undefined
  /**
   * Schedules a further CPU-heavy step.
   * @returns undefined if it may run now, else a promise that resolves when it may
   */
  waitForSlice(): Promise<void> | undefined
}

/** The maximum length of a body whose chunks are detached. Longer bodies are rare and left to garbage collection. */
const MAX_DETACHED = 4 * 1024 * 1024

const startImmediately = () => undefined
const NO_BODY: SessionBody = {
  read: { value: undefined, newNodes: 0 },
  memo: NO_MEMO,
  session: undefined,
  waitForSlice: startImmediately,
}

/** The minimum length of a body that is scheduled; parsing a shorter one takes negligible time. */
const LARGE_BYTES = 16 * 1024

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Whether the messages of the body are canonical, so that their bytes can be sent to engines unchanged. */
    forwardsMessages?: boolean
  }
  interface FastifyRequest {
    /** The parsed body; null: not parsed, or the request has none. */
    sessionBody: SessionBody | null
    /** The chunks in which the body was received, to be detached; null: they are not detached. */
    bodyChunks: Buffer[] | null
  }
}

/** Returns the parsed body of a request. It is available in handlers. */
export function getSessionBody({ sessionBody }: FastifyRequest): SessionBody {
  return sessionBody ?? NO_BODY
}

/**
 * Makes the agent routes parse each body with the cache of its session, which is acquired until the response is
 * complete. The memory of the body is charged to its caller, before and after parsing.
 */
export function readBodiesOfSessions(app: FastifyInstance, sessions: Sessions): void {
  keepAnyBodyAsBytes(app)
  app.decorateRequest('sessionBody', null)
  app.decorateRequest('bodyChunks', null)
  app.addHook('preParsing', collectChunks)
  app.addHook('preHandler', createBodyReader(sessions))
}

const collectChunks: preParsingHookHandler = (request, _reply, payload, done) => {
  const { headers, routeOptions } = request
  // The chunks of a body that is too long, or whose length is unknown, are left to garbage collection.
  if (Number(headers['content-length']) <= Math.min(MAX_DETACHED, routeOptions.bodyLimit ?? 0)) {
    const chunks: Buffer[] = []
    request.bodyChunks = chunks
    payload.on('data', (chunk: Buffer) => chunks.push(chunk))
  }
  done(null, payload)
}

function createBodyReader(sessions: Sessions): preHandlerAsyncHookHandler {
  const slices = new TimeSliceScheduler()
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
    // The bytes are no longer needed, and the request may take minutes.
    request.body = undefined
    detachBuffer(body)
    detachChunks(request)
    charge.setMemory(request.bodyMemoryBytes)
  }
}

/** Frees the memory of the chunks immediately; the body is a copy of them. */
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
 * The number of new JSON nodes from which a request is heavy, which corresponds to thousands of new messages. It blocks
 * the event loop, and then the writer thread of the store, for tenths of a second. Therefore a caller may begin only
 * one at a time, so that the requests of other callers run between them. Normal agents are not affected, because
 * messages that repeat earlier ones do not count.
 */
const HEAVY_NODES = 10_000

/**
 * The time after which the next heavy request may begin: by then the request has been read and recorded, and waits for
 * its engine.
 */
const HEAVY_MS = 1_000

/** A limiter that lets each caller begin one heavy request at a time. */
class HeavyRequestLimiter {
  /** The callers whose heavy request has begun, with the functions that resume their waiting requests. */
  readonly #waiting = new Map<string, (() => void)[]>()

  /**
   * Waits until the latest heavy request of a caller has ended, or began {@link HEAVY_MS} ago. It must be called again
   * after the wait, immediately before the body is read, because another waiting request may have begun.
   * @returns undefined if the body may be read now
   */
  wait(caller: string): Promise<void> | undefined {
    const waiting = this.#waiting.get(caller)
    return waiting && new Promise((resolve) => waiting.push(resolve))
  }

  /**
   * Counts a request as heavy if its body contains many new nodes.
   * @param newNodes the number of JSON nodes that are not in the session's cache
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
