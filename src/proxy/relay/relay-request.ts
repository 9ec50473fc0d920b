/** A request at a worker: the worker's frames arrive on one side, and their events are pushed to the agent's side. */
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
import { FrameReceiver } from './frame-receiver.ts'
import { parseResponseV1 } from './responses-v1.ts'

interface RelayRequestOptions {
  /** Precedes the engine's name in the recorded turn. */
  workerId: string
  windowBytes: number
  /** The ids that the worker may refer to when it reports the prompt. */
  promptBase: PromptIds | undefined
  continuesAfter: GenerationRequest['continuesAfter']
  /**
   * The longest time without a frame or keepalive for this request; for a version-1 worker, which sends one frame, the
   * time limit of the request.
   */
  timeoutMs: number
  clock: Clock
  /** Called when the worker has reported the prompt. */
  onPrompt(ids: PromptIds): void
  /** Tells the worker that frames up to `seq` need not be kept. */
  acknowledge(seq: number): void
  /** Called when the request has ended on this side. @param isComplete false: the worker may still be serving it */
  onEnd(isComplete: boolean): void
}

export class RelayRequest {
  readonly #options: RelayRequestOptions
  readonly #incoming: FrameReceiver
  #failure: { reason: unknown } | undefined
  /** Whether the worker's last frame has arrived. */
  #isComplete = false
  #left = false
  /** Whether the agent's side has received events, after which no other worker can take over. */
  #handedOn = false
  #lastFrameAtMs: number
  #cancelTimeout: (() => void) | undefined
  #sink: EventSink | undefined
  /** Closed when the outcome is known. */
  readonly #loop = new PushLoop({
    push: () => this.#push(),
    fail: (reason) => this.#close({ reason }),
  })
  readonly #outcome = Promise.withResolvers<void>()

  constructor(options: RelayRequestOptions) {
    this.#options = options
    this.#incoming = new FrameReceiver(options.windowBytes)
    this.#lastFrameAtMs = options.clock.nowMs()
    this.#outcome.promise.catch(() => {})
    this.#watchSilence(options.timeoutMs)
  }

  /** The number of the last frame received, after which a worker that reconnects resumes. */
  get received(): number {
    return this.#incoming.received
  }

  /**
   * Pushes the response to `sink`, and resolves after its last event; to be called once. An error of the sink, or an
   * abort of `signal`, cancels the request at the worker.
   * @throws ProxyError as the worker reported it, or `worker_lost`, `engine_timeout`, `agent_too_slow`; what the sink
   *   throws; after an abort `signal.reason`
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

  receiveChunk(chunk: CompletionChunk, bytes: number): void {
    this.#receive(chunk.seq, bytes, () => {
      // The recorded engine and prompt must not change after tokens were sampled.
      if (chunk.start && chunk.seq > 1)
        throw new ProxyError('engine_failed', 'the worker started its response twice')
      const { workerId, promptBase } = this.#options
      const events = parseChunk(chunk, workerId, promptBase)
      const [first] = events
      if (first?.type === 'start' && first.promptTokenIds) this.#options.onPrompt(first.promptTokenIds)
      return events
    })
  }

  receiveEndV2(response: CompletionResponseV2, bytes: number): void {
    this.#receive(response.seq, bytes, () => {
      this.#isComplete = true
      this.#options.acknowledge(response.seq)
      return [parseResponseEnd(response)]
    })
    if (this.#isComplete) this.#leave()
  }

  receiveResponseV1(response: CompletionResponseV1, bytes: number): void {
    this.#receive(1, bytes, () => {
      this.#isComplete = true
      return parseResponseV1(response, this.#options.workerId)
    })
    this.#leave()
  }

  /**
   * Notes a keepalive. It does not extend the time limit while the agent's side leaves events unconsumed, which is not
   * the worker's fault.
   */
  noteAlive(): void {
    if (this.#incoming.isEmpty) this.#lastFrameAtMs = this.#options.clock.nowMs()
  }

  /**
   * Fails the request; buffered events are still delivered if the agent has received earlier ones, or if the response
   * continues.
   */
  fail(reason: unknown): void {
    if (this.#isComplete || this.#failure) return
    this.#failure = { reason }
    this.#leave()
    this.#schedule()
  }

  /** Repeats the acknowledgement to a worker that has just reconnected and may have missed it. */
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
      this.#failure ??= { reason: asWorkersFault(thrown) }
      this.#leave()
    }
    this.#schedule()
  }

  #schedule(): void {
    if (this.#sink !== undefined) this.#loop.schedule()
  }

  #push(): Promise<void> | undefined {
    // While the agent has received nothing, another attempt is better than a partial response that nothing continues.
    if (this.#failure && !this.#handedOn && !this.#continues(this.#failure.reason)) {
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
    this.#handedOn = true
    // A worker whose window was full can send from now on.
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
   * Watches for the timeout with one timer per request, which is set again when it fires early: a frame costs a reading
   * of the clock and no timer.
   */
  #watchSilence(delayMs: number): void {
    const { clock, timeoutMs } = this.#options
    this.#cancelTimeout = clock.after(delayMs, () => {
      const silentMs = clock.nowMs() - this.#lastFrameAtMs
      if (silentMs < timeoutMs) this.#watchSilence(timeoutMs - silentMs)
      else this.fail(this.#timeoutError())
    })
  }

  /** Returns the error for a silent worker, or for an agent's side that does not consume what the worker has sent. */
  #timeoutError(): ProxyError {
    const afterS = this.#options.timeoutMs / 1000
    return this.#incoming.isEmpty
      ? new ProxyError('engine_timeout', `the worker sent nothing for this request in ${afterS} s`)
      : new ProxyError('agent_too_slow', `the agent read nothing of its response in ${afterS} s`)
  }
}

const BROKEN = {
  gap: 'the worker omitted a part of its response',
  overflow: 'the worker sent more than its window allows',
} as const

function asWorkersFault(thrown: unknown): ProxyError {
  if (thrown instanceof RangeError) return new ProxyError('engine_failed', `the worker's ${thrown.message}`)
  return toProxyError(thrown)
}
