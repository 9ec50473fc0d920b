import { type Clock, systemClock } from '../../../base/clock.ts'
import { ProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import { type ContextLogger, type Logger, withContext } from '../../../base/logger.ts'
import { assertTransition, type Transitions } from '../../../base/transitions.ts'
import type { EngineClient, EngineHealth, EngineModel, UnavailableReason } from '../port/engine-client.ts'
import {
  createTokenizerQuery,
  describePromptMismatch,
  describeTokenizerMismatch,
  type ExpectedTokenizer,
  judgeTokenizer,
  TOKENIZER_TEXT,
  type TokenizerVerdict,
} from '../port/expected-tokenizer.ts'

export interface EngineHealthWatchOptions {
  client: EngineClient
  intervalMs: number
  /** The result of a health check that has just been made. If absent, the engine is checked immediately. */
  known?: EngineHealth | undefined
  /** Token mode: the expected tokenizer. An engine with another tokenizer receives no requests. */
  tokenizer?: ExpectedTokenizer | undefined
  /**
   * Whether to request the engine's ids of {@link TOKENIZER_TEXT} although no tokenizer is expected: a worker reports
   * them to its proxy, which compares them.
   */
  reportsTextIds?: boolean | undefined
  /** Called after each check, and when a request finds the engine unreachable. */
  onHealth(report: EngineHealthReport): void
  logger?: Logger | undefined
  clock?: Clock | undefined
}

/** The state of an engine after a check. */
export interface EngineHealthReport {
  healthy: boolean
  unavailable: UnavailableReason | undefined
  models: string[]
  weightVersion: string | undefined
}

/** `unchecked`: no check has shown yet whether the engine serves. */
type EngineHealthState = 'unchecked' | 'serving' | UnavailableReason | 'down' | 'closed'

export const ENGINE_HEALTH_TRANSITIONS: Transitions<EngineHealthState> = {
  unchecked: ['serving', 'asleep', 'paused', 'down', 'closed'],
  serving: ['asleep', 'paused', 'down', 'closed'],
  asleep: ['serving', 'paused', 'down', 'closed'],
  paused: ['serving', 'asleep', 'down', 'closed'],
  down: ['serving', 'asleep', 'paused', 'closed'],
  closed: [],
}

/**
 * The number of consecutive timed-out checks after which an engine is unhealthy. One is not enough, because a loaded
 * engine responds late.
 */
const SILENT_CHECKS = 3
const CHECK_TIMEOUT_MS = 5_000

/** A watch that checks one engine's health at intervals, from construction until `stop`. */
export class EngineHealthWatch {
  /** Token mode: the result of the tokenizer comparison. */
  tokenizer: TokenizerVerdict | undefined
  /** The engine's ids of {@link TOKENIZER_TEXT}, if requested and reported. */
  textIds: readonly number[] | undefined
  /** The engine's prompt ids of the compared chats, if requested and reported. */
  chatIds: EngineHealth['chatIds']
  /** The reason why prompts of this healthy engine may be wrong. */
  warning: string | undefined
  models: EngineModel[] = []
  /** The version that the engine reported last; undefined if none, or none since its weights may have changed. */
  weightVersion: string | undefined
  /** The number of times that the weight version was discarded because the weights may have changed. */
  timesForgotten = 0
  /** The number of times that a trainer reported a possible update of the weights. */
  timesUpdated = 0
  /** Resolves when the running refresh has ended; undefined if none is running. */
  refreshing: Promise<void> | undefined
  /** The reason why the engine is unhealthy. */
  error: string | undefined
  /** Resolves when the engine has been checked once, whatever the outcome. */
  readonly firstCheck: Promise<void>
  readonly #options: EngineHealthWatchOptions
  readonly #clock: Clock
  readonly #log: ContextLogger<{ engine: string }> | undefined
  readonly #stopping = new AbortController()
  #state: EngineHealthState = 'unchecked'
  #cancelNext: (() => void) | undefined
  #silentChecks = 0
  #warningInLog: string | undefined
  #tokenizerInLog: string | undefined
  /** The check that runs, or ran last. */
  #last: Promise<void>
  /** A check that begins when `#last` has ended. */
  #next: Promise<void> | undefined

  constructor(options: EngineHealthWatchOptions) {
    this.#options = options
    this.#clock = options.clock ?? systemClock
    this.#log = options.logger && withContext(options.logger, { engine: options.client.name })
    this.firstCheck = options.known ? this.#applyKnown(options.known) : this.#check()
    this.#last = this.firstCheck
  }

  /**
   * Whether the engine may receive requests. Before its first check it may, unless its tokenizer must be compared,
   * because turns sampled before the comparison would be trained on.
   */
  get healthy(): boolean {
    if (this.#state === 'unchecked') return this.#options.tokenizer === undefined
    return this.#state !== 'down' && this.#state !== 'closed'
  }

  /** Set while the engine is asleep or paused, though healthy. */
  get unavailable(): UnavailableReason | undefined {
    return this.#state === 'asleep' || this.#state === 'paused' ? this.#state : undefined
  }

  /**
   * Discards the weight version and checks the engine as soon as a running check has ended. Resolves, whatever the
   * outcome, when a check that began after this method was called has ended.
   */
  refresh(): Promise<void> {
    this.#discardVersion()
    this.#next ??= this.#last.then(() => {
      this.#next = undefined
      return this.#checkNow()
    })
    const next = this.#next
    this.refreshing = next
    void next.then(() => {
      if (this.refreshing === next) this.refreshing = undefined
    })
    return next
  }

  /** Marks the engine as unhealthy until the next successful check, because a request found it unreachable. */
  markUnhealthy(error: ProxyError): void {
    if (this.#state === 'closed') return
    this.error = error.message
    this.#discardVersion()
    this.#transition('down')
    this.#notify()
  }

  /**
   * Discards the weight version, since a trainer may have updated the weights: it is unknown until a check that begins
   * later reports it.
   */
  forgetWeights(): void {
    this.timesUpdated += 1
    this.#discardVersion()
  }

  stop(): void {
    this.#transition('closed')
    this.#stopping.abort()
    this.#cancelNext?.()
  }

  #discardVersion(): void {
    this.weightVersion = undefined
    this.timesForgotten += 1
  }

  #checkNow(): Promise<void> {
    this.#cancelNext?.()
    this.#last = this.#check()
    return this.#last
  }

  async #applyKnown(known: EngineHealth): Promise<void> {
    this.#applyHealth(known)
    this.#scheduleNext()
  }

  async #check(): Promise<void> {
    if (this.#state === 'closed') return
    const forgotten = this.timesForgotten
    const timeout = new AbortController()
    const cancelTimeout = scheduleWhileRunning(this.#clock, CHECK_TIMEOUT_MS, () => timeout.abort())
    try {
      const signal = AbortSignal.any([timeout.signal, this.#stopping.signal])
      const { client, tokenizer, reportsTextIds } = this.#options
      const question = tokenizer
        ? createTokenizerQuery(tokenizer)
        : reportsTextIds
          ? { text: TOKENIZER_TEXT, chats: true }
          : undefined
      const { weightVersion, ...health } = await client.checkHealth(signal, question)
      const isCurrent = forgotten === this.timesForgotten
      this.#applyHealth({ ...health, weightVersion: isCurrent ? weightVersion : undefined })
    } catch (thrown) {
      this.#applyFailure(thrown, timeout.signal.aborted)
    } finally {
      cancelTimeout()
    }
    this.#scheduleNext()
  }

  #scheduleNext(): void {
    if (this.#state === 'closed') return
    this.#notify()
    this.#cancelNext = this.#clock.after(this.#options.intervalMs, () => void this.#checkNow())
  }

  #applyHealth(health: EngineHealth): void {
    if (this.#state === 'closed') return
    const { models, weightVersion, unavailable } = health
    this.textIds = health.textIds
    this.chatIds = health.chatIds
    this.error = this.#compareTokenizers(health)
    this.models = models
    this.weightVersion = weightVersion
    this.#silentChecks = 0
    this.#transition(this.error === undefined ? (unavailable ?? 'serving') : 'down')
  }

  #applyFailure(thrown: unknown, silent: boolean): void {
    if (this.#state === 'closed') return
    this.#silentChecks = silent ? this.#silentChecks + 1 : SILENT_CHECKS
    if (this.healthy && this.#silentChecks < SILENT_CHECKS) return
    // A replacement may have started with other weights.
    this.#discardVersion()
    this.error = silent ? `no response within ${CHECK_TIMEOUT_MS / 1_000} s` : getMessage(thrown)
    this.#transition('down')
  }

  /** Changes the state if the result of a check or request differs from it, and logs the change. */
  #transition(to: EngineHealthState): void {
    const from = this.#state
    if (from === to) return
    assertTransition(ENGINE_HEALTH_TRANSITIONS, from, to)
    const wasUnavailable = this.unavailable !== undefined
    this.#state = to
    logEvent(this.#log, 'engine_health', { previous_state: from, state: to })
    if (to === 'closed') return
    if (to === 'down') logEvent(this.#log, 'engine_down', { reason: this.error! })
    else if (from === 'down') logEvent(this.#log, 'engine_up', { models: this.models.map(({ id }) => id) })
    if (this.unavailable) logEvent(this.#log, 'engine_unavailable', { state: this.unavailable })
    else if (wasUnavailable && to === 'serving') logEvent(this.#log, 'engine_available', {})
  }

  #notify(): void {
    this.#logWarning()
    const { healthy, unavailable, models, weightVersion } = this
    const names = models.map((model) => model.id)
    this.#options.onHealth({ healthy, unavailable, models: names, weightVersion })
  }

  /**
   * Compares the engine's tokenizer with the expected one.
   * @returns the reason why the engine must not be used, if any
   */
  #compareTokenizers(health: EngineHealth): string | undefined {
    const { tokenizer: expected } = this.#options
    if (expected === undefined) return undefined
    const verdict = judgeTokenizer(expected, health)
    this.tokenizer = verdict
    const split = verdict === 'split' ? describeTokenizerMismatch(verdict, expected, health) : undefined
    this.warning =
      [split, describePromptMismatch(expected, health)].filter((text) => text !== undefined).join('; ') ||
      undefined
    return verdict === 'other' ? describeTokenizerMismatch(verdict, expected, health) : undefined
  }

  /** Logs changed warnings. Most of them are caused by requests, and logged by the check that follows. */
  #logWarning(): void {
    const { warning } = this.#options.client
    if (this.warning !== this.#tokenizerInLog && this.warning !== undefined)
      logEvent(this.#log, 'engine_warning', { warning: this.warning })
    this.#tokenizerInLog = this.warning
    if (warning === this.#warningInLog) return
    this.#warningInLog = warning
    if (warning === undefined) logEvent(this.#log, 'engine_warning_cleared', {})
    else logEvent(this.#log, 'engine_warning', { warning })
  }
}

const POLL_MS = 500

/**
 * Runs `task` after `delayMs` in which this process could receive a response. A process that was blocked for seconds
 * fires its timers before it reads the responses that arrived meanwhile, so a single timer would report a responsive
 * engine as silent.
 * @returns a function that cancels the task
 */
function scheduleWhileRunning(clock: Clock, delayMs: number, task: () => void): () => void {
  let cancel = () => {}
  const poll = (leftMs: number) => {
    if (leftMs <= 0) return task()
    cancel = clock.after(Math.min(leftMs, POLL_MS), () => poll(leftMs - POLL_MS))
  }
  poll(delayMs)
  return () => cancel()
}

function getMessage(thrown: unknown): string {
  return thrown instanceof ProxyError ? thrown.message : `the health check failed: ${String(thrown)}`
}
