/** The proxy's state for one worker: the worker's requests, and its connection, if it has one. */
import type { Clock } from '../../base/clock.ts'
import { ProxyError } from '../../base/errors.ts'
import { logEvent } from '../../base/log-events.ts'
import type { Logger } from '../../base/logger.ts'
import { LruCache } from '../../base/lru-cache.ts'
import { assertTransition, type Transitions } from '../../base/transitions.ts'
import type { GenerationRequest } from '../../protocol/canonical/request.ts'
import { detachBuffer } from '../../protocol/json/detach-buffer.ts'
import type { Frame } from '../../protocol/worker/frames.ts'
import * as frames from '../../protocol/worker/frames.ts'
import {
  CAPABILITIES,
  type CompletionAck,
  type CompletionCancel,
  type CompletionResponseV1,
  type CompletionResponseV2,
  MAX_FRAME_BYTES,
  MAX_PENDING_PONGS,
  MISSED_HEARTBEATS,
  type Pong,
  PROMPT_FORGOTTEN,
  PROTOCOL_VERSION,
  type SessionEnd,
  type WorkerHelloAckV1,
  type WorkerHelloAckV2,
  type WorkerHelloV2,
  type WorkerStatus,
  type WorkerStatusRequest,
} from '../../protocol/worker/protocol.ts'
import { attachReportedPrompt, findBasePrompt } from '../../protocol/worker/reported-prompts.ts'
import { serializeRequest, withoutCapture } from '../../protocol/worker/request-frames.ts'
import type { EngineModel, UnavailableReason } from '../engines/port/engine-client.ts'
import { RelayRequest } from './relay-request.ts'
import type { RelaySocket } from './relay-socket.ts'
import { StatusRequests } from './status-requests.ts'

/** Time and size limits of the connections and requests of workers. */
export interface WorkerLimits {
  heartbeatMs: number
  /** How long the requests of a disconnected worker wait for it to reconnect. */
  graceMs: number
  /**
   * The maximum time without a frame or keepalive for a request. For a version-1 worker: the time limit of a request.
   */
  requestTimeoutMs: number
  /** The number of bytes of a response that a worker may send before the receiver of the response has consumed them. */
  windowBytes: number
  /** The maximum number of concurrent requests of a version-1 worker, which cannot declare one. */
  v1MaxConcurrency: number
}

/** The dependencies that all workers of a registry share. */
export interface WorkerContext {
  limits: WorkerLimits
  clock: Clock
  logger: Logger
}

/** The properties that a worker declares in its hello; a status may replace the capabilities. */
interface WorkerIdentity {
  workerId: string
  version: 1 | 2
  /** A number that increases with each start of the worker's process. Undefined for version 1. */
  epoch: number | undefined
  capabilities: readonly string[]
  maxConcurrency: number
}

/**
 * The state of a worker. `handshaking`: the proxy has accepted the hello and must send the ack. `draining`: the worker
 * completes its requests and receives no new ones. `disconnected`: its requests wait for it to reconnect. `closed`: it
 * was removed, and its requests have failed.
 */
type WorkerState = 'handshaking' | 'serving' | 'draining' | 'disconnected' | 'closed'

export const WORKER_TRANSITIONS: Transitions<WorkerState> = {
  handshaking: ['serving'],
  serving: ['draining', 'disconnected'],
  draining: ['serving', 'disconnected'],
  disconnected: ['serving', 'draining', 'closed'],
  closed: [],
}

/** The number of keepalives that a worker sends per request timeout, so that two of them may be late. */
const KEEPALIVES_PER_TIMEOUT = 3

/**
 * The maximum number of sessions of which a worker is notified at their end. Beyond it, the least recently active
 * session ends without a notification.
 */
const MAX_SESSIONS = 100_000

const NO_IDS =
  'its responses have no token ids: none of its turns can be trained on, and their token counts are estimated from the text'

/** Options for `RelaySocket.send`: all frames are text frames, also those passed as bytes in UTF-8. */
const AS_TEXT = { binary: false }

/** A request that was sent to the worker. */
interface WorkerRequest {
  handle: RelayRequest
  /** The request, which is sent again if the worker did not receive it, or needs the complete prompt. */
  request: GenerationRequest
  /** The socket on which the complete prompt was sent again; undefined: it was not. */
  fullRequestSocket: RelaySocket | undefined
  /** The number of changes of the weights when the response started. */
  weightChangesAtStart: number
}

