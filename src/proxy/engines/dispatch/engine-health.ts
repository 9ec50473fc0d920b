import { type Clock, systemClock } from '../../../base/clock.ts'
import { ProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import type { EngineClient, EngineHealth, ModelInfo, Unavailable } from '../port/engine-client.ts'
import {
  createTokenizerQuestion,
  describePrompts,
  describeTokenizer,
  type ExpectedTokenizer,
  judgeTokenizer,
  TOKENIZER_TEXT,
  type TokenizerVerdict,
} from '../port/expected-tokenizer.ts'

export interface EngineHealthWatchOptions {
  client: EngineClient
  intervalMs: number
  /** What the engine has said just now. Absent: it is asked at once. */
  known?: EngineHealth | undefined
  /** Token mode: an engine with another one gets no calls. */
  tokenizer?: ExpectedTokenizer | undefined
  /** Asks for the ids of the text by which tokenizers are compared, whoever compares them. */
  tellsTextIds?: boolean | undefined
  /** Called after each check, and when a call finds the engine dead. */
  onHealth(report: EngineHealthReport): void
  logger?: Logger | undefined
  clock?: Clock | undefined
}

export interface EngineHealthReport {
  healthy: boolean
  unavailable: Unavailable | undefined
  models: string[]
}

/** A loaded engine answers late: only this many silent checks in a row make it unhealthy. */
const SILENT_CHECKS = 3
const CHECK_TIMEOUT_MS = 5_000

/** Asks one engine at intervals how it is, from construction until `stop`. Healthy until something says otherwise. */
export class EngineHealthWatch {
  healthy: boolean
  /** Token mode: what came of comparing tokenizers. */
  tokenizer: TokenizerVerdict | undefined
  /** Of {@link TOKENIZER_TEXT}, where it was asked and said so. */
  textIds: readonly number[] | undefined
  /** Of its prompts of chats, likewise. */
  chatIds: EngineHealth['chatIds']
  /** Why its prompts are not what they should be, though it serves. */
  warning: string | undefined
  /** It serves nothing at the moment, though it is well. */
  unavailable: Unavailable | undefined
  models: ModelInfo[] = []
  /** What the engine reported last; undefined: nothing, or nothing since its weights may be others. */
  weightVersion: string | undefined
  /** How often what was known of the weights was given up, because they may be others. */
  timesForgotten = 0
  /** Why it is not healthy. */
  error: string | undefined
  /** Resolves, whatever came of it, when the engine has been asked once. */
  readonly firstCheck: Promise<void>
  readonly #options: EngineHealthWatchOptions
  readonly #clock: Clock
  readonly #stopping = new AbortController()
  #cancelNext: (() => void) | undefined
  #silentChecks = 0
  #healthyInLog = true
  #warningInLog: string | undefined
  #tokenizerInLog: string | undefined
  /** The check that runs, or ran last. */
  #last: Promise<void>
  /** A check that begins when that one has ended. */
  #next: Promise<void> | undefined

  constructor(options: EngineHealthWatchOptions) {
    this.#options = options
    this.#clock = options.clock ?? systemClock
    // What came before the comparison would be trained on.
    this.healthy = options.tokenizer === undefined
    this.firstCheck = options.known ? this.#begin(options.known) : this.#check()
    this.#last = this.firstCheck
  }

  /**
   * Asks at once, and believes nothing about the weights that was asked for before. Resolves, whatever came of it, when a
   * question that was put after this call is answered.
   */
  refresh(): Promise<void> {
    this.forgetWeights()
    this.#next ??= this.#last.then(() => {
      this.#next = undefined
      return this.#checkNow()
    })
    return this.#next
  }

  /** A call has found the engine dead. It is healthy again when the next check says so. */
  markUnhealthy(error: ProxyError): void {
    this.healthy = false
    this.error = error.message
    this.forgetWeights()
    this.#tell()
  }

  /** The weights may be others by now: no version is known until a check that begins later has told it. */
  forgetWeights(): void {
    this.weightVersion = undefined
    this.timesForgotten += 1
  }

  stop(): void {
    this.#stopping.abort()
    this.#cancelNext?.()
  }

  #checkNow(): Promise<void> {
    this.#cancelNext?.()
    this.#last = this.#check()
    return this.#last
  }

  async #begin(known: EngineHealth): Promise<void> {
    this.#noteHealth(known)
    this.#goOn()
  }

  async #check(): Promise<void> {
    if (this.#stopping.signal.aborted) return
    const forgotten = this.timesForgotten
    const timeout = new AbortController()
    const cancelTimeout = afterLooking(this.#clock, CHECK_TIMEOUT_MS, () => timeout.abort())
    try {
      const signal = AbortSignal.any([timeout.signal, this.#stopping.signal])
      const { client, tokenizer, tellsTextIds } = this.#options
      const question = tokenizer
        ? createTokenizerQuestion(tokenizer)
        : tellsTextIds
          ? { text: TOKENIZER_TEXT, chats: true }
          : undefined
      const { weightVersion, ...health } = await client.checkHealth(signal, question)
      const isOfNow = forgotten === this.timesForgotten
      this.#noteHealth({ ...health, weightVersion: isOfNow ? weightVersion : undefined })
    } catch (thrown) {
      this.#noteFailure(thrown, timeout.signal.aborted)
    } finally {
      cancelTimeout()
    }
    if (!this.#stopping.signal.aborted) this.#goOn()
  }

  #goOn(): void {
    this.#tell()
    this.#cancelNext = this.#clock.after(this.#options.intervalMs, () => void this.#checkNow())
  }

  #noteHealth(health: EngineHealth): void {
    const { models, weightVersion, unavailable } = health
    this.healthy = true
    this.error = undefined
    this.textIds = health.textIds
    this.chatIds = health.chatIds
    this.#compareTokenizers(health)
    this.#logUnavailable(unavailable)
    this.unavailable = unavailable
    this.models = models
    this.weightVersion = weightVersion
    this.#silentChecks = 0
  }

  #noteFailure(thrown: unknown, silent: boolean): void {
    this.#silentChecks = silent ? this.#silentChecks + 1 : SILENT_CHECKS
    if (this.#silentChecks < SILENT_CHECKS) return
    this.healthy = false
    // What comes up in its place may have begun with other weights.
    this.forgetWeights()
    this.error = silent ? `no answer within ${CHECK_TIMEOUT_MS / 1_000} s` : getMessage(thrown)
  }

  #tell(): void {
    this.#logChange()
    const { healthy, unavailable, models } = this
    this.#options.onHealth({ healthy, unavailable, models: models.map((model) => model.id) })
  }

  #logChange(): void {
    this.#logWarning()
    if (this.healthy === this.#healthyInLog) return
    this.#healthyInLog = this.healthy
    const { client, logger } = this.#options
    if (this.healthy) logger?.info({ engine: client.name }, 'engine is healthy again')
    else logger?.warn({ engine: client.name, error: this.error }, 'engine is not healthy and gets no calls')
  }

  #compareTokenizers(health: EngineHealth): void {
    const { tokenizer: expected } = this.#options
    if (expected === undefined) return
    const verdict = judgeTokenizer(expected, health)
    this.tokenizer = verdict
    const split = verdict === 'split' ? describeTokenizer(verdict, expected, health) : undefined
    this.warning =
      [split, describePrompts(expected, health)].filter((said) => said !== undefined).join('; ') || undefined
    if (verdict !== 'other') return
    this.healthy = false
    this.error = describeTokenizer(verdict, expected, health)
  }

  #logUnavailable(unavailable: Unavailable | undefined): void {
    if (unavailable === this.unavailable) return
    const { client, logger } = this.#options
    const message =
      unavailable === undefined ? 'engine is awake' : `engine is ${unavailable} and gets no new calls`
    logger?.info({ engine: client.name }, message)
  }

  /** Calls bring it about; the next check reports it. */
  #logWarning(): void {
    const { client, logger } = this.#options
    const fields = { engine: client.name }
    if (this.warning !== this.#tokenizerInLog && this.warning !== undefined)
      logger?.warn(fields, this.warning)
    this.#tokenizerInLog = this.warning
    if (client.warning === this.#warningInLog) return
    this.#warningInLog = client.warning
    if (client.warning === undefined) logger?.info(fields, 'engine warning cleared')
    else logger?.warn(fields, `engine warning: ${client.warning}`)
  }
}

const LOOK_MS = 500

/**
 * Runs `task` after so much time in which this process was able to hear an answer. One that was busy with itself for
 * seconds finds its timers due before it has read what came meanwhile: that is no silence of the engine.
 */
function afterLooking(clock: Clock, delayMs: number, task: () => void): () => void {
  let cancel = () => {}
  const look = (leftMs: number) => {
    if (leftMs <= 0) return task()
    cancel = clock.after(Math.min(leftMs, LOOK_MS), () => look(leftMs - LOOK_MS))
  }
  look(delayMs)
  return () => cancel()
}

function getMessage(thrown: unknown): string {
  return thrown instanceof ProxyError ? thrown.message : `the health check failed: ${String(thrown)}`
}
