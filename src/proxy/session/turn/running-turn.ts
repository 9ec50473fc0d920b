/** A turn in flight: its request, the response so far, and the connections that receive the response. */
import { type ProxyError, toProxyError } from '../../../base/errors.ts'
import { CompletionBuilder } from '../../../protocol/canonical/completion.ts'
import type { EventSink, GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { OpenTurn } from '../../store/port/turn-store.ts'
import type { EngineToolCallIds, ToolCallIds } from '../matching/tool-call-ids.ts'
import type { InFlightTurn, ResponseHandle, RetryInfo } from '../state/live-turn.ts'
import type { TurnAllocation } from '../state/turn-allocation.ts'
import type { PreparedTurn } from './prepared-turn.ts'
import type { TurnLog } from './request-log.ts'

/** Callbacks to the runner of a turn. */
export interface TurnHooks {
  /** Generates the response, writes its events to the turn and commits it. @throws ProxyError the turn's failure */
  run(turn: RunningTurn): Promise<void>
  /** Returns how long the turn continues for an agent that has just disconnected, in milliseconds. */
  getGraceMs(turn: RunningTurn): number
  /**
   * Marks the committed response as undelivered.
   * @param retriesServed the number of retries that received the response
   */
  markUndelivered(turn: OpenTurn, retriesServed: number, reason?: ProxyError): Promise<void>
}

/** The turn that {@link TurnRunner} runs. */
export class RunningTurn implements InFlightTurn, PreparedTurn {
  readonly allocation: TurnAllocation
  readonly open: OpenTurn
  readonly retryInfo: RetryInfo
  readonly log: TurnLog | undefined
  readonly annotations: Record<string, unknown>
  readonly generation: GenerationRequest
  /** Resolves when the open turn is durable; rejects if it could not be stored. */
  readonly opened: Promise<void>
  readonly completion = new CompletionBuilder()
  /** Replaces the ids of tool calls in its completion. */
  readonly toolCalls: ToolCallIdReplacer
  /** The weight version that was announced at the time of dispatch. */
  weightsAtDispatch: string | undefined
  firstTokenAtMs: number | undefined
  /** Set when the turn is closed in the store, after which the end of the response may be sent. */
  endedAtMs: number | undefined
  readonly answeredRetries: number[] = []
  readonly #hooks: TurnHooks
  /** The connections to which events are written as they arrive. */
  readonly #deliveries: Delivery[] = []
  /** The outcome of the run; undefined: no connection has requested the response. */
  #outcome: Promise<void> | undefined
  readonly #subscribers: Subscribers
  /** The number of response handles, and of those that were marked as undelivered. */
  #handleCount = 0
  #undeliveredCount = 0

  /** @param opened resolves when the open turn is durable */
  constructor(
    { allocation, open, retryInfo, log, annotations, generation }: PreparedTurn,
    opened: Promise<void>,
    hooks: TurnHooks,
  ) {
    this.allocation = allocation
    this.open = open
    this.retryInfo = retryInfo
    this.log = log
    this.annotations = annotations
    this.generation = generation
    this.opened = opened
    this.toolCalls = new ToolCallIdReplacer(allocation.memory.callIds)
    this.#hooks = hooks
    this.#subscribers = new Subscribers(
      (reason) => allocation.cancel(toProxyError(reason)),
      () => hooks.getGraceMs(this),
    )
    void allocation.over.then(() => this.#subscribers.close())
    allocation.turn = this
  }

  get isDisconnected(): boolean {
    return this.#subscribers.areDisconnected
  }

  get isEnding(): boolean {
    return this.completion.end !== undefined || this.allocation.signal.aborted
  }

  get over(): Promise<void> {
    return this.allocation.over
  }

  /**
   * Creates the response handle of the connection on which the request arrived.
   * @param gone aborts when the connection closes
   */
  createFirstHandle(gone: AbortSignal): ResponseHandle {
    return this.#createHandle(gone)
  }

  join(retryCount: number, gone: AbortSignal): ResponseHandle {
    this.answeredRetries.push(retryCount)
    this.annotations.answered_retries = this.answeredRetries
    return this.#createHandle(gone)
  }

  /**
   * Writes a batch to all connections. Each of them receives it at its own pace, and the fastest one determines when
   * the engine's next batch is read.
   */
  write(batch: readonly GenerationEvent[]): Promise<void> | undefined {
    const [only] = this.#deliveries
    if (this.#deliveries.length === 1) return only!.write(batch)
    const waits = this.#deliveries
      .map((delivery) => delivery.write(batch))
      .filter((wait) => wait !== undefined)
    return waits.length < this.#deliveries.length ? undefined : Promise.race(waits)
  }

  /**
   * Delivers the response to a connection: the events so far, then the others as they arrive. The first call starts the
   * run.
   */
  async #deliver(sink: EventSink): Promise<void> {
    const delivery = new Delivery(sink)
    const hasEnded = this.endedAtMs !== undefined
    if (this.#outcome !== undefined) {
      const soFar = this.completion.getEventsSoFar().filter(({ type }) => hasEnded || type !== 'end')
      if (soFar.length > 0) void delivery.write(soFar)
    }
    if (!hasEnded) this.#deliveries.push(delivery)
    this.#outcome ??= this.#hooks.run(this)
    try {
      await this.#outcome
    } finally {
      await delivery.accepted
    }
  }

  #createHandle(gone: AbortSignal): ResponseHandle {
    this.#handleCount += 1
    let isUndelivered = false
    this.#subscribers.add(gone)
    const { open, completion, allocation } = this
    const endedAtMs = () => this.endedAtMs
    return {
      turnId: open.turnId,
      startedAtMs: open.startedAtMs,
      completion,
      signal: allocation.signal,
      deliver: (sink) => this.#deliver(sink),
      get endedAtMs() {
        return endedAtMs()
      },
      get isComplete() {
        return endedAtMs() !== undefined
      },
      markUndelivered: async (reason) => {
        if (!isUndelivered) this.#undeliveredCount += 1
        isUndelivered = true
        if (this.#undeliveredCount === this.#handleCount)
          await this.#hooks.markUndelivered(open, this.answeredRetries.length, reason)
      },
    }
  }
}

/** The delivery of a response to one connection. Batches that the connection does not accept yet are queued. */
class Delivery {
  readonly #sink: EventSink
  readonly #queue: (readonly GenerationEvent[])[] = []
  #accepted: Promise<void> | undefined

  constructor(sink: EventSink) {
    this.#sink = sink
  }

  /** Resolves when the connection has accepted all batches so far; undefined: it has accepted them. */
  get accepted(): Promise<void> | undefined {
    return this.#accepted
  }

  write(batch: readonly GenerationEvent[]): Promise<void> | undefined {
    this.#queue.push(batch)
    return this.#accepted ?? this.#flush()
  }

  #flush(): Promise<void> | undefined {
    this.#accepted = undefined
    for (let batch = this.#queue.shift(); batch !== undefined; batch = this.#queue.shift()) {
      const accepted = this.#sink.write(batch)
      if (accepted === undefined) continue
      this.#accepted = accepted.then(() => this.#flush())
      break
    }
    return this.#accepted
  }
}