/** A worker that has connected: its reported status, its connection, and its requests. */
export class ConnectedWorker {
  identity: WorkerIdentity
  readonly connectedSinceMs = Date.now()
  models: EngineModel[] = []
  /**
   * The weight version that the worker reported last. Undefined: it reported none, or none since the last status
   * request.
   */
  weightVersion: string | undefined
  /** The number of times that the weights of its engines changed, or may have been updated. */
  #weightChanges = 0
  /** The version that it reported last, which {@link weightVersion} may have discarded; null: none. */
  #lastVersion: string | null | undefined
  healthy = true
  /** The token ids of a fixed text for each engine, by which tokenizers are compared. */
  textIds: WorkerStatus['text_ids']
  /**
   * The reason why its healthy engines receive no new requests, such as sleep or a pause; undefined: they receive them.
   */
  unavailable: UnavailableReason | undefined
  /** The reason why turns of its engines may be degraded. */
  warning: string | undefined
  /** The number of queued and running requests of all its proxies, as the worker reports it. */
  load = 0
  /** The part of {@link load} that belongs to other proxies. */
  busyElsewhere = 0
  readonly #context: WorkerContext
  readonly #requests = new Map<string, WorkerRequest>()
  readonly #sessions = new LruCache<string, true>(MAX_SESSIONS, () => 1)
  readonly #statusRequests: StatusRequests
  #state: WorkerState = 'handshaking'
  /** The state of the worker while it is connected. A draining worker still drains after it has reconnected. */
  #connectedState: 'serving' | 'draining' = 'serving'
  #socket: RelaySocket | undefined
  /** The number of pongs that the current socket has not written yet; a separate object for each connection. */
  #pongs = { pending: 0 }

  constructor(identity: WorkerIdentity, context: WorkerContext) {
    this.identity = identity
    this.#context = context
    this.#statusRequests = new StatusRequests(context.clock)
  }

  get state(): WorkerState {
    return this.#state
  }

  get isConnected(): boolean {
    return this.#state === 'serving' || this.#state === 'draining'
  }

  /** The number of its requests that belong to this proxy. */
  get requestCount(): number {
    return this.#requests.size
  }

  /**
   * The maximum silence before its connection is closed. A version-1 worker may block its event loop while requests
   * wait, since it imports libraries or loads weights there, and it has no grace period in which to reconnect.
   * Therefore the time limit of requests applies while it has any.
   */
  get silenceLimitMs(): number {
    const { heartbeatMs, requestTimeoutMs } = this.#context.limits
    const limitMs = heartbeatMs * MISSED_HEARTBEATS
    return this.identity.version === 1 && this.requestCount > 0
      ? Math.max(limitMs, requestTimeoutMs)
      : limitMs
  }

  /** Whether its requests wait for it to reconnect after a disconnection. */
  get resumes(): boolean {
    return this.#can(CAPABILITIES.resume) && this.#context.limits.graceMs > 0
  }

