/**
 * The handle of a request that a worker serves. It receives the worker's frames and pushes their events to the receiver
 * of the response.
 */
import type { Clock } from '../../base/clock.ts'
import { ProxyError, toProxyError } from '../../base/errors.ts'
import { PushLoop } from '../../base/push-loop.ts'
import type { EventSink, GenerationEvent } from '../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../protocol/canonical/request.ts'
import type { PromptIds } from '../../protocol/token-ids/prompt-ids.ts'
import type {
  CompletionChunk,
  CompletionResponseV1,
  CompletionResponseV2,
} from '../../protocol/worker/protocol.ts'
import { parseChunk, parseResponseEnd } from '../../protocol/worker/response-frames.ts'
import { FrameBuffer } from './frame-buffer.ts'
import { parseResponseV1 } from './responses-v1.ts'

/** The properties of a request, and callbacks to its worker. */
interface RelayRequestOptions {
  /** The prefix of the engine's name in the recorded turn. */
  workerId: string
  windowBytes: number
  /** The ids relative to which the worker may report the prompt. */
  promptBase: PromptIds | undefined
  continuesAfter: GenerationRequest['continuesAfter']
  /**
   * The maximum time without a frame or keepalive for this request. A version-1 worker sends one frame; for it, this is
   * the time limit of the request.
   */
  timeoutMs: number
  clock: Clock
  /** Called when the worker has reported the prompt. */
  onPrompt(ids: PromptIds): void
  /** Informs the worker that it may drop the frames up to `seq`. */
  acknowledge(seq: number): void
  /** Called when the request has ended at the proxy. @param isComplete false: the worker may still be serving it */
  onEnd(isComplete: boolean): void
}

