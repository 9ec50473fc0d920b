/**
 * The link of a worker to one proxy: a connection that is re-established after each loss, and the requests, which
 * survive its loss.
 */
import { ProxyError, toProxyError } from '../base/errors.ts'
import { logEvent } from '../base/log-events.ts'
import { assertTransition, type Transitions } from '../base/transitions.ts'
import type { GenerationEvent } from '../protocol/canonical/events.ts'
import type { GenerationRequest } from '../protocol/canonical/request.ts'
import type { PromptIds } from '../protocol/token-ids/prompt-ids.ts'
import type { Frame } from '../protocol/worker/frames.ts'
import * as frames from '../protocol/worker/frames.ts'
import {
  type CallsAlive,
  CLOSE,
  type CompletionRequestV2,
  PROTOCOL_VERSION,
  PROXY_SHUTS_DOWN,
  type WorkerHelloAckV2,
  type WorkerHelloV2,
  type WorkerStatus,
} from '../protocol/worker/protocol.ts'
import { type FrameJson, requestFromV2 } from '../protocol/worker/request-frames.ts'
import {
  createChunkFrame,
  createFailureFrame,
  createPromptForgottenFrame,
  createResponseFrame,
  createShortFailureFrame,
} from '../protocol/worker/response-frames.ts'
import type { Dispatcher, Lease } from '../proxy/engines/dispatch/dispatcher.ts'
import type { Backend } from '../proxy/engines/port/backend.ts'
import { keepConnected } from './backoff.ts'
import { type ConnectionEnd, ProxyConnection, type ProxyConnectionOptions } from './proxy-connection.ts'
import { ProxyCache, type WorkerCache } from './worker-cache.ts'
import { WorkerRequestState } from './worker-request-state.ts'

/**
 * The state of a link. `connecting`: it dials, or waits before it dials again. `handshaking`: it has sent the hello.
 * `draining`: it completes its requests and rejects new ones.
 */
type ProxyLinkState = 'connecting' | 'handshaking' | 'serving' | 'draining' | 'closed'

export const PROXY_LINK_TRANSITIONS: Transitions<ProxyLinkState> = {
  connecting: ['handshaking', 'closed'],
  handshaking: ['connecting', 'serving', 'draining', 'closed'],
  serving: ['connecting', 'draining', 'closed'],
  draining: ['connecting', 'serving', 'closed'],
  closed: [],
}

/** The options of a {@link ProxyLink}, and callbacks for its connection. */
interface ProxyLinkOptions
  extends Pick<ProxyConnectionOptions, 'url' | 'address' | 'ca' | 'clock' | 'dial' | 'logger'> {
  /** The worker keys, of which the proxy accepts one if it requires a key. */
  apiKeys: readonly string[]
  workerId: string
  epoch: number
  maxConcurrency: number
  backend: Backend
  /** The dispatcher that limits concurrent requests; all links of the worker share it. */
  slots: Dispatcher
  /** The cache that all links of the worker share. */
  memory: WorkerCache
  random(): number
  getStatus(): WorkerStatus & Pick<WorkerHelloV2, 'capabilities'>
  onConnected(): void
  onDisconnected(end: ConnectionEnd): void
}

/** A link to one proxy, until it is stopped. */
export class ProxyLink {
  readonly #options: ProxyLinkOptions
  readonly #stopping = new AbortController()
  readonly #requests = new Map<string, WorkerRequestState>()
  readonly #memory: ProxyCache
  /** Identifies the proxy in keys, because two proxies may use the same request and session ids. */
  readonly #proxy: string
  #state: ProxyLinkState = 'connecting'
  #connection: ProxyConnection | undefined
  /** The number of times that the proxy has rejected a key; it determines the next one. */
  #rejectionCount = 0
  #ack: WorkerHelloAckV2 | undefined
  /** Resolves when the engines' state has been refreshed after the latest ack. */
  #engineCheck: Promise<void> = Promise.resolve()
  #cancelGrace: (() => void) | undefined
  #cancelAlive: (() => void) | undefined
  /** The result of {@link drain}; undefined: it was not called, or was reverted. */
  #drained: PromiseWithResolvers<boolean> | undefined

  constructor(options: ProxyLinkOptions) {
    this.#options = options
    this.#proxy = `${options.url} ${options.address ?? ''}`
    this.#memory = new ProxyCache(options.memory, this.#proxy)
  }

