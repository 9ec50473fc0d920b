/**
 * Measures turns by intercepting the store (turns are opened and closed) and the backend (responses arrive). Each chunk
 * of a response costs one reading of the clock; all other work is done once per turn.
 */

import { ProxyError } from '../../base/errors.ts'
import { type Interceptor, intercept } from '../../base/interceptor.ts'
import type { EventSink } from '../../protocol/canonical/events.ts'
import { readEffortChange } from '../../protocol/canonical/reasoning-effort.ts'
import type { Backend } from '../engines/port/backend.ts'
import { readEchoAnnotation } from '../session/prompts/echo-annotation.ts'
import { getInexactCode } from '../session/prompts/exactness.ts'
import { readAnsweredRetries } from '../store/port/answered-retries.ts'
import type { OpenTurn, SessionRecord, TurnOutcome, TurnStore } from '../store/port/turn-store.ts'
import type { Metrics } from './metrics.ts'

/** The times of one turn, in milliseconds of a monotonic clock. */
interface TurnTimes {
  readonly dialect: string
  readonly openedAtMs: number
  isStreamed: boolean
  dispatchedAtMs?: number
  firstChunkAtMs?: number
  lastChunkAtMs?: number
  longestGapMs: number
}

/** Finish reasons with a label value each; all others are counted as `other`. */
const FINISH_REASONS = new Set(['stop', 'length', 'tool_calls', 'content_filter'])

/** An observer of turns that updates their metrics. */
export class TurnWatch {
  readonly #metrics: Metrics
  /** Open turns by turn id. */
  readonly #turns = new Map<string, TurnTimes>()

  constructor(metrics: Metrics) {
    this.#metrics = metrics
  }

  /** Returns the number of open turns. */
  get openCount(): number {
    return this.#turns.size
  }

  /** Wraps a store. @returns a store that counts each write */
  watchStore(store: TurnStore): TurnStore {
    const metrics = this.#metrics
    return intercept(store, {
      openTurn: (call, turn) => {
        this.#open(turn)
        return call()
      },
      closeTurn: (call, outcome) => this.#close(call, outcome),
      markRedelivered: async (call) => {
        const answered = await call()
        if (answered !== undefined) metrics.answeredRetries.add(1, 'recorded')
        return answered
      },
      ...createSessionWatch(metrics),
    })
  }

  /** Wraps a backend. @returns the backend, with the responses of turns timed */
  watchBackend<T extends Backend>(backend: T): T {
    const around: Interceptor<Backend> = {
      generate: (call, request, sink, signal) => {
        const turn = this.#turns.get(request.requestId)
        if (turn === undefined) return call()
        turn.dispatchedAtMs = performance.now()
        turn.isStreamed = request.stream
        return call(request, timeChunks(sink, turn), signal)
      },
    }
    return intercept(backend, around as Interceptor<T>)
  }

  #open({ turnId, dialect, retryCount }: OpenTurn): void {
    const turn = { dialect, openedAtMs: performance.now(), isStreamed: false, longestGapMs: 0 }
    this.#turns.set(turnId, turn)
    if (retryCount > 0) this.#metrics.retries.add(1)
  }

  /** Closes a turn. The outcome is read before the store takes ownership of its arrays. */
  #close(call: () => Promise<void>, outcome: TurnOutcome): Promise<void> {
    const turn = this.#turns.get(outcome.turnId)
    if (turn === undefined) return call()
    this.#turns.delete(outcome.turnId)
    const closedAtMs = performance.now()
    this.#count(turn, outcome)
    if (outcome.status === 'completed') this.#countResponse(turn, outcome, closedAtMs)
    const closed = call()
    closed.then(
      () => this.#countCommitted(turn, outcome, closedAtMs),
      (error) => countFailure(this.#metrics, error),
    )
    return closed
  }

  #count({ dialect }: TurnTimes, { status, error, annotations }: TurnOutcome): void {
    const { turns, turnErrors, lines, echoes, answeredRetries, adaptedEfforts } = this.#metrics
    turns.add(1, dialect, status)
    const joined = readAnsweredRetries({ annotations }).length
    if (joined > 0) answeredRetries.add(joined, 'running')
    lines.add(1, readAgentRole(annotations))
    for (const kind of readEchoAnnotation({ annotations })?.kinds ?? []) echoes.add(1, kind)
    const effort = readEffortChange({ annotations })
    if (effort) adaptedEfforts.add(1, effort.requested, effort.sent ?? 'omitted')
    if (error) turnErrors.add(1, error.code)
  }

  #countResponse(turn: TurnTimes, outcome: TurnOutcome, closedAtMs: number): void {
    const metrics = this.#metrics
    const { finishReason, inexactReason, weightVersionStart, weightVersionEnd } = outcome
    metrics.finishReasons.add(1, FINISH_REASONS.has(finishReason ?? '') ? finishReason! : 'other')
    if (inexactReason !== null) metrics.inexact.add(1, getInexactCode(inexactReason))
    if (weightVersionStart !== weightVersionEnd) metrics.weightChanges.add(1)
    const { prompt, completion } = getTokenCounts(outcome)
    metrics.promptTokens.add(prompt)
    metrics.completionTokens.add(completion)
    const reused = readReusedTokens(outcome.annotations)
    if (reused !== undefined) {
      metrics.reusedTokens.add(reused)
      metrics.renderedTokens.add(Math.max(0, prompt - reused))
    }
    if (turn.isStreamed) this.#countStream(turn, outcome.turnId, completion)
    if (turn.dispatchedAtMs === undefined || turn.lastChunkAtMs === undefined) return
    metrics.overhead.observe((turn.dispatchedAtMs - turn.openedAtMs) / 1_000, 'before')
    metrics.overhead.observe((closedAtMs - turn.lastChunkAtMs) / 1_000, 'after')
  }

  #countStream(turn: TurnTimes, turnId: string, tokens: number): void {
    const { firstToken, perToken, longestGap } = this.#metrics
    const { openedAtMs, firstChunkAtMs: firstMs, lastChunkAtMs: lastMs, longestGapMs } = turn
    if (firstMs === undefined || lastMs === undefined) return
    firstToken.observeTurn((firstMs - openedAtMs) / 1_000, turnId)
    // A response that arrived in one chunk has no time between tokens.
    if (lastMs === firstMs || tokens < 2) return
    perToken.observeTurn((lastMs - firstMs) / 1_000 / (tokens - 1), turnId)
    longestGap.observeTurn(longestGapMs / 1_000, turnId)
  }

  #countCommitted({ openedAtMs }: TurnTimes, { status, turnId }: TurnOutcome, closedAtMs: number): void {
    const nowMs = performance.now()
    this.#metrics.overhead.observe((nowMs - closedAtMs) / 1_000, 'commit')
    if (status === 'completed') this.#metrics.duration.observeTurn((nowMs - openedAtMs) / 1_000, turnId)
  }
}

