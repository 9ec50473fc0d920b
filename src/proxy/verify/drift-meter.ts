/**
 * Verifies a sample of recorded turns in the background, one at a time and only on idle engines, and counts the
 * results. Agents are not affected.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { toProxyError } from '../../base/errors.ts'
import { logEvent } from '../../base/log-events.ts'
import type { Logger } from '../../base/logger.ts'
import { getTextsUpTo } from '../../protocol/canonical/conversation.ts'
import { hasMediaParts } from '../../protocol/canonical/images.ts'
import type { EngineClient, EngineHealth } from '../engines/port/engine-client.ts'
import type { TurnReader, TurnRecord } from '../store/port/turn-store.ts'
import { isFiltered } from './hints.ts'
import { getRecordedLogprobs, getTurnMasks, MASK_KINDS, type SamplingAnnotation } from './turn-masks.ts'
import { type TurnResult, type TurnVerification, type VerifiableTurn, Verifier } from './verifier.ts'

/** An engine that scores a turn, and its reported state. */
export interface DriftEngine {
  readonly client: EngineClient
  readonly health: EngineHealth
}

/** The result of a turn of the sample. `failed`: an error occurred. `dropped`: too many turns were queued. */
export type DriftVerdict = TurnResult['verdict'] | 'failed' | 'dropped'

/** The sample, the dependencies and the listeners of a {@link DriftMeter}. */
export interface DriftMeterOptions {
  /** The fraction of completed trainable turns to verify, from 0 to 1. */
  readonly share: number
  readonly store: Pick<TurnReader, 'getTurn' | 'readDetails'>
  /** Finds an engine to score a turn. @returns `busy` if none is idle; undefined if no engine can score the turn */
  findEngine(turn: TurnRecord, signal: AbortSignal): Promise<DriftEngine | 'busy' | undefined>
  /** Receives the verdict of each turn of the sample, and the result if the verifier has verified or skipped the turn. */
  onVerdict(verdict: DriftVerdict, result?: TurnResult): void
  /** Receives whether an engine noticed the deliberately changed prompt of a negative control. */
  onControl(isCaught: boolean): void
  readonly logger: Logger
  /** Returns a random number in [0, 1). Default: `Math.random`. */
  readonly random?: () => number
  /** The delay before another attempt to find an idle engine. Default: 1 s. */
  readonly retryDelayMs?: number
}

/** The state that `/health` reports. Counts are since the start of the process. */
interface DriftState {
  share: number
  waiting: number
  same: number
  differs: number
  skipped: number
  failed: number
  /** The number of turns of the sample that were dropped because too many were queued. */
  dropped: number
  /** The mean difference of all compared tokens, in nats; null if none was compared. */
  mean_difference: number | null
  /** Whether the engine of the last negative control noticed the deliberately changed prompt; null if none has run. */
  control_caught: boolean | null
}

/** The maximum number of queued turns. */
const MAX_WAITING = 64
/** The default of {@link DriftMeterOptions.retryDelayMs}. */
const RETRY_DELAY_MS = 1_000
/** The time limit for verifying a turn. */
const TURN_MS = 120_000
/** A negative control runs on the first of every 100 compared turns. */
const CONTROL_EVERY = 100

/** Matches messages that may have media, so that others need no parsing. */
const MEDIA_NAME = /image|audio|video/

/** The ids of a turn that is offered for verification. */
interface TurnReference {
  readonly sessionId: string
  readonly turnId: string
}

/** A verifier of a sample of the turns that are offered to it. */
export class DriftMeter {
  readonly #options: DriftMeterOptions
  readonly #waiting: TurnReference[] = []
  readonly #counts: Record<DriftVerdict, number> = { same: 0, differs: 0, skipped: 0, failed: 0, dropped: 0 }
  readonly #end = new AbortController()
  #tokens = 0
  #difference = 0
  #compared = 0
  #controlCaught: boolean | null = null
  #work: Promise<void> | undefined

  constructor(options: DriftMeterOptions) {
    this.#options = options
  }