  /**
   * The maximum time for which its connection may accept no data before it is closed. A large request on a slow link
   * may take as long as a request may be silent, after which the worker's requests have failed.
   */
  get stallLimitMs(): number {
    return Math.max(this.silenceLimitMs, this.#context.limits.requestTimeoutMs)
  }

  isOn(socket: RelaySocket): boolean {
    return this.#socket === socket
  }

  /** Attaches the connection of a version-1 worker, and acknowledges its hello. */
  connectV1(socket: RelaySocket): void {
    this.#connect(socket)
    const { workerId } = this.identity
    this.#send({
      type: 'worker_hello_ack',
      worker_id: workerId,
      status: 'connected',
    } satisfies WorkerHelloAckV1)
  }

  /**
   * Attaches the connection of a version-2 worker that is new or has reconnected. A request that both sides have
   * resumes after the last frame that the proxy received. A request that the worker does not have is sent again if the
   * proxy has received nothing of its response; otherwise it fails.
   */
  connectV2(socket: RelaySocket, hello: WorkerHelloV2): void {
    this.#connect(socket)
    this.identity = toWorkerIdentity(hello)
    this.#setModels(hello.models)
    this.#setWeightVersion(hello.weight_version)
    this.healthy = hello.healthy ?? true
    this.unavailable = hello.unavailable
    this.textIds = hello.text_ids
    const reported = new Set(hello.requests)
    const resumed = [...this.#requests].filter(([requestId]) => reported.has(requestId))
    this.#send(this.#ackV2(resumed))
    for (const [, { handle }] of resumed) handle.acknowledgeAgain()
    for (const [requestId, sent] of [...this.#requests]) {
      if (reported.has(requestId)) continue
      if (sent.handle.received === 0) this.#sendFullRequest(socket, requestId, sent)
      else sent.handle.fail(this.#createLostError('reconnected without this request', sent))
    }
  }

  /** Detaches the connection, if any; the requests wait for the next one. @returns the socket of the connection */
  disconnect(): RelaySocket | undefined {
    const socket = this.#socket
    if (!socket) return undefined
    this.#transition('disconnected')
    this.#socket = undefined
    this.weightVersion = undefined
    this.#statusRequests.giveUp()
    return socket
  }

  /**
   * Fails all requests of a worker that will not reconnect. Requests of which the agent has received nothing fail over
   * to another worker.
   */
  lose(reason: string): void {
    this.#transition('closed')
    for (const sent of [...this.#requests.values()]) sent.handle.fail(this.#createLostError(reason, sent))
  }

  /**
   * Sends a request.
   * @param requestId the request's id on the wire; different for each attempt
   * @returns the handle that receives the response
   * @throws ProxyError `unsupported` for images that the worker does not support; `body_too_large` for a request that
   *   exceeds a frame; `worker_lost` without a connection
   */
  begin(agentRequest: GenerationRequest, requestId: string): RelayRequest {
    // A worker without this capability would ignore the images and sample from another prompt.
    if (agentRequest.images !== undefined && !this.#can(CAPABILITIES.images)) {
      throw new ProxyError('unsupported', 'no worker accepts images with token ids', {
        param: 'messages',
      })
    }
    const request = this.#can(CAPABILITIES.details) ? agentRequest : withoutCapture(agentRequest)
    const socket = this.#socket
    if (!socket) throw this.#createLostError('has no connection')
    const { version } = this.identity
    const known = {
      reported: findBasePrompt(request, this),
      acceptsShared: this.#can(CAPABILITIES.promptShared),
    }
    const json = serializeRequest(request, requestId, version, known)
    // On a larger frame the worker would close the connection, reconnect, and receive the frame again.
    if (Buffer.byteLength(json) > MAX_FRAME_BYTES) {
      throw new ProxyError('body_too_large', 'the request is larger than a frame to a worker may be')
    }
    const { limits, clock } = this.#context
    const handle = new RelayRequest({
      workerId: this.identity.workerId,
      windowBytes: version === 1 ? Number.POSITIVE_INFINITY : limits.windowBytes,
      promptBase: (request.kind === 'chat' ? request.promptTokenIds : undefined) ?? known.reported?.ids,
      continuesAfter: request.continuesAfter,
      timeoutMs: limits.requestTimeoutMs,
      clock,
      onPrompt: (ids) => attachReportedPrompt(request, { requestId, ids, reportedBy: this }),
      acknowledge: (seq) => this.#acknowledge(requestId, seq),
      onEnd: (isComplete) => this.#leave(requestId, isComplete),
    })
    const weightChangesAtStart = this.#weightChanges
    this.#requests.set(requestId, { handle, request, fullRequestSocket: undefined, weightChangesAtStart })
    this.#sessions.set(request.sessionId, true)
    sendRequest(socket, json)
    return handle
  }

  /**
   * Requests that the worker and its engines discard their state of the session. A disconnected worker is not notified,
   * which is safe because its caches are bounded.
   */
  endSession(sessionId: string): void {
    if (this.#sessions.get(sessionId) === undefined) return
    this.#sessions.delete(sessionId)
    if (!this.#can(CAPABILITIES.sessionEnd)) return
    this.#send({ type: 'session_end', session_id: sessionId } satisfies SessionEnd)
  }

  /**
   * Requests a status that follows health checks of the worker's engines. Resolves when the status arrives, the worker
   * is lost, or the request times out.
   */
  async refresh(): Promise<void> {
    if (!this.isConnected || !this.#can(CAPABILITIES.status)) return
    this.weightVersion = undefined
    this.#weightChanges += 1
    await this.#statusRequests.send((seq) =>
      this.#send({ type: 'worker_status_request', seq } satisfies WorkerStatusRequest),
    )
  }

  /** Handles a frame of the current connection. @param bytes the size of the frame */
  receive(frame: Frame, bytes: number): void {
    switch (frame.type) {
      case 'completion_chunk':
      case 'completion_response':
        this.#receiveResponse(frame, bytes)
        break
      case 'worker_status':
        this.#receiveStatus(frame)
        break
      case 'calls_alive':
        this.#receiveAlive(frame)
        break
      case 'ping':
        this.#sendPong()
        break
      case 'pong':
        break
      default:
        this.#ignore(frame, 'is of a type that a worker does not send')
    }
  }

  #connect(socket: RelaySocket): void {
    this.#transition(this.#connectedState)
    this.#socket = socket
    this.#pongs = { pending: 0 }
  }

  #transition(to: WorkerState): void {
    const from = this.#state
    assertTransition(WORKER_TRANSITIONS, from, to)
    this.#state = to
    const fields = { worker_id: this.identity.workerId, previous_state: from, state: to }
    logEvent(this.#context.logger, 'worker_state', fields)
  }

  #sendFullRequest(socket: RelaySocket, requestId: string, sent: WorkerRequest): void {
    sent.fullRequestSocket = socket
    const acceptsShared = this.#can(CAPABILITIES.promptShared)
    sendRequest(socket, serializeRequest(sent.request, requestId, 2, { acceptsShared }))
  }

  /**
   * Sends the request again with the complete prompt, if the response reports that the worker has evicted the ids on
   * which the prompt is based.
   * @returns whether the request was sent again
   */
  #resendIfBaseEvicted(
    sent: WorkerRequest,
    { request_id: requestId, seq, error }: CompletionResponseV2,
  ): boolean {
    const socket = this.#socket
    if (error?.code !== PROMPT_FORGOTTEN || !socket || sent.fullRequestSocket === socket) return false
    // The worker has ended this request, and the frame sent next restarts it under the same id.
    this.#acknowledge(requestId, seq)
    this.#sendFullRequest(socket, requestId, sent)
    return true
  }

  #setModels(models: readonly { id: string; max_model_len?: number }[]): void {
    this.models = models.map(({ id, max_model_len: maxModelLen }) => ({ id, maxModelLen }))
  }

  /** Handles a response frame. A late or duplicate frame belongs to no request in flight and is ignored. */
  #receiveResponse(frame: Frame, bytes: number): void {
    const sent = typeof frame.request_id === 'string' ? this.#requests.get(frame.request_id) : undefined
    const v1 = this.identity.version === 1
    if (!sent) this.#ignore(frame, 'belongs to no request in flight')
    else if (!v1 && frame.type === 'completion_chunk' && frames.chunk.isValid(frame)) {
      if (frame.start) sent.weightChangesAtStart = this.#weightChanges
      sent.handle.receiveChunk(frame, bytes)
    } else if (!v1 && frames.responseV2.isValid(frame)) {
      if (!this.#resendIfBaseEvicted(sent, frame)) sent.handle.receiveEndV2(frame, bytes)
    } else if (v1 && frames.responseV1.isValid(frame)) {
      this.#updateWarning(frame)
      sent.handle.receiveResponseV1(frame, bytes)
    } else
      sent.handle.fail(
        new ProxyError('engine_failed', `the worker violated its protocol: ${this.#describeFault(frame)}`),
      )
  }

  /**
   * Sets the warning of a version-1 worker after a response with text but no token ids, and clears it after one with
   * ids.
   */
  #updateWarning({ error, completion_text: text, token_ids: ids }: CompletionResponseV1): void {
    if (error || !text) return
    this.warning = ids?.length ? undefined : NO_IDS
  }

  #describeFault(frame: Frame): string {
    if (this.identity.version === 1) return frames.responseV1.explain(frame)
    return (frame.type === 'completion_chunk' ? frames.chunk : frames.responseV2).explain(frame)
  }

  #receiveStatus(frame: Frame): void {
    if (this.identity.version === 1 || !frames.workerStatus.isValid(frame)) {
      this.#ignore(frame, 'is not a status of this version')
      return
    }
    this.load = frame.load
    this.busyElsewhere = Math.max(0, frame.load - this.requestCount)
    this.healthy = frame.healthy
    this.unavailable = frame.unavailable
    this.textIds = frame.text_ids
    this.warning = frame.warning
    if (frame.capabilities !== undefined)
      this.identity = { ...this.identity, capabilities: filterCapabilities(frame.capabilities) }
    this.#connectedState = frame.draining ? 'draining' : 'serving'
    if (this.#state !== this.#connectedState) this.#transition(this.#connectedState)
    this.#setWeightVersion(frame.weight_version)
    this.#setModels(frame.models)
    if (frame.answers !== undefined) this.#statusRequests.settle(frame.answers)
  }

  /**
   * Creates the error for requests of a lost worker. It can no longer report that the weights changed during a response,
   * so its earlier reports determine whether they did.
   */
  #createLostError(reason: string, sent?: WorkerRequest): ProxyError {
    const error = new ProxyError('worker_lost', `worker ${this.identity.workerId} ${reason}`)
    error.weightsChanged = sent !== undefined && sent.weightChangesAtStart !== this.#weightChanges
    return error
  }

  #setWeightVersion(version: string | null): void {
    if (this.#lastVersion !== undefined && version !== this.#lastVersion) this.#weightChanges += 1
    this.#lastVersion = version
    this.weightVersion = version ?? undefined
  }

  #receiveAlive(frame: Frame): void {
    if (this.#can(CAPABILITIES.alive) && frames.callsAlive.isValid(frame))
      for (const requestId of frame.request_ids) this.#requests.get(requestId)?.handle.noteAlive()
    else this.#ignore(frame, 'is not agreed on')
  }

  #ignore({ type, request_id: requestId }: Frame, reason: string): void {
    logEvent(this.#context.logger, 'worker_frame_ignored', {
      ...{ worker_id: this.identity.workerId, frame: type.slice(0, 40), reason: `it ${reason}` },
      request_id: typeof requestId === 'string' ? requestId.slice(0, 256) : undefined,
    })
  }

  #ackV2(resumed: [string, WorkerRequest][]): WorkerHelloAckV2 {
    const { limits } = this.#context
    return {
      type: 'worker_hello_ack',
      worker_id: this.identity.workerId,
      status: 'connected',
      protocol: PROTOCOL_VERSION,
      capabilities: [...this.identity.capabilities],
      heartbeat_ms: limits.heartbeatMs,
      grace_ms: this.resumes ? limits.graceMs : 0,
      window_bytes: limits.windowBytes,
      ...(this.#can(CAPABILITIES.alive) && { alive_ms: getAliveMs(limits) }),
      requests: resumed.map(([request_id, { handle }]) => ({ request_id, received: handle.received })),
    }
  }

  #acknowledge(requestId: string, seq: number): void {
    if (this.identity.version === 1) return
    this.#send({ type: 'completion_ack', request_id: requestId, seq } satisfies CompletionAck)
  }

  #leave(requestId: string, isComplete: boolean): void {
    if (!this.#requests.delete(requestId) || isComplete || !this.#can(CAPABILITIES.cancel)) return
    this.#send({ type: 'completion_cancel', request_id: requestId } satisfies CompletionCancel)
  }

  #can(capability: string): boolean {
    return this.identity.capabilities.includes(capability)
  }

  /** Responds to a ping, unless the worker does not read the earlier pongs. */
  #sendPong(): void {
    const pongs = this.#pongs
    if (pongs.pending >= MAX_PENDING_PONGS) return
    pongs.pending += 1
    this.#socket?.send(JSON.stringify({ type: 'pong' } satisfies Pong), AS_TEXT, () => {
      pongs.pending -= 1
    })
  }

  /**
   * Sends a frame. Without a connection it is dropped, because the hello of a reconnected worker restores the state.
   */
  #send(frame: object): void {
    this.#socket?.send(JSON.stringify(frame))
  }
}

/**
 * Sends a request, then detaches the frame's buffer to free up to hundreds of kilobytes early. A lost frame is
 * serialized again.
 */
function sendRequest(socket: RelaySocket, json: string | Buffer): void {
  socket.send(json, AS_TEXT, () => {
    if (typeof json !== 'string') detachBuffer(json)
  })
}

function getAliveMs({ heartbeatMs, requestTimeoutMs }: WorkerLimits): number {
  return Math.max(1, Math.floor(Math.min(heartbeatMs, requestTimeoutMs / KEEPALIVES_PER_TIMEOUT)))
}

export function toWorkerIdentity(hello: WorkerHelloV2): WorkerIdentity {
  return {
    workerId: hello.worker_id,
    version: 2,
    epoch: hello.epoch,
    capabilities: filterCapabilities(hello.capabilities),
    maxConcurrency: hello.max_concurrency,
  }
}

/** Returns the capabilities that the proxy supports, too. */
function filterCapabilities(declared: readonly string[]): string[] {
  return Object.values(CAPABILITIES).filter((name) => declared.includes(name))
}