/**
 * The connections that wait for the response of a turn. When the last of them has disconnected, the turn is cancelled,
 * possibly after a grace period.
 */
class Subscribers {
  readonly #cancel: (reason: unknown) => void
  readonly #graceMs: () => number
  #waiting = 0
  #grace: NodeJS.Timeout | undefined

  /**
   * @param cancel called when all connections have closed, with the reason of the last
   * @param graceMs returns how long the turn continues for a client that has disconnected and may retry
   */
  constructor(cancel: (reason: unknown) => void, graceMs: () => number) {
    this.#cancel = cancel
    this.#graceMs = graceMs
  }

  /** Adds a connection. @param gone aborts when the connection closes */
  add(gone: AbortSignal): void {
    clearTimeout(this.#grace)
    this.#waiting += 1
    if (gone.aborted) this.#leave(gone.reason)
    else gone.addEventListener('abort', () => this.#leave(gone.reason), { once: true })
  }

  /** Whether all connections have closed. */
  get areDisconnected(): boolean {
    return this.#waiting === 0
  }

  /** Stops the timer of the grace period at the end of the turn. */
  close(): void {
    clearTimeout(this.#grace)
  }

  #leave(reason: unknown): void {
    this.#waiting -= 1
    if (this.#waiting > 0) return
    const graceMs = toProxyError(reason).code === 'agent_gone' ? this.#graceMs() : 0
    if (graceMs === 0) this.#cancel(reason)
    else this.#grace = setTimeout(() => this.#cancel(reason), graceMs)
  }
}

/** The replacement of one completion's tool-call ids by proxy-generated ones. */
class ToolCallIdReplacer {
  readonly #ids: ToolCallIds
  readonly #byIndex = new Map<number, string>()
  /** The ids of the model or engine by generated id, for all tool calls so far. */
  readonly names: EngineToolCallIds = {}

  /** @param ids the session's tool-call ids */
  constructor(ids: ToolCallIds) {
    this.#ids = ids
  }

  get isEmpty(): boolean {
    return this.#byIndex.size === 0
  }

  /** Returns the events with generated ids. Events without tool calls are not changed. */
  replaceIds(events: readonly GenerationEvent[]): readonly GenerationEvent[] {
    if (!events.some((event) => event.type === 'delta' && event.toolCalls !== undefined)) return events
    return events.map((event) =>
      event.type === 'delta' && event.toolCalls !== undefined
        ? { ...event, toolCalls: event.toolCalls.map((delta) => this.#readDelta(delta)) }
        : event,
    )
  }

  /**
   * Replaces the id of a tool-call delta. The agent receives the generated id with the first delta. Engines may send
   * their id with that delta, with a later one, or with each.
   */
  #readDelta({ id: originalId, ...delta }: ToolCallDelta): ToolCallDelta {
    const assignedId = this.#byIndex.get(delta.index)
    const id = assignedId ?? this.#ids.create(originalId)
    this.#byIndex.set(delta.index, id)
    if (originalId || assignedId === undefined) {
      const name = this.names[id] ?? (originalId || null)
      this.names[id] = name
      this.#ids.learn({ [id]: name })
    }
    return assignedId === undefined ? { ...delta, id } : delta
  }
}
