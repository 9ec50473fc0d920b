/** One call at one worker, seen from the proxy: frames come in on one side, the agent's side takes events out. */
import type { Clock } from '../../base/clock.ts'
import { ProxyError, toProxyError } from '../../base/errors.ts'
import type { GenerationEvent, GenerationStream } from '../../protocol/canonical/events.ts'
import type { PromptIds } from '../../protocol/token-ids/prompt-ids.ts'
import type {
  CompletionChunk,
  CompletionResponseV1,
  CompletionResponseV2,
} from '../../protocol/worker/protocol.ts'
import { parseChunk, parseResponseEnd } from '../../protocol/worker/response-frames.ts'
import { FrameReceiver } from './frame-receiver.ts'
import { toEvents } from './responses-v1.ts'

interface RelayRequestOptions {
  /** Goes before the engine's name, for the record. */
  workerId: string
  windowBytes: number
  /** Ids that the worker may refer to when it tells the prompt. */
  promptBase: PromptIds | undefined
  /** Longest time without a frame for this call, or a sign of life; of a version-1 worker, which sends one: for the call. */
  timeoutMs: number
  clock: Clock
  /** The worker has reported the prompt. */
  prompt(ids: PromptIds): void
  /** Tells the worker that frames up to `seq` need not be kept. */
  acknowledge(seq: number): void
  /** The call is over on this side. @param answered false: the worker may still be at it */
  leave(answered: boolean): void
}

export class RelayRequest {
  readonly #options: RelayRequestOptions
  readonly #incoming: FrameReceiver
  #failure: { reason: unknown } | undefined
  /** The worker's last frame is here. */
  #answered = false
  #left = false
  /** Whether events have been handed to the agent's side, after which no other worker can take over. */
  #handedOn = false
  #lastFrameAtMs: number
  #cancelTimeout: (() => void) | undefined
  #wake: (() => void) | undefined

  constructor(options: RelayRequestOptions) {
    this.#options = options
    this.#incoming = new FrameReceiver(options.windowBytes)
    this.#lastFrameAtMs = options.clock.nowMs()
    this.#watchSilence(options.timeoutMs)
  }

  /** The last frame received: where a worker that reconnects goes on. */
  get received(): number {
    return this.#incoming.received
  }

  /**
   * To be read once. Leaving early, or an abort of `signal`, ends the call at the worker.
   * @throws ProxyError as the worker reported it, or `worker_lost`, `engine_timeout`, `agent_too_slow`; after an abort
   *   whatever `signal.reason` is
   */
  async *stream(signal: AbortSignal): GenerationStream {
    const onAbort = () => this.fail(signal.reason)
    signal.addEventListener('abort', onAbort, { once: true })
    try {
      for (;;) {
        signal.throwIfAborted()
        // Before the agent has anything, what is here is worth less than a fresh start at another worker.
        if (this.#failure && !this.#handedOn) throw this.#failure.reason
        const { events, acknowledge } = this.#incoming.take()
        if (acknowledge !== undefined && !this.#answered) this.#options.acknowledge(acknowledge)
        if (events.length > 0) {
          this.#handedOn = true
          // A worker that had no room to send has it from here on.
          this.#lastFrameAtMs = this.#options.clock.nowMs()
          yield events
        } else if (this.#failure) throw this.#failure.reason
        else if (this.#answered) return
        else await new Promise<void>((resolve) => (this.#wake = resolve))
      }
    } finally {
      signal.removeEventListener('abort', onAbort)
      this.#leave()
    }
  }

  receiveChunk(chunk: CompletionChunk, bytes: number): void {
    this.#receive(chunk.seq, bytes, () => {
      // What the record says of the engine and its prompt must not change under tokens that were sampled before.
      if (chunk.start && chunk.seq > 1)
        throw new ProxyError('engine_failed', 'the worker began its answer twice')
      const { workerId, promptBase } = this.#options
      const events = parseChunk(chunk, workerId, promptBase)
      const [first] = events
      if (first?.type === 'start' && first.promptTokenIds) this.#options.prompt(first.promptTokenIds)
      return events
    })
  }

  receiveResponse(response: CompletionResponseV2, bytes: number): void {
    this.#receive(response.seq, bytes, () => {
      this.#answered = true
      this.#options.acknowledge(response.seq)
      return [parseResponseEnd(response)]
    })
    if (this.#answered) this.#leave()
  }

  receiveWhole(response: CompletionResponseV1, bytes: number): void {
    this.#receive(1, bytes, () => {
      this.#answered = true
      return toEvents(response, this.#options.workerId)
    })
    this.#leave()
  }

  /** The worker still works on it. What the agent's side leaves lying is no fault of the worker, and not excused by it. */
  noteAlive(): void {
    if (this.#incoming.isEmpty) this.#lastFrameAtMs = this.#options.clock.nowMs()
  }

  /** Ends the call with an error; what was received before is still handed on if the agent has had a part of it. */
  fail(reason: unknown): void {
    if (this.#answered || this.#failure) return
    this.#failure = { reason }
    this.#leave()
    this.#wake?.()
  }

  /** For a worker that has just reconnected, and may have missed acknowledgements. */
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
      this.#wake?.()
    } catch (thrown) {
      this.#failure ??= { reason: asWorkersFault(thrown) }
      this.#leave()
      this.#wake?.()
    }
  }

  #leave(): void {
    if (this.#left) return
    this.#left = true
    this.#cancelTimeout?.()
    this.#options.leave(this.#answered)
  }

  /** One timer per call that is set again when it fires early: a frame costs a look at the clock and no timer. */
  #watchSilence(delayMs: number): void {
    const { clock, timeoutMs } = this.#options
    this.#cancelTimeout = clock.after(delayMs, () => {
      const silentMs = clock.nowMs() - this.#lastFrameAtMs
      if (silentMs < timeoutMs) this.#watchSilence(timeoutMs - silentMs)
      else this.fail(this.#timeoutError())
    })
  }

  /** A worker is silent of its own accord, or because the agent's side leaves what it has sent. */
  #timeoutError(): ProxyError {
    const afterS = this.#options.timeoutMs / 1000
    return this.#incoming.isEmpty
      ? new ProxyError('engine_timeout', `the worker sent nothing for this call in ${afterS} s`)
      : new ProxyError('agent_too_slow', `the agent read nothing of its answer in ${afterS} s`)
  }
}

const BROKEN = {
  gap: 'the worker left out a part of its answer',
  overflow: 'the worker sent more than it may before it is read',
} as const

function asWorkersFault(thrown: unknown): ProxyError {
  if (thrown instanceof RangeError) return new ProxyError('engine_failed', `the worker's ${thrown.message}`)
  return toProxyError(thrown)
}