/** The handle of a request that was sent to a worker. */
export class RelayRequest {
  readonly #options: RelayRequestOptions
  readonly #incoming: FrameBuffer
  #failure: { reason: unknown } | undefined
  /** Whether the worker's last frame has arrived. */
  #isComplete = false
  #left = false
  /** Whether the sink has received events. From then on, the request cannot fail over to another worker. */
  #hasDelivered = false
  #lastFrameAtMs: number
  #cancelTimeout: (() => void) | undefined
  #sink: EventSink | undefined
  /** Pushes buffered events to the sink; closed when the outcome is known. */
  readonly #loop = new PushLoop({
    push: () => this.#push(),
    fail: (reason) => this.#close({ reason }),
  })
  readonly #outcome = Promise.withResolvers<void>()

  constructor(options: RelayRequestOptions) {
    this.#options = options
    this.#incoming = new FrameBuffer(options.windowBytes)
    this.#lastFrameAtMs = options.clock.nowMs()
    this.#outcome.promise.catch(() => {})
    this.#watchSilence(options.timeoutMs)
  }

  /** The number of the last frame received, after which a worker that reconnects resumes. */
  get received(): number {
    return this.#incoming.received
  }

  /**
   * Pushes the response to `sink`. Resolves after the last event. Must be called once. An error of the sink, or an
   * abort of `signal`, cancels the request at the worker.
   * @throws ProxyError as the worker reported it, or `worker_lost`, `engine_timeout`, `agent_too_slow`; an error of the
   *   sink; `signal.reason` after an abort
   */
  async pushTo(sink: EventSink, signal: AbortSignal): Promise<void> {
    const onAbort = () => this.#close({ reason: signal.reason })
    if (signal.aborted) onAbort()
    signal.addEventListener('abort', onAbort, { once: true })
    this.#sink = sink
    this.#schedule()
    try {
      await this.#outcome.promise
    } finally {
      signal.removeEventListener('abort', onAbort)
    }
  }

  /** Receives a frame with events of a version-2 response. */
  receiveChunk(chunk: CompletionChunk, bytes: number): void {
    this.#receive(chunk.seq, bytes, () => {
      // The engine and the prompt that the turn records must not change after tokens were sampled.
      if (chunk.start && chunk.seq > 1)
        throw new ProxyError('engine_failed', 'the worker started its response twice')
      const { workerId, promptBase } = this.#options
      const events = parseChunk(chunk, workerId, promptBase)
      const [first] = events
      if (first?.type === 'start' && first.promptTokenIds) this.#options.onPrompt(first.promptTokenIds)
      return events
    })
  }

  /** Receives the last frame of a version-2 response; chunks with its events precede it. */
  receiveEndV2(response: CompletionResponseV2, bytes: number): void {
    this.#receive(response.seq, bytes, () => {
      this.#isComplete = true
      this.#options.acknowledge(response.seq)
      return [parseResponseEnd(response)]
    })
    if (this.#isComplete) this.#leave()
  }

  /** Receives a version-1 response, which consists of one frame. */
  receiveResponseV1(response: CompletionResponseV1, bytes: number): void {
    this.#receive(1, bytes, () => {
      this.#isComplete = true
      return parseResponseV1(response, this.#options.workerId)
    })
    this.#leave()
  }

  /**
   * Records a keepalive. It does not extend the time limit while received events are unconsumed, because then the
   * worker may be unable to send.
   */
  noteAlive(): void {
    if (this.#incoming.isEmpty) this.#lastFrameAtMs = this.#options.clock.nowMs()
  }

  /**
   * Fails the request. Buffered events are still delivered if the agent has received earlier ones, or if another engine
   * request continues the response.
   */
  fail(reason: unknown): void {
    if (this.#isComplete || this.#failure) return
    this.#failure = { reason }
    this.#leave()
    this.#schedule()
  }

  /** Repeats the last acknowledgement for a worker that has reconnected and may have missed it. */
  acknowledgeAgain(): void {
    const seq = this.#incoming.acknowledge()
    if (seq !== undefined) this.#options.acknowledge(seq)
  }

  #receive(seq: number, bytes: number, decode: () => GenerationEvent[]): void {
    const verdict = this.#incoming.judge(seq)
    if (verdict === 'duplicate') return
    this.#lastFrameAtMs = this.#options.clock.nowMs()
    try {
      if (verdict !== 'new') throw new ProxyError('engine_failed', BROKEN[verdict])
      this.#incoming.receive(decode(), bytes)
    } catch (thrown) {
      this.#failure ??= { reason: toWorkerError(thrown) }
      this.#leave()
    }
    this.#schedule()
  }

  #schedule(): void {
    if (this.#sink !== undefined) this.#loop.schedule()
  }

  #push(): Promise<void> | undefined {
    // If the agent has received nothing, a new attempt replaces a partial response that cannot be continued.
    if (this.#failure && !this.#hasDelivered && !this.#continues(this.#failure.reason)) {
      this.#close(this.#failure)
      return undefined
    }
    const accepted = this.#pushEvents()
    if (accepted !== undefined) return accepted
    if (this.#failure) this.#close(this.#failure)
    else if (this.#isComplete) this.#close()
    return undefined
  }

  #continues(reason: unknown): boolean {
    return reason instanceof ProxyError && this.#options.continuesAfter?.has(reason.code) === true
  }

  #pushEvents(): Promise<void> | undefined {
    const { events, acknowledge } = this.#incoming.take()
    if (acknowledge !== undefined && !this.#isComplete) this.#options.acknowledge(acknowledge)
    if (events.length === 0) return undefined
    this.#hasDelivered = true
    // The worker may have waited for window space, so its silence so far does not count.
    this.#lastFrameAtMs = this.#options.clock.nowMs()
    return this.#sink!.write(events)
  }

  #close(failure?: { reason: unknown }): void {
    if (this.#loop.isClosed) return
    this.#loop.close()
    this.#leave()
    if (failure) this.#outcome.reject(failure.reason)
    else this.#outcome.resolve()
  }

  #leave(): void {
    if (this.#left) return
    this.#left = true
    this.#cancelTimeout?.()
    this.#options.onEnd(this.#isComplete)
  }

  /**
   * Fails the request after a timeout. There is one timer per request, which is set again if it fires early, so that a
   * frame only costs a reading of the clock.
   */
  #watchSilence(delayMs: number): void {
    const { clock, timeoutMs } = this.#options
    this.#cancelTimeout = clock.after(delayMs, () => {
      const silentMs = clock.nowMs() - this.#lastFrameAtMs
      if (silentMs < timeoutMs) this.#watchSilence(timeoutMs - silentMs)
      else this.fail(this.#timeoutError())
    })
  }

  /** Returns the error for a silent worker; if events are unconsumed, the error for a slow agent. */
  #timeoutError(): ProxyError {
    const afterS = this.#options.timeoutMs / 1000
    return this.#incoming.isEmpty
      ? new ProxyError('engine_timeout', `the worker sent nothing for this request in ${afterS} s`)
      : new ProxyError('agent_too_slow', `the agent read nothing of its response in ${afterS} s`)
  }
}

const BROKEN = {
  gap: 'a frame of the worker is missing',
  overflow: 'the worker sent more than its window allows',
} as const

/** Converts an error in the worker's data to the error of the request. */
function toWorkerError(thrown: unknown): ProxyError {
  if (thrown instanceof RangeError) return new ProxyError('engine_failed', `the worker's ${thrown.message}`)
  return toProxyError(thrown)
}