  get isConnected(): boolean {
    return this.#state === 'serving' || this.#state === 'draining'
  }

  /** Maintains the connection until {@link stop}. */
  run(): Promise<void> {
    const { clock, random } = this.#options
    return keepConnected({ connect: () => this.#connect(), clock, random, signal: this.#stopping.signal })
  }

  /**
   * Rejects new requests. Resolves when no request is left. Never resolves after {@link resumeServing}.
   * @returns whether each response was delivered or cancelled by the proxy
   */
  drain(): Promise<boolean> {
    if (this.#drained) return this.#drained.promise
    this.#drained = Promise.withResolvers()
    if (this.#state === 'serving') this.#transition('draining')
    this.sendStatus()
    this.#checkDrained()
    return this.#drained.promise
  }

  /** Reverts {@link drain}: running requests continue, and new ones are accepted. */
  resumeServing(): void {
    this.#drained = undefined
    if (this.#state === 'draining') this.#transition('serving')
    this.sendStatus()
  }

  /** Cancels running requests and closes the connection. */
  stop(): void {
    if (this.#state === 'closed') return
    this.#transition('closed')
    this.#stopping.abort()
    this.#cancelGrace?.()
    this.#abandonAll('the worker was stopped')
    this.#connection?.leave()
  }

  /** Sends the status. @param answeredSequence the sequence number of the status request to which it responds */
  sendStatus(answeredSequence?: number): void {
    const status = {
      ...this.#options.getStatus(),
      ...(this.#state === 'draining' && { draining: true }),
      ...(answeredSequence !== undefined && { answers: answeredSequence }),
    }
    this.#send(JSON.stringify(status satisfies WorkerStatus))
  }

  async #connect(): Promise<number> {
    const { apiKeys, onConnected: connected, onDisconnected: disconnected } = this.#options
    this.#connection = new ProxyConnection({
      ...this.#options,
      apiKey: apiKeys[this.#rejectionCount % apiKeys.length],
      memory: this.#memory,
      createHello: () => {
        this.#transition('handshaking')
        return this.#hello()
      },
      onGreeted: (ack) => {
        // The link may have been stopped before the ack arrived.
        if (this.#state === 'closed') return
        this.#resume(ack)
        connected()
      },
      onFrame: (frame, json) => this.#receive(frame, json),
    })
    const end = await this.#connection.ended
    if (end.keyRejected) this.#rejectionCount += 1
    this.#connection = undefined
    this.#awaitReturn(end)
    disconnected(end)
    return end.heldMs
  }

  #hello(): WorkerHelloV2 {
    const { workerId, epoch, maxConcurrency, getStatus: status } = this.#options
    const { capabilities, models, weight_version, healthy, unavailable, text_ids } = status()
    return {
      type: 'worker_hello',
      worker_id: workerId,
      protocol: PROTOCOL_VERSION,
      capabilities,
      models,
      max_concurrency: maxConcurrency,
      weight_version,
      healthy,
      ...(unavailable && { unavailable }),
      ...(text_ids && { text_ids }),
      epoch,
      requests: [...this.#requests.keys()],
    }
  }

  /**
   * Resumes after the ack. Requests that the proxy has continue after the last frame that it received. The others are
   * cancelled, all of them after a restart of the proxy, so that engines do not sample needlessly.
   */
  #resume(ack: WorkerHelloAckV2): void {
    this.#cancelGrace?.()
    this.#transition(this.#drained ? 'draining' : 'serving')
    this.#ack = ack
    // The weights may have changed while the worker was disconnected.
    this.#engineCheck = this.#options.backend.refresh().then(() => this.sendStatus())
    const received = new Map(ack.requests.map((state) => [state.request_id, state.received]))
    for (const state of [...this.#requests.values()]) {
      const last = received.get(state.requestId)
      if (last === undefined) {
        this.#abandon(state, 'the proxy no longer has this request')
        continue
      }
      for (const text of state.listAfter(last)) this.#connection?.send(text)
      state.setWindow(ack.window_bytes)
    }
    this.sendStatus()
    if (ack.alive_ms !== undefined) this.#reportAlive(ack.alive_ms)
  }

  /**
   * Sends keepalives for running requests periodically. A response that is not streamed may send nothing for minutes,
   * which the proxy could not distinguish from a lost request.
   */
  #reportAlive(everyMs: number): void {
    this.#cancelAlive?.()
    this.#cancelAlive = this.#options.clock.after(everyMs, () => {
      const running = [...this.#requests.values()].filter((state) => !state.hasEnded)
      const frame = { type: 'calls_alive', request_ids: running.map((state) => state.requestId) } as const
      if (running.length > 0) this.#send(JSON.stringify(frame satisfies CallsAlive))
      this.#reportAlive(everyMs)
    })
  }

  /**
   * Handles a disconnection. After the grace period the proxy has failed the requests, so they are cancelled here too;
   * a proxy that announces its shutdown has failed them immediately.
   */
  #awaitReturn({ code, reason }: ConnectionEnd): void {
    this.#cancelAlive?.()
    if (this.#state === 'closed') return
    if (this.#state !== 'connecting') this.#transition('connecting')
    if (!this.#ack) return
    const graceMs = this.#ack.grace_ms
    this.#ack = undefined
    if (code === CLOSE.goingAway && reason === PROXY_SHUTS_DOWN) {
      this.#abandonAll('the proxy has shut down, and has failed this request')
      return
    }
    this.#cancelGrace = this.#options.clock.after(graceMs, () => {
      if (this.#requests.size > 0) this.#drained?.resolve(false)
      this.#abandonAll(`the connection to the proxy was lost for ${graceMs} ms`)
    })
  }

  #receive(frame: Frame, json?: FrameJson): void {
    if (frames.requestV2.isValid(frame)) this.#begin(frame, json)
    else if (frames.ack.isValid(frame)) this.#acknowledge(frame.request_id, frame.seq)
    else if (frames.cancel.isValid(frame)) this.#cancel(frame.request_id)
    else if (frames.sessionEnd.isValid(frame)) this.#endSession(frame.session_id)
    else if (frames.workerStatusRequest.isValid(frame)) void this.#reportStatus(frame.seq)
    else if (frame.type !== 'pong') this.#rejectInvalid(frame)
  }

  /**
   * Starts a request. A frame for a known request is ignored: the proxy resent it after a reconnect, and it is being
   * served.
   */
  #begin(frame: CompletionRequestV2, json?: FrameJson): void {
    if (this.#requests.has(frame.request_id) || !this.#ack) return
    const state = new WorkerRequestState(frame.request_id, this.#ack.window_bytes)
    this.#requests.set(frame.request_id, state)
    if (this.#state !== 'serving')
      this.#fail(state, new ProxyError('shutting_down', 'the worker is shutting down'))
    else void this.#serve(state, frame, json)
  }

  /** Serves a request. Never rejects: an error is sent as the last frame. */
  async #serve(state: WorkerRequestState, frame: CompletionRequestV2, json?: FrameJson): Promise<void> {
    let lease: Lease | undefined
    try {
      const { prompt_base: name = '', prompt_shared: shared } = frame
      const base = shared === undefined ? undefined : this.#memory.getPrompt(name, shared)
      if (shared !== undefined && base === undefined)
        return this.#send(state.end(createPromptForgottenFrame(state.requestId)))
      const promptLists = this.#memory.getPromptLists(frame.session_id)
      const request = { ...readRequest(frame, json, base), promptLists }
      await this.#engineCheck
      const slot = { requestId: `${this.#proxy} ${state.requestId}`, sessionId: frame.session_id }
      lease = await this.#options.slots.acquire(slot, state.signal)
      await this.#relay(state, request, this.#findPromptBase(frame, request))
    } catch (thrown) {
      if (state.signal.aborted || state.hasEnded) return
      const error = toProxyError(thrown)
      if (error.code === 'internal')
        logEvent(this.#options.logger, 'worker_request_failed', { request_id: state.requestId, err: thrown })
      this.#fail(state, error)
    } finally {
      lease?.release()
      // Session affinity is not needed, because the dispatcher of slots has one member.
      this.#options.slots.releaseSession(frame.session_id)
    }
  }

  /** Sends the engine's events as frames, as fast as the proxy's window permits. */
  async #relay(
    state: WorkerRequestState,
    request: GenerationRequest,
    promptBase: PromptIds | undefined,
  ): Promise<void> {
    const write = (batch: readonly GenerationEvent[]) => {
      const chunk = createChunkFrame(state.requestId, batch, promptBase)
      const [first] = batch
      if (first?.type === 'start' && first.promptTokenIds)
        this.#memory.recordSentPrompt(request, first.promptTokenIds)
      if (chunk) this.#send(state.add(chunk))
      const last = batch.at(-1)
      const room = state.waitForSpace()
      if (last?.type !== 'end') return room
      const end = () => this.#send(state.end(createResponseFrame(state.requestId, last)))
      if (room !== undefined) return room.then(end)
      end()
      return undefined
    }
    await this.#options.backend.generate(request, { write }, state.signal)
    if (!state.hasEnded)
      throw new ProxyError('engine_lost', 'the engine ended its response without a finish reason')
  }

  /** Returns the prompt relative to which the response reports its prompt; undefined: the proxy has none. */
  #findPromptBase(frame: CompletionRequestV2, request: GenerationRequest): PromptIds | undefined {
    if (frame.prompt_base === undefined) return undefined
    if (frame.prompt_base === frame.request_id || frame.prompt_shared !== undefined)
      return request.kind === 'chat' ? request.promptTokenIds : undefined
    return this.#memory.getPrompt(frame.prompt_base)
  }

  /** Sends the error as the last frame; without the engine's body if it exceeds the frame limit. */
  #fail(state: WorkerRequestState, error: ProxyError): void {
    let text: string
    try {
      text = state.end(createFailureFrame(state.requestId, error))
    } catch {
      text = state.end(createShortFailureFrame(state.requestId, error))
    }
    this.#send(text)
  }

  #endSession(sessionId: string): void {
    this.#memory.forget(sessionId)
    this.#options.backend.releaseSession(sessionId)
  }

  async #reportStatus(seq: number): Promise<void> {
    await this.#options.backend.refresh()
    this.sendStatus(seq)
  }

  #acknowledge(requestId: string, seq: number): void {
    const state = this.#requests.get(requestId)
    state?.acknowledge(seq)
    if (state?.isDelivered) this.#forget(state)
  }

