/**
 * Runs a request as a turn. The engine's events are pushed to the agent as they arrive and added to the turn. The last
 * one is deferred until the turn is durable, so that a response that an agent has received completely is never lost.
 */
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import type { EventSink, GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { CaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import type { Backend } from '../../engines/port/backend.ts'
import { isSessionMovedError } from '../../store/port/node-coordination.ts'
import type { OpenTurn, ToolCallRewritePolicy, TurnOutcome, TurnStore } from '../../store/port/turn-store.ts'
import type { ContinuationPlanner } from '../prompts/continuation.ts'
import {
  createLimitPrompt,
  createPlainPrompt,
  type MaybePromise,
  type PromptSession,
  type Prompts,
  type PromptTokens,
  type RequestPrompt,
} from '../prompts/prompts.ts'
import { Activity } from '../state/activity.ts'
import type { LiveSession } from '../state/live-session.ts'
import type { SessionReference } from '../state/live-sessions.ts'
import type { ResponseHandle, RetryInfo } from '../state/live-turn.ts'
import { findPolicy } from '../state/policies.ts'
import type { SessionMemory } from '../state/session-memory.ts'
import type { Sessions, TurnAllocation } from '../state/sessions.ts'
import { readSamplingParams, type SessionConfig } from '../state/turn-allocation.ts'
import type { AgentRequest } from './agent-request.ts'
import { CloseRetries } from './close-retries.ts'
import {
  applyOverrides,
  applySessionConfig,
  prepareTurn,
  type RequestTexts,
  serializeRequestTexts,
  toParamsText,
} from './prepared-turn.ts'
import { ResponseContinuation } from './response-continuation.ts'
import { findOriginalAttempt } from './retries/find-original-attempt.ts'
import { redeliver } from './retries/redelivery.ts'
import { mayBeRetry } from './retries/select-original-attempt.ts'
import { RunningTurn, type TurnHooks } from './running-turn.ts'
import {
  addFallbackValues,
  rejectUnserializable,
  toLostOutcome,
  toOutcome,
  toTurnEnd,
  withUsage,
} from './turn-record.ts'
import type { WeightAnnouncement } from './weight-announcement.ts'

export type { ResponseHandle } from '../state/live-turn.ts'
export type { AgentRequest, RequestMetadata } from './agent-request.ts'

/** The options of {@link TurnRunner}. */
interface TurnRunnerOptions {
  sessions: Sessions
  backend: Backend
  /** Builds or forwards prompts. Absent: requests are forwarded unchanged, and nothing is cached. */
  prompts?: Prompts
  store: TurnStore
  logger: Logger
  /** A model name that replaces the requested one, unless the session has a policy. */
  model?: string | undefined
  /** The announced weight version, which is recorded if an engine reports none. */
  weights?: WeightAnnouncement
  /** The captured data besides ids and logprobs, unless the session configures it. */
  record?: CaptureOptions | undefined
  /** The kind of logprobs that is recorded if an engine reports none. */
  logprobsMode?: string | undefined
  /** Whether a response continues after its engine request was cut, unless the session configures it. Default: no. */
  continueResponses?: boolean
  /** The tool-call rewrite policy, unless the session configures it. Default: `auto`. */
  editedCalls?: ToolCallRewritePolicy
  /** Receives an event when a turn is opened or closed. */
  activity?: Activity
  /** Called for each completed turn with exact ids of at least one sampled token, once it is durable. */
  onTrainable?: ((turn: TurnKey) => void) | undefined
  clock?: () => number
  /** How long a turn continues after its agent has disconnected, if the agent may retry. Default: 0. */
  retryGraceMs?: number
}

/**
 * The maximum number of turns in a session that continue for disconnected agents. Without it, an agent that disconnects
 * from each request could leave any number of turns running.
 */
const MAX_DISCONNECTED = 8

/** The runner of the turns of all sessions. */
export class TurnRunner {
  readonly #options: TurnRunnerOptions
  readonly #clock: () => number
  readonly #activity: Activity
  readonly #unclosed: CloseRetries
  #isDraining = false

  constructor(options: TurnRunnerOptions) {
    this.#options = options
    this.#clock = options.clock ?? Date.now
    this.#activity = options.activity ?? new Activity()
    this.#unclosed = new CloseRetries(options.store)
  }

  /**
   * Opens a turn in the session, which is created if necessary, and returns its response handle. The request is
   * dispatched when the handle's `deliver` is called. A retry receives a handle of its original attempt, if that has a
   * response.
   * @param agentSignal aborts when the agent has disconnected, with the ProxyError to record as its reason
   * @throws ProxyError `shutting_down`, `session_not_found`, `session_ended`, `limit_reached`, `store_failed`; from
   *   `deliver`: see {@link Prompts.begin} and {@link Backend.generate}
   */
  async begin(agentRequest: AgentRequest, agentSignal: AbortSignal): Promise<ResponseHandle> {
    if (this.isDraining)
      throw new ProxyError('shutting_down', 'llm-proxy is shutting down', { retryAfterS: 1 })
    const { sessions } = this.#options
    // A separate reference is needed, because the caller disposes its own when the agent disconnects.
    using session = agentRequest.session.retain()
    // Serialize before allocating an index: a request that cannot be serialized must not consume one.
    const early = session.memory
    const written = serializeRequestTexts(agentRequest.request, early)
    // The choices of one request share its key. Retries without a key must not run in parallel either, because each of
    // them repeats another attempt.
    const { choice, metadata } = agentRequest
    const { idempotencyKey: key } = metadata
    const hasOthers = choice === undefined && (key !== undefined || mayBeRetry(metadata, undefined))
    using _lock = hasOthers ? await session.live.serializeAttempts(key ?? written.lastMessage) : undefined
    const isRetry = hasOthers && mayBeRetry(metadata, session.memory.idempotencyKeys)
    const firstAttempt = isRetry
      ? await this.#joinFirstAttempt(agentRequest, written, session, agentSignal)
      : undefined
    if (firstAttempt !== undefined) return firstAttempt
    const allocation = await sessions.allocateTurn(session, agentRequest.metadata.keyTag)
    try {
      const { memory } = allocation
      // The session has no turns yet, so the cache is complete.
      if (allocation.index === 0) {
        memory.isComplete = true
        memory.callIds.isComplete = true
        memory.idempotencyKeys ??= new Set()
      }
      this.#applyRewritePolicy(memory, allocation.config)
      // The session may have been reset while the request waited for its index, which replaces the cache.
      const request = memory === early ? written : serializeRequestTexts(agentRequest.request, memory)
      return this.#open(agentRequest, request, allocation).createFirstHandle(agentSignal)
    } catch (error) {
      // End the allocation, because the end of the session would wait for it.
      allocation.reportClosed()
      throw error
    }
  }

  /**
   * Counts the tokens of the prompt that a request with this body would have. Neither records a turn nor creates a
   * session.
   * @throws ProxyError as {@link TokenCounter}; `store_failed`
   */
  async countTokens(sessionId: string | undefined, body: ChatBody, signal: AbortSignal): Promise<number> {
    const { backend, prompts } = this.#options
    return await this.#withSessionConfig(sessionId, body, async (configured, session) =>
      prompts === undefined
        ? await backend.countTokens(configured, signal, session?.sessionId)
        : await prompts.countTokens(configured, signal, session),
    )
  }

  /** Returns the token ids that {@link countTokens} counts. Requires {@link tokens}. */
  async getPromptIds(sessionId: string, body: ChatBody): Promise<TokenIds> {
    return await this.#withSessionConfig(
      sessionId,
      body,
      async (...args) => await this.tokens!.getIds(...args),
    )
  }

  /** The prompts of token mode; undefined in chat mode, where engines render prompts. */
  get tokens(): PromptTokens | undefined {
    return this.#options.prompts?.tokens
  }

  /** Calls `read` with the body that a request would have in the session, which need not exist. */
  async #withSessionConfig<T>(
    sessionId: string | undefined,
    body: ChatBody,
    read: (configured: ChatBody, session?: PromptSession) => Promise<T>,
  ): Promise<T> {
    const { sessions } = this.#options
    const session = sessionId === undefined ? undefined : await sessions.find(sessionId)
    const samplingParams = session === undefined ? {} : readSamplingParams(session)
    const model = findPolicy(session?.policies ?? {}) ?? this.#options.model
    const configured = applyOverrides({ kind: 'chat', body }, samplingParams, model).body as ChatBody
    if (session === undefined) return await read(configured)
    using reference = sessions.acquire(session.sessionId)
    const { memory } = reference
    this.#applyRewritePolicy(memory, session)
    return await read(configured, { sessionId: session.sessionId, memory })
  }

  /** Sets the policy of a session's cache. Must be called before turns are added, because it determines their index. */
  #applyRewritePolicy(memory: SessionMemory, { editedCalls }: Pick<SessionConfig, 'editedCalls'>): void {
    memory.editedCalls = editedCalls ?? this.#options.editedCalls ?? 'auto'
  }

  #open(agentRequest: AgentRequest, written: RequestTexts, allocation: TurnAllocation): RunningTurn {
    const { model, store, record = {} } = this.#options
    const prepared = prepareTurn(agentRequest, written, allocation, {
      model,
      record,
      startedAtMs: this.#clock(),
    })
    const { open, retryInfo } = prepared
    if (retryInfo.idempotencyKey !== undefined)
      allocation.memory.idempotencyKeys?.add(retryInfo.idempotencyKey)
    const opened = store.openTurn(open)
    // The promise is awaited before the turn is closed. Until then, a rejection needs a handler.
    opened.catch(() => allocation.freeIndex())
    this.#activity.emit({ type: 'turn_opened', session_id: open.sessionId, index: open.index })
    return new RunningTurn(prepared, opened, this.#createHooks(agentRequest))
  }

  #createHooks({ stream, choice, session }: AgentRequest): TurnHooks {
    return {
      run: (turn) => this.#run(turn),
      // A turn of several choices does not continue, because a retry cannot join it.
      getGraceMs: ({ retryInfo, firstTokenAtMs }) =>
        choice ? 0 : this.#computeGraceMs(session.live, retryInfo, stream && firstTokenAtMs !== undefined),
      markUndelivered: (turn, retriesServed, reason) => this.#markUndelivered(turn, retriesServed, reason),
    }
  }

  /** Returns a response handle of the original attempt, if its response is available. */
  async #joinFirstAttempt(
    agentRequest: AgentRequest,
    written: RequestTexts,
    { live, memory }: SessionReference,
    gone: AbortSignal,
  ): Promise<ResponseHandle | undefined> {
    const { dialect, metadata } = agentRequest
    const { sessionId } = live
    const { sessions, store, model } = this.#options
    const session = await sessions.find(sessionId)
    if (session?.status !== 'active') return undefined
    const config = { ...session, samplingParams: readSamplingParams(session) }
    const params = toParamsText(applySessionConfig(agentRequest, config, model).request)
    const { first, idempotencyKeys } = await findOriginalAttempt(store, live, metadata, {
      ...written,
      dialect,
      params,
    })
    memory.idempotencyKeys ??= idempotencyKeys
    if (first === undefined) return undefined
    if ('running' in first) {
      agentRequest.log?.logJoined(first.running.open.turnId, metadata.retryCount)
      return first.running.join(metadata.retryCount, gone)
    }
    const of = { sessionId, turnId: first.recorded }
    const redelivery = await redeliver(store, of, metadata.retryCount)
    if (redelivery) agentRequest.log?.logRedelivered(of.turnId, metadata.retryCount)
    return (
      redelivery && {
        ...redelivery,
        signal: gone,
        isComplete: true,
        markUndelivered: (reason) => this.#markUndelivered(of, redelivery.retriesServed, reason),
      }
    )
  }

  /**
   * Returns how long a turn continues for a disconnected agent, in milliseconds.
   * @param hasBegun whether a part of the stream was sent: SDKs retry a request only if they have received nothing
   */
  #computeGraceMs(
    session: LiveSession,
    { sendsRetryCount, idempotencyKey }: RetryInfo,
    hasBegun: boolean,
  ): number {
    const mayReturn = (sendsRetryCount && !hasBegun) || idempotencyKey !== undefined
    // The session's turns include this one.
    const disconnected = session.turns.filter(({ isDisconnected }) => isDisconnected)
    const isOneTooMany = this.isDraining || disconnected.length > MAX_DISCONNECTED
    return mayReturn && !isOneTooMany ? (this.#options.retryGraceMs ?? 0) : 0
  }

  /** Marks a committed response as undelivered. Logs a failure to do so. */
  async #markUndelivered(
    { sessionId, turnId }: TurnKey,
    retriesServed: number,
    reason = createAgentGoneError(),
  ): Promise<void> {
    const { store, logger } = this.#options
    const { code, message } = reason
    try {
      await store.markUndelivered(sessionId, turnId, { code, message }, retriesServed)
    } catch (error) {
      logEvent(logger, 'turn_not_updated', { session_id: sessionId, turn_id: turnId, err: error })
    }
  }

  get isDraining(): boolean {
    return this.#isDraining
  }

  /** Runs a turn and records its end. @throws ProxyError the turn's failure */
  async #run(turn: RunningTurn): Promise<void> {
    const { allocation } = turn
    const { signal } = allocation
    let failure: ProxyError | undefined
    let prompt: RequestPrompt | undefined
    try {
      signal.throwIfAborted()
      // This value is recorded if no engine is used, because the prompt fills the context or the session has reached a
      // limit.
      turn.weightsAtDispatch = this.#options.weights?.version
      prompt = await this.#planPrompt(turn)
      signal.throwIfAborted()
      const last = await this.#generate(turn, prompt)
      await this.#close(turn, toOutcome(turn, 'completed', null, this.#clock()))
      // The turn is durable, but its agent has not received the end of the response. Every request that continues the
      // turn therefore arrives after this call, and finds the turn in the cache.
      prompt.onCommitted(turn.completion)
      void turn.write([last])
    } catch (thrown) {
      failure = toProxyError(signal.aborted ? signal.reason : thrown)
      throw failure
    } finally {
      try {
        prompt?.close?.()
        if (turn.endedAtMs === undefined && failure) await this.#closeQuietly(turn, failure)
      } finally {
        // Without this, the end of the session and the drain would wait for the turn.
        allocation.reportClosed()
      }
    }
  }

  #planPrompt({ generation, allocation: { budget, memory } }: RunningTurn): MaybePromise<RequestPrompt> {
    if (budget.reached !== undefined) return createLimitPrompt(generation, budget.reached)
    const { prompts } = this.#options
    return prompts ? prompts.begin(generation, memory, budget) : createPlainPrompt(generation)
  }

  /** Generates the response, and writes all its events except the last one to the turn. @returns the last event */
  async #generate(turn: RunningTurn, prompt: RequestPrompt): Promise<GenerationEvent> {
    const { allocation } = turn
    let last: GenerationEvent | undefined
    let prepared: Promise<void> | undefined
    const receive = (events: readonly GenerationEvent[]) => {
      const batch = turn.toolCalls.replaceIds(events)
      last = this.#addBatch(turn, batch)
      const passed = last ? batch.slice(0, -1) : batch
      return passed.length > 0 ? turn.write(passed) : undefined
    }
    const read = (events: readonly GenerationEvent[]) => {
      const converted = prompt.read(events)
      return converted instanceof Promise ? converted.then(receive) : receive(converted)
    }
    const sink = {
      write: (events: readonly GenerationEvent[]) =>
        prepared ? prepared.then(() => read(events)) : read(events),
    }
    const { backend, weights } = this.#options
    const onDispatched = () => {
      turn.weightsAtDispatch = weights?.version
    }
    const request = { ...prompt.request, onDispatched }
    const generated = prompt.response
      ? sink.write(prompt.response)
      : (allocation.config.continueResponses ?? this.#options.continueResponses)
        ? this.#generateContinued(turn, { request, continuation: prompt.continuation }, sink)
        : backend.generate(request, sink, allocation.signal)
    generated?.catch(() => {})
    try {
      prepared = prompt.prepareToRead() || undefined
      if (prepared) await prepared
      prepared = undefined
    } catch (thrown) {
      allocation.cancel(toProxyError(thrown))
    }
    await generated
    if (!last) throw new ProxyError('engine_lost', 'The engine ended its response without a finish reason')
    return last
  }

  async #generateContinued(
    turn: RunningTurn,
    { request, continuation }: { request: GenerationRequest; continuation: ContinuationPlanner | undefined },
    sink: EventSink,
  ): Promise<void> {
    const { backend, weights } = this.#options
    const announcedVersion = () => weights?.version
    const response = new ResponseContinuation({ backend, request, continuation, announcedVersion })
    try {
      await response.pushTo(sink, turn.allocation.signal)
    } finally {
      turn.annotations.engine_requests = response.engineRequests
    }
  }

  /**
   * Rejects new requests, waits for those in flight, and cancels those that remain after the grace period.
   * @returns whether every request ended without being cancelled
   */
  async drain(graceMs: number): Promise<boolean> {
    this.#isDraining = true
    const drained = await this.#options.sessions.drain(graceMs)
    this.#unclosed.stop()
    return drained
  }

  /** Adds a batch of events to the turn's completion. @returns the `end` event, if it is the last of this batch */
  #addBatch(turn: RunningTurn, batch: readonly GenerationEvent[]): GenerationEvent | undefined {
    const { weights, logprobsMode } = this.#options
    const stamps = { weightsAtDispatch: turn.weightsAtDispatch, weightsNow: weights?.version, logprobsMode }
    let last: GenerationEvent | undefined
    for (const event of batch) {
      if (event.type === 'delta' && turn.firstTokenAtMs === undefined) this.#beginTokens(turn)
      rejectUnserializable(event)
      last = event.type === 'end' ? withUsage(event, turn.completion) : undefined
      turn.completion.add(addFallbackValues(last ?? event, stamps))
    }
    return last
  }

  #beginTokens(turn: RunningTurn): void {
    turn.firstTokenAtMs = this.#clock()
    turn.log?.logFirstToken(turn.firstTokenAtMs)
  }

  /** Commits the end of a turn. @throws ProxyError `store_failed`, `session_moved` */
  async #close(turn: RunningTurn, outcome: TurnOutcome): Promise<void> {
    const { status, endedAtMs } = outcome
    const { length: promptTokens } = outcome.promptTokenIds
    const { length: sampledTokens } = outcome.completionTokenIds
    const { startedAtMs } = turn.open
    turn.allocation.countUsage({ status, engine: outcome.engine, startedAtMs, promptTokens, sampledTokens })
    const closed = this.#options.store.closeTurn(outcome)
    // Both writes must have succeeded: closing a turn whose opening failed finds no row, and records nothing.
    await Promise.all([turn.opened, closed]).catch((error: unknown) => {
      if (isSessionMovedError(error)) void this.#options.sessions.handleOwnershipLoss(turn.open.sessionId)
      throw error
    })
    turn.endedAtMs = endedAtMs
    turn.log?.logCommitted(outcome, { promptTokens, sampledTokens }, turn.answeredRetries.length)
    if (status === 'completed' && outcome.exact && sampledTokens > 0) this.#options.onTrainable?.(turn.open)
    const { sessionId: session_id, index } = turn.open
    const { finishReason: finish_reason } = outcome
    this.#activity.emit({ type: 'turn_closed', session_id, index, status, finish_reason })
  }

  /** Commits the end of a failed turn. If the store fails, logs that and retries later. */
  async #closeQuietly(turn: RunningTurn, failure: ProxyError): Promise<void> {
    const outcome = this.#toFailedOutcome(turn, failure)
    try {
      await this.#close(turn, outcome)
    } catch (error) {
      // The new owner node of the session has closed the turn.
      if (isSessionMovedError(error)) return
      this.#logNotRecorded(turn, error)
      // A turn whose opening failed has no row that could be closed.
      turn.opened.then(
        () => this.#unclosed.add(outcome),
        () => {},
      )
    }
  }

  /** Returns the record of a failed turn; without its response, if that cannot be serialized. */
  #toFailedOutcome(turn: RunningTurn, failure: ProxyError): TurnOutcome {
    const status = failure.code === 'agent_gone' || failure.code === 'turn_cancelled' ? 'aborted' : 'failed'
    const endedAtMs = this.#clock()
    try {
      return toOutcome(turn, status, failure, endedAtMs)
    } catch (error) {
      this.#logNotRecorded(turn, error)
      const end = toTurnEnd(turn, status, failure, endedAtMs)
      return toLostOutcome(end, 'the response could not be serialized')
    }
  }

  #logNotRecorded({ open: { sessionId, turnId } }: RunningTurn, err: unknown): void {
    logEvent(this.#options.logger, 'turn_not_recorded', { session_id: sessionId, turn_id: turnId, err })
  }
}

/** The ids by which the store identifies a turn. */
type TurnKey = Pick<OpenTurn, 'sessionId' | 'turnId'>

function createAgentGoneError(): ProxyError {
  return new ProxyError('agent_gone', 'The agent disconnected before its response')
}