  /** Offers a recorded, trainable turn, which is queued if it belongs to the sample. */
  offer(turn: TurnReference): void {
    const { share, random = Math.random } = this.#options
    if (this.#end.signal.aborted || random() >= share) return
    if (this.#waiting.length >= MAX_WAITING) {
      this.#count('dropped')
      return
    }
    this.#waiting.push(turn)
    this.#work ??= this.#run().finally(() => {
      this.#work = undefined
    })
  }

  getState(): DriftState {
    return {
      share: this.#options.share,
      waiting: this.#waiting.length,
      ...this.#counts,
      mean_difference: this.#tokens === 0 ? null : this.#difference / this.#tokens,
      control_caught: this.#controlCaught,
    }
  }

  /** Cancels the current verification and discards queued turns. Resolves when no engine request is running. */
  async close(): Promise<void> {
    this.#end.abort()
    await this.#work
  }

  async #run(): Promise<void> {
    const { signal } = this.#end
    while (!signal.aborted && this.#waiting.length > 0) {
      const isDone = await this.#verifyFirst(signal).catch((thrown: unknown) => this.#fail(thrown))
      if (isDone) this.#waiting.shift()
      else
        await sleep(this.#options.retryDelayMs ?? RETRY_DELAY_MS, undefined, { signal, ref: false }).catch(
          () => {},
        )
    }
  }

  /** Verifies the first queued turn. @returns false if no engine was idle */
  async #verifyFirst(end: AbortSignal): Promise<boolean> {
    const { store, findEngine } = this.#options
    const { sessionId, turnId } = this.#waiting[0]!
    const turn = await store.getTurn(sessionId, turnId)
    // The turn was deleted or reset in the meantime, or not delivered, so it is not trained on.
    if (turn === undefined) return this.#skip()
    const signal = AbortSignal.any([end, AbortSignal.timeout(TURN_MS)])
    signal.throwIfAborted()
    const engine = await findEngine(turn, signal)
    if (engine === 'busy') return false
    if (engine === undefined) return this.#skip()
    const verifier = new Verifier(engine.client, engine.health)
    const verifiable = await this.#readVerifiableTurn(turn)
    const verified = await verifier.verify(verifiable, signal)
    if (end.aborted) return true
    this.#judge(verified)
    if (verified.pairs.length > 0) await this.#tryControl(verifier, verifiable, verified, signal)
    return true
  }

  async #readVerifiableTurn(turn: TurnRecord): Promise<VerifiableTurn> {
    const { sessionId, turnId } = turn
    const params = JSON.parse(turn.params)
    const details = isFiltered(params)
      ? await this.#options.store.readDetails(sessionId, [turnId], MASK_KINDS)
      : undefined
    const annotations = JSON.parse(turn.annotations) as SamplingAnnotation
    const logprobsKind = getRecordedLogprobs(annotations)
    const { defaults } = annotations.sampling ?? {}
    const messages = getTextsUpTo(turn.lastMessage)
    const hasMedia = messages.some((json) => MEDIA_NAME.test(json) && hasMediaParts(JSON.parse(json)))
    return { ...turn, logprobsKind, defaults, hasMedia, ...getTurnMasks(details?.get(turnId) ?? []), params }
  }

  #judge({ result, pairs }: TurnVerification): void {
    for (const { recorded, recomputed } of pairs) this.#difference += Math.abs(recomputed - recorded)
    this.#tokens += pairs.length
    this.#count(result.verdict, result)
    if (result.verdict !== 'differs') return
    const { session_id, turn_id, comparison, hint } = result
    const fields = { session_id, turn_id, mean_difference: comparison?.mean_difference, hint }
    logEvent(this.#options.logger, 'verified_turn_differs', fields)
  }

  async #tryControl(
    verifier: Verifier,
    turn: VerifiableTurn,
    verified: TurnVerification,
    signal: AbortSignal,
  ): Promise<void> {
    if (this.#compared++ % CONTROL_EVERY !== 0) return
    this.#controlCaught = await verifier.runControl(turn, verified, signal)
    this.#options.onControl(this.#controlCaught)
    if (this.#controlCaught) return
    logEvent(this.#options.logger, 'verify_control_missed', {})
  }

  #skip(): true {
    this.#count('skipped')
    return true
  }

  #fail(thrown: unknown): true {
    if (this.#end.signal.aborted) return true
    this.#count('failed')
    const { code } = toProxyError(thrown)
    logEvent(this.#options.logger, 'verify_failed', { code })
    return true
  }

  #count(verdict: DriftVerdict, result?: TurnResult): void {
    this.#counts[verdict] += 1
    this.#options.onVerdict(verdict, result)
  }
}
