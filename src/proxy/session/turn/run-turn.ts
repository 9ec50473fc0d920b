/**
 * The use case: one LLM call becomes one turn. The call's events pass through to the agent as they come and are
 * folded into the turn on the way; the last one is held back until the turn is on disk, so that an answer which an
 * agent has read to its end is never lost.
 */
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import type { GenerationEvent, GenerationStream } from '../../../protocol/canonical/events.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'
import type { CaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { Backend } from '../../engines/port/backend.ts'
import { isMoved } from '../../store/port/shared-record.ts'
import type { EditedCalls, OpenTurn, TurnOutcome, TurnStore } from '../../store/port/turn-store.ts'
import {
  type CallPrompt,
  endAtLimit,
  type PromptSession,
  type Prompts,
  type PromptTokens,
  plainPrompt,
} from '../prompts/prompts.ts'
import { Activity } from '../state/activity.ts'
import { withinBudget } from '../state/limits.ts'
import type { UsedSession } from '../state/live-sessions.ts'
import type { AwaitedTurn, TryWord } from '../state/live-turn.ts'
import { policyOf } from '../state/policies.ts'
import type { SessionCall, Sessions } from '../state/sessions.ts'
import { type AgentCall, agentLeft } from './agent-call.ts'
import type { AnnouncedWeights } from './announced-weights.ts'
import { applyOverrides, askedTurn, generationRequest, underRules } from './asked-turn.ts'
import { findFirstTry } from './retries/find-first-try.ts'
import { mayBeRetry } from './retries/first-try.ts'
import { giveAgain } from './retries/recorded-answer.ts'
import { RunningTurn, type TurnHooks } from './running-turn.ts'
import { stamped, withUsage } from './stamped-events.ts'
import { refuseUnwritable, turnOutcome } from './turn-record.ts'
import { UnclosedTurns } from './unclosed-turns.ts'
import { jsonAtHand, paramsText, type WrittenRequest, writeRequest } from './written-request.ts'

export type { AwaitedTurn } from '../state/live-turn.ts'
export type { AgentCall, AgentWord } from './agent-call.ts'

interface TurnRunnerOptions {
  sessions: Sessions
  backend: Backend
  /** How prompts come about. Absent: the engine's business, and nothing of them is remembered. */
  prompts?: Prompts
  store: TurnStore
  logger: Logger
  /** Model name that replaces the one agents ask for. */
  model?: string | undefined
  /** What a turn is recorded under when its engine does not tell its weight version. */
  weights?: AnnouncedWeights
  /** What turns are recorded with beyond ids and logprobs, where their session does not say. */
  record?: CaptureOptions | undefined
  /** What logprobs are of, of engines that do not tell it; recorded as it is. */
  logprobsMode?: string | undefined
  /** What becomes of calls that agents send back otherwise than they were sampled, where their session does not say. */
  editedCalls?: EditedCalls
  /** Called when turns open and close. */
  activity?: Activity
  /** Called for each completed turn that can be trained on, once it is on disk. */
  onTrainable?: ((turn: TurnName) => void) | undefined
  clock?: () => number
  /** How long a turn goes on for an agent that has lost its connection and may try again; default: not at all. */
  retryGraceMs?: number
}

/** Of a session. An agent that leaves each call could otherwise have any number of them run for nobody. */
const MAX_AWAY = 8

export class TurnRunner {
  readonly #options: TurnRunnerOptions
  readonly #clock: () => number
  readonly #activity: Activity
  readonly #unclosed: UnclosedTurns
  #isDraining = false

  constructor(options: TurnRunnerOptions) {
    this.#options = options
    this.#clock = options.clock ?? Date.now
    this.#activity = options.activity ?? new Activity()
    this.#unclosed = new UnclosedTurns(options.store)
  }

  /**
   * Opens a turn in the session (which is made if there is none) and returns its events; nothing is asked of an
   * engine before the first of them is pulled. A retry gets the turn of its first try, if that has an answer.
   * @param agentSignal aborts when the agent has gone, with the ProxyError to record as its reason
   * @throws ProxyError `shutting_down`, `session_not_found`, `session_ended`, `limit_reached`, `store_failed`; from `events`: as
   *   {@link Prompts.begin} and {@link Backend.generate}
   */
  async begin(call: AgentCall, agentSignal: AbortSignal): Promise<AwaitedTurn> {
    if (this.isDraining)
      throw new ProxyError('shutting_down', 'llm-proxy is shutting down', { retryAfterS: 1 })
    const { sessions } = this.#options
    const { idempotencyKey: key } = call.word
    using used = sessions.use(call.sessionId)
    // Answers to one call share its name.
    using _turn = key && !call.choice ? await used.live.inTurn(key) : undefined
    // Before the call has its place in the session: one that cannot be written down must not take it.
    const early = used.memory
    const written = writeRequest(call.request, early)
    const isRetry = call.choice === undefined && mayBeRetry(call.word, early.idempotencyKeys)
    const tried = isRetry ? await this.#firstTry(call, written, used, agentSignal) : undefined
    if (tried !== undefined) return tried
    const place = await sessions.beginCall(call.sessionId, call.word.keyTag)
    try {
      const { memory } = place
      // Nothing is on record that this memory could lack.
      if (place.index === 0) {
        memory.isWhole = true
        memory.callIds.isWhole = true
        memory.idempotencyKeys ??= new Set()
      }
      memory.editedCalls = place.rules.editedCalls ?? this.#options.editedCalls ?? 'auto'
      // The session may have been reset, and its memory with it, while the call waited for its place.
      const request = memory === early ? written : writeRequest(call.request, memory)
      return this.#open(call, request, place).first(agentSignal)
    } catch (error) {
      // Nobody else would give its place back, and the session's end would wait for it.
      place.done()
      throw error
    }
  }

  /**
   * Counts the tokens of the prompt that a call with this body would have now. Nothing is recorded, and no session is
   * made. @throws ProxyError as {@link CountTokens}, `store_failed`
   */
  async countTokens(sessionId: string | undefined, body: ChatBody, signal: AbortSignal): Promise<number> {
    const { backend, prompts } = this.#options
    return await this.#asIn(sessionId, body, async (asked, session) =>
      prompts === undefined
        ? await backend.countTokens(asked, signal, session?.sessionId)
        : await prompts.countTokens(asked, signal, session),
    )
  }

  /** As {@link countTokens}, the tokens themselves. To be called only where there are {@link tokens}. */
  async promptIds(sessionId: string, body: ChatBody): Promise<number[]> {
    return await this.#asIn(sessionId, body, async (...asked) => await this.tokens!.idsOf(...asked))
  }

  /** Absent in chat mode: engines make the prompts. */
  get tokens(): PromptTokens | undefined {
    return this.#options.prompts?.tokens
  }

  /** With the body that a call would have in the session, which need not be there. */
  async #asIn<T>(
    sessionId: string | undefined,
    body: ChatBody,
    read: (asked: ChatBody, session?: PromptSession) => Promise<T>,
  ): Promise<T> {
    const { sessions } = this.#options
    const session = sessionId === undefined ? undefined : await sessions.find(sessionId)
    const { samplingParams = {}, policies = {} } = session ?? {}
    const model = policyOf(policies) ?? this.#options.model
    const asked = applyOverrides({ kind: 'chat', body }, samplingParams, model).body as ChatBody
    if (session === undefined) return await read(asked)
    using used = sessions.use(session.sessionId)
    return await read(asked, { sessionId: session.sessionId, memory: used.memory })
  }

  #open(agentCall: AgentCall, written: WrittenRequest, call: SessionCall): RunningTurn {
    const { sessionId, word, messagesJson } = agentCall
    const { memory, rules } = call
    if (word.idempotencyKey !== undefined) memory.idempotencyKeys?.add(word.idempotencyKey)
    const { model, store, weights, record = {} } = this.#options
    const asked = askedTurn(agentCall, written, call, { model, startedAtMs: this.#clock() })
    const { open, annotations } = asked
    const opened = store.openTurn(open)
    // Awaited before the turn is closed as well; until then a rejection must have an owner.
    opened.catch(() => call.unrecorded())
    const generationOf = (turn: RunningTurn) => ({
      ...withinBudget(generationRequest(agentCall, asked, rules.record ?? record), call.budget),
      ...jsonAtHand(asked.request, written, memory, messagesJson),
      onAsked: () => {
        turn.weightsAsked = weights?.version
      },
    })
    this.#activity.tell({ type: 'turn_opened', session_id: sessionId, index: open.index })
    return new RunningTurn({ call, open, word, annotations, opened }, generationOf, this.#hooksOf(agentCall))
  }

  #hooksOf({ stream, choice, sessionId }: AgentCall): TurnHooks {
    return {
      run: (turn) => this.#run(turn),
      // Of several choices, nobody can join one.
      graceMs: ({ word, firstTokenAtMs }) =>
        choice ? 0 : this.#graceMs(sessionId, word, stream && firstTokenAtMs !== undefined),
      undelivered: (turn, retriesAnswered, why) => this.#undelivered(turn, retriesAnswered, why),
    }
  }

  /** The turn of the call's first try, if its answer can be had. */
  async #firstTry(
    call: AgentCall,
    written: WrittenRequest,
    { live, memory }: UsedSession,
    gone: AbortSignal,
  ): Promise<AwaitedTurn | undefined> {
    const { sessionId, dialect, word } = call
    const { sessions, store, model } = this.#options
    const session = await sessions.find(sessionId)
    if (session?.status !== 'active') return undefined
    const params = paramsText(underRules(call, session, model).request)
    const { first, idempotencyKeys } = await findFirstTry(store, live, word, { ...written, dialect, params })
    memory.idempotencyKeys ??= idempotencyKeys
    if (first === undefined) return undefined
    if ('running' in first) return first.running.join(word.retryCount, gone)
    const of = { sessionId, turnId: first.recorded }
    const given = await giveAgain(store, of, word.retryCount)
    return (
      given && {
        ...given,
        signal: gone,
        isWhole: true,
        undelivered: (why) => this.#undelivered(of, given.retriesAnswered, why),
      }
    )
  }

  /** @param hasBegun a part of a stream has left: SDKs try only those again of which they have had nothing */
  #graceMs(sessionId: string, { tellsTries, idempotencyKey }: TryWord, hasBegun: boolean): number {
    const mayReturn = (tellsTries && !hasBegun) || idempotencyKey !== undefined
    // The one that asks is among those that are away.
    const away = this.#options.sessions.turnsOf(sessionId).filter(({ isLost }) => isLost)
    const isOneTooMany = this.isDraining || away.length > MAX_AWAY
    return mayReturn && !isOneTooMany ? (this.#options.retryGraceMs ?? 0) : 0
  }

  async #undelivered(
    { sessionId, turnId }: TurnName,
    retriesAnswered: number,
    why = unread(),
  ): Promise<void> {
    const { store, logger } = this.#options
    const { code, message } = why
    try {
      await store.markUndelivered(sessionId, turnId, { code, message }, retriesAnswered)
    } catch (error) {
      logger.error({ err: error, session_id: sessionId, turn_id: turnId }, 'turn not updated')
    }
  }

  get isDraining(): boolean {
    return this.#isDraining
  }

  async *#run(turn: RunningTurn): GenerationStream {
    const { call } = turn
    const { signal } = call
    let failure: ProxyError | undefined
    let prompt: CallPrompt | undefined
    try {
      signal.throwIfAborted()
      // Where no engine is asked, for the prompt fills the context.
      turn.weightsAsked = this.#options.weights?.version
      prompt = await this.#promptOf(turn)
      signal.throwIfAborted()
      let last: GenerationEvent | undefined
      await using answer = startOf(prompt.answer ?? this.#options.backend.generate(prompt.request, signal))
      await prompt.whileAsked()
      for (let next = await answer.next(); !next.done; next = await answer.next()) {
        // A promise where another thread reads; else nothing is waited for.
        const read = prompt.read(next.value)
        const batch = turn.calls.read(read instanceof Promise ? await read : read)
        last = this.#fold(turn, batch)
        const passed = last ? batch.slice(0, -1) : batch
        if (passed.length > 0) yield passed
      }
      if (!last) throw new ProxyError('engine_lost', 'The engine ended its answer without a finish reason')
      await this.#close(turn, 'completed', null)
      // On record, and not yet read: no call goes on from an answer before it is, nor misses it.
      prompt.answered(turn.completion)
      yield [last]
    } catch (thrown) {
      failure = toProxyError(signal.aborted ? signal.reason : thrown)
      throw failure
    } finally {
      // No failure: whoever read the events left the loop. An error is made here only, for making one is slow.
      failure ??= signal.aborted ? toProxyError(signal.reason) : undefined
      prompt?.close?.()
      if (turn.endedAtMs === undefined) await this.#closeQuietly(turn, failure ?? agentLeft())
      call.done()
    }
  }

  async #promptOf({ generation, call: { budget, memory } }: RunningTurn): Promise<CallPrompt> {
    if (budget.reached !== undefined) return endAtLimit(generation, budget.reached)
    const { prompts } = this.#options
    return (await prompts?.begin(generation, memory, budget)) ?? plainPrompt(generation)
  }

  /**
   * Takes no new calls, waits for those that run, and after the grace period cancels what is left.
   * @returns whether every call had ended by itself
   */
  async drain(graceMs: number): Promise<boolean> {
    this.#isDraining = true
    const drained = await this.#options.sessions.drain(graceMs)
    this.#unclosed.stop()
    return drained
  }

  /** @returns the `end` event if this batch brought it; it is the last one of its batch */
  #fold(turn: RunningTurn, batch: readonly GenerationEvent[]): GenerationEvent | undefined {
    const { weights, logprobsMode } = this.#options
    const stamps = { weightsAsked: turn.weightsAsked, weightsNow: weights?.version, logprobsMode }
    let last: GenerationEvent | undefined
    for (const event of batch) {
      if (event.type === 'delta') turn.firstTokenAtMs ??= this.#clock()
      refuseUnwritable(event)
      last = event.type === 'end' ? withUsage(event, turn.completion) : undefined
      turn.completion.add(stamped(last ?? event, stamps))
    }
    return last
  }

  async #close(turn: RunningTurn, status: TurnOutcome['status'], failure: ProxyError | null): Promise<void> {
    const endedAtMs = this.#clock()
    const outcome = turnOutcome(turn, status, failure, endedAtMs)
    const { length: promptTokens } = outcome.promptTokenIds
    const { length: sampledTokens } = outcome.completionTokenIds
    const { startedAtMs } = turn.open
    turn.call.spend({ status, engine: outcome.engine, startedAtMs, promptTokens, sampledTokens })
    const closed = this.#options.store.closeTurn(outcome)
    // Closing a turn whose opening failed finds nothing to close, and is no record of it: both must be on disk.
    await Promise.all([turn.opened, closed]).catch((error: unknown) => {
      if (isMoved(error)) void this.#options.sessions.moved(turn.open.sessionId)
      throw error
    })
    turn.endedAtMs = endedAtMs
    if (status === 'completed' && outcome.exact && sampledTokens > 0) this.#options.onTrainable?.(turn.open)
    const { sessionId: session_id, index } = turn.open
    const { finishReason: finish_reason } = outcome
    this.#activity.tell({ type: 'turn_closed', session_id, index, status, finish_reason })
  }

  async #closeQuietly(turn: RunningTurn, failure: ProxyError): Promise<void> {
    const status = failure.code === 'agent_gone' || failure.code === 'turn_cancelled' ? 'aborted' : 'failed'
    try {
      await this.#close(turn, status, failure)
    } catch (error) {
      const { sessionId, turnId } = turn.open
      // The proxy whose the session is by now has closed the turn.
      if (isMoved(error)) return
      this.#options.logger.error({ err: error, session_id: sessionId, turn_id: turnId }, 'turn not recorded')
      const endedAtMs = this.#clock()
      this.#unclosed.add(() => turnOutcome(turn, status, failure, endedAtMs))
    }
  }
}

type TurnName = Pick<OpenTurn, 'sessionId' | 'turnId'>

function unread(): ProxyError {
  return new ProxyError('agent_gone', 'The agent left before its answer')
}

/** Asks for the answer's first batch at once, so that the engine works while its caller does something else. */
function startOf(answer: GenerationStream) {
  const events = answer[Symbol.asyncIterator]()
  let first: ReturnType<typeof events.next> | undefined = events.next()
  first.catch(() => {})
  return {
    next() {
      const next = first ?? events.next()
      first = undefined
      return next
    },
    async [Symbol.asyncDispose]() {
      await events.return?.()
    },
  }
}
