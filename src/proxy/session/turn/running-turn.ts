/** A turn in flight: what was asked, what has come of its answer, and all the connections that wait for it. */
import { type ProxyError, toProxyError } from '../../../base/errors.ts'
import { CompletionBuilder } from '../../../protocol/canonical/completion.ts'
import type { GenerationEvent, GenerationStream } from '../../../protocol/canonical/events.ts'
import type { ToolCallDelta } from '../../../protocol/canonical/messages.ts'
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { OpenTurn } from '../../store/port/turn-store.ts'
import type { ToolCallIds, ToolCallNames } from '../matching/tool-call-ids.ts'
import type { AwaitedTurn, LiveTurn, TryWord } from '../state/live-turn.ts'
import type { SessionCall } from '../state/session-call.ts'
import { SharedAnswer } from './retries/shared-answer.ts'

/** What its runner does for it. */
export interface TurnHooks {
  /** Asks for the answer. Its events are pulled by one reader at a time. */
  run(turn: RunningTurn): GenerationStream
  /** How long it may go on for an agent that has lost its connection now. */
  graceMs(turn: RunningTurn): number
  /** Nobody got the committed answer. */
  undelivered(turn: OpenTurn, retriesAnswered: number, why?: ProxyError): Promise<void>
}

export class RunningTurn implements LiveTurn {
  /** Its place in the session. */
  readonly call: SessionCall
  readonly open: OpenTurn
  readonly word: TryWord
  /** What goes on record beside the columns; written when the turn is closed. */
  readonly annotations: Record<string, unknown>
  /** That it is on record; rejects if it could not be. */
  readonly opened: Promise<void>
  readonly completion = new CompletionBuilder()
  /** The tool calls of its answer. */
  readonly calls: DrawnCalls
  /** What the engine is asked. */
  readonly generation: GenerationRequest
  /** The version that was announced when the engine was asked. */
  weightsAsked: string | undefined
  firstTokenAtMs: number | undefined
  /** Set when it is closed in the store, and its end may leave. */
  endedAtMs: number | undefined
  readonly answeredRetries: number[] = []
  readonly #hooks: TurnHooks
  readonly #answer: SharedAnswer
  readonly #subscribers: Subscribers
  /** Connections that were given the answer, and those of them that it could not be handed to. */
  #given = 0
  #lost = 0

  /** @param generationOf what the engine is asked, made when the rest of the turn is there */
  constructor(
    parts: Pick<RunningTurn, 'call' | 'open' | 'word' | 'annotations' | 'opened'>,
    generationOf: (turn: RunningTurn) => GenerationRequest,
    hooks: TurnHooks,
  ) {
    const { call } = parts
    this.call = call
    this.open = parts.open
    this.word = parts.word
    this.annotations = parts.annotations
    this.opened = parts.opened
    this.calls = new DrawnCalls(call.memory.callIds)
    this.#hooks = hooks
    this.generation = generationOf(this)
    this.#answer = new SharedAnswer(hooks.run(this), this.completion)
    this.#subscribers = new Subscribers(
      (reason) => call.cancel(toProxyError(reason)),
      () => hooks.graceMs(this),
    )
    void call.over.then(() => this.#subscribers.close())
    call.turn = this
  }

  get isLost(): boolean {
    return this.#subscribers.isAway
  }

  get isEnding(): boolean {
    return this.completion.end !== undefined
  }

  get over(): Promise<void> {
    return this.call.over
  }

  /** For the connection that the call came by. @param gone aborts when it has */
  first(gone: AbortSignal): AwaitedTurn {
    return this.#give(this.#answer.read(), gone)
  }

  join(retryCount: number, gone: AbortSignal): AwaitedTurn {
    this.answeredRetries.push(retryCount)
    this.annotations.answered_retries = this.answeredRetries
    return this.#give(this.#answer.join(), gone)
  }

  #give(events: GenerationStream, gone: AbortSignal): AwaitedTurn {
    this.#given += 1
    let isLost = false
    this.#subscribers.add(gone)
    const { open, completion, call } = this
    const endedAtMs = () => this.endedAtMs
    return {
      turnId: open.turnId,
      startedAtMs: open.startedAtMs,
      completion,
      signal: call.signal,
      events,
      get endedAtMs() {
        return endedAtMs()
      },
      get isWhole() {
        return endedAtMs() !== undefined
      },
      undelivered: async (why) => {
        if (!isLost) this.#lost += 1
        isLost = true
        if (this.#lost === this.#given) await this.#hooks.undelivered(open, this.answeredRetries.length, why)
      },
    }
  }
}

/** Those who wait for the answer of one turn. When the last has gone, nobody needs it. */
class Subscribers {
  readonly #cancel: (reason: unknown) => void
  readonly #graceMs: () => number
  #waiting = 0
  #grace: NodeJS.Timeout | undefined

  /**
   * @param cancel called when all have gone, with the reason of the last
   * @param graceMs how long the turn goes on for a client whose connection was lost, and who may try again
   */
  constructor(cancel: (reason: unknown) => void, graceMs: () => number) {
    this.#cancel = cancel
    this.#graceMs = graceMs
  }

  /** @param gone aborts when it waits no more */
  add(gone: AbortSignal): void {
    clearTimeout(this.#grace)
    this.#waiting += 1
    if (gone.aborted) this.#leave(gone.reason)
    else gone.addEventListener('abort', () => this.#leave(gone.reason), { once: true })
  }

  /** All have gone, and the turn goes on for a while. */
  get isAway(): boolean {
    return this.#waiting === 0
  }

  /** The turn is over. */
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

/** The tool calls of one answer, under the ids that the agent sees. */
class DrawnCalls {
  readonly #ids: ToolCallIds
  readonly #byIndex = new Map<number, string>()
  /** Of the calls so far: drawn ids, and what the model or its engine calls them. */
  readonly names: ToolCallNames = {}

  /** @param ids of the session */
  constructor(ids: ToolCallIds) {
    this.#ids = ids
  }

  get isEmpty(): boolean {
    return this.#byIndex.size === 0
  }

  /** Events as the agent is to have them. Those without calls stay what they are. */
  read(events: readonly GenerationEvent[]): readonly GenerationEvent[] {
    if (!events.some((event) => event.type === 'delta' && event.toolCalls !== undefined)) return events
    return events.map((event) =>
      event.type === 'delta' && event.toolCalls !== undefined
        ? { ...event, toolCalls: event.toolCalls.map((piece) => this.#readPiece(piece)) }
        : event,
    )
  }

  /** A call is named with its first piece; engines may say its id with that one, with a later one, or with each. */
  #readPiece({ id: own, ...piece }: ToolCallDelta): ToolCallDelta {
    const known = this.#byIndex.get(piece.index)
    const id = known ?? this.#ids.draw(own)
    this.#byIndex.set(piece.index, id)
    if (own || known === undefined) {
      const name = this.names[id] ?? (own || null)
      this.names[id] = name
      this.#ids.learn({ [id]: name })
    }
    return known === undefined ? { ...piece, id } : piece
  }
}