  #cancel(requestId: string): void {
    const state = this.#requests.get(requestId)
    if (state) this.#abandon(state, 'the proxy cancelled this request')
  }

  #abandonAll(reason: string): void {
    for (const state of [...this.#requests.values()]) this.#abandon(state, reason)
  }

  #abandon(state: WorkerRequestState, reason: string): void {
    this.#forget(state)
    state.abort(new ProxyError('turn_cancelled', reason))
  }

  #forget(state: WorkerRequestState): void {
    this.#requests.delete(state.requestId)
    this.#checkDrained()
  }

  #checkDrained(): void {
    if (this.#requests.size === 0) this.#drained?.resolve(true)
  }

  /**
   * Sends a frame. Does nothing without a connection or before its ack, because frames that the proxy lacks are sent
   * after the ack.
   */
  #send(text: string): void {
    if (this.isConnected) this.#connection?.send(text)
  }

  #transition(to: ProxyLinkState): void {
    const from = this.#state
    assertTransition(PROXY_LINK_TRANSITIONS, from, to)
    this.#state = to
    logEvent(this.#options.logger, 'proxy_link_state', { previous_state: from, state: to })
  }

  /** Handles an invalid or unknown frame: fails the request if it is one, and logs it otherwise. */
  #rejectInvalid(frame: Frame): void {
    const { type, request_id: requestId } = frame
    const isRequest = type === 'completion_request' && typeof requestId === 'string'
    if (!isRequest || this.#requests.has(requestId) || !this.#ack) {
      const id = typeof requestId === 'string' ? requestId : undefined
      logEvent(this.#options.logger, 'proxy_frame_ignored', { frame: type.slice(0, 40), request_id: id })
      return
    }
    const state = new WorkerRequestState(requestId, this.#ack.window_bytes)
    this.#requests.set(requestId, state)
    this.#fail(state, new ProxyError('invalid_request', `bad request: ${frames.requestV2.explain(frame)}`))
  }
}

/** Parses a request frame. @throws ProxyError `invalid_request` for invalid token ids */
function readRequest(frame: CompletionRequestV2, json?: FrameJson, base?: PromptIds): GenerationRequest {
  try {
    return requestFromV2(frame, json, base)
  } catch (thrown) {
    throw thrown instanceof RangeError ? new ProxyError('invalid_request', thrown.message) : thrown
  }
}