/** Returns a sink that records the arrival times of the chunks of a response before it forwards them. */
function timeChunks(sink: EventSink, turn: TurnTimes): EventSink {
  return {
    write(events) {
      // A batch that only reports the start of the generation contains no output.
      if (events.at(-1)?.type !== 'start') {
        const nowMs = performance.now()
        turn.firstChunkAtMs ??= nowMs
        turn.longestGapMs = Math.max(turn.longestGapMs, nowMs - (turn.lastChunkAtMs ?? nowMs))
        turn.lastChunkAtMs = nowMs
      }
      return sink.write(events)
    },
  }
}

function createSessionWatch(metrics: Metrics): Interceptor<TurnStore> {
  const countResult = <T>(written: Promise<T>, count: (value: T) => void): Promise<T> => {
    written.then(count, (error) => countFailure(metrics, error))
    return written
  }
  return {
    createSession: (call) =>
      countResult(call(), ({ created }) => metrics.sessionsCreated.add(created ? 1 : 0)),
    endSession: (call, _id, status, atMs) =>
      countResult(call(), (session) => countEnd(metrics, session, status, atMs)),
    setReward: (call, _id, { reward }) =>
      countResult(call(), (session) => {
        if (session) metrics.reward.observe(reward)
      }),
    changeMarks: (call) => countResult(call(), () => {}),
    resetSession: (call) => countResult(call(), () => {}),
    deleteSession: (call) => countResult(call(), () => {}),
    sweep: (call) => countResult(call(), () => {}),
  }
}

/** Counts the end of a session, unless the session had ended before. */
function countEnd(metrics: Metrics, session: SessionRecord | undefined, status: string, atMs: number): void {
  if (session?.endedAtMs !== atMs) return
  metrics.sessionsEnded.add(1, status)
  metrics.sessionTurns.observe(session.turnCount)
}

function countFailure(metrics: Metrics, error: unknown): void {
  if (error instanceof ProxyError && error.code === 'store_failed') metrics.storeFailures.add(1)
}

/** Returns the token counts of a turn: of its ids, or the counts that the engine reported if it reported no ids. */
function getTokenCounts({ promptTokenIds, completionTokenIds, usage }: TurnOutcome) {
  if (promptTokenIds.length > 0 || usage === null) {
    return { prompt: promptTokenIds.length, completion: completionTokenIds.length }
  }
  const counts = JSON.parse(usage) as { prompt_tokens?: number; completion_tokens?: number }
  return { prompt: counts.prompt_tokens ?? 0, completion: counts.completion_tokens ?? 0 }
}

/** Reads the number of reused prompt tokens from the annotations of a turn; undefined in chat mode. */
function readReusedTokens(annotations: string): number | undefined {
  const match = /"reused_tokens":(\d+)/.exec(annotations)
  return match ? Number(match[1]) : undefined
}

/** Reads the declared agent role from the annotations of a turn; all sub-agents count as one role. */
function readAgentRole(annotations: string): string {
  return /"line":\{"told":"(main|subagent|compaction|side)/.exec(annotations)?.[1] ?? 'untold'
}
