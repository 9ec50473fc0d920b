/**
 * Detection of the distribution that an engine's logprobs belong to. No engine reports it; two one-token requests with
 * the same prompt reveal it: one with the model's distribution, one at temperature 2 restricted to two tokens.
 */
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import { raceAbort } from '../../../base/race-abort.ts'
import { CompletionBuilder } from '../../../protocol/canonical/completion.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { EngineClient, EngineKind } from '../port/engine-client.ts'

/** The candidates for the first token of a response: logprobs by text. */
export type FirstTokens = ReadonlyMap<string, number>

/**
 * vLLM's values of `--logprobs-mode`, and `temperature_logprobs` for the distribution after temperature and before
 * filters, which SGLang reports.
 */
export type LogprobsMode = 'raw_logprobs' | 'temperature_logprobs' | 'processed_logprobs'

/**
 * The mode, or the reason why it is unknown.
 * @property gapRatio the gap between the two best tokens at temperature 2, relative to that at temperature 1
 */
export type LogprobsReading =
  | { mode: LogprobsMode }
  | { unknown: 'logits' | 'too_few' | 'too_close' | 'filters' }
  | { unknown: 'other_gap'; gapRatio: number }

const ONE_TOKEN = { max_tokens: 1, logprobs: true, top_logprobs: 5, top_p: 1 } as const
/** The sampling parameters of the request with the model's distribution. */
export const WARM = { ...ONE_TOKEN, temperature: 1, top_k: -1 } as const
/** The sampling parameters of the request at temperature 2, whose filter leaves the two best tokens. */
export const HOT = { ...ONE_TOKEN, temperature: 2, top_k: 2 } as const

/**
 * The kinds of engines that are measured. Requests to other servers may cost money, and the embedded engine reports the
 * model's distribution.
 */
const MEASURED_KINDS: readonly EngineKind[] = ['vllm', 'sglang']
/** The number of attempts to query an engine that responds with errors. */
const MAX_ATTEMPTS = 3
/** The smallest gap between logprobs that is evaluated, because engines round them. */
const MIN_GAP = 0.05
/** The tolerance of a ratio around 1 and 1/2. */
const NEAR = 0.1
/** If the two best tokens have a larger share without a filter, the effect of the filter is too small to be seen. */
const MAX_SHARE = 0.998

/**
 * Determines the mode. The gap between the two best tokens is the same in both responses if logprobs belong to the
 * model's distribution, and halved if they belong to the distribution after temperature. The probabilities of the two
 * sum to 1 if the filter applies.
 * @param warm sampled with {@link WARM}
 * @param hot sampled with {@link HOT}; empty: the engine reports no alternatives
 */
export function readLogprobsMode(warm: FirstTokens, hot: FirstTokens): LogprobsReading {
  if ([...warm.values(), ...hot.values()].some((value) => value > 0)) return { unknown: 'logits' }
  // Engines list the sampled token among the best ones, in any order.
  const [best, next, ...others] = [...warm].sort((one, other) => other[1] - one[1])
  const [hotBest, hotNext] = [hot.get(best?.[0] ?? ''), hot.get(next?.[0] ?? '')]
  if (best === undefined || next === undefined || hotBest === undefined || hotNext === undefined)
    return { unknown: 'too_few' }
  const gap = best[1] - next[1]
  if (gap < MIN_GAP) return { unknown: 'too_close' }
  const gapRatio = (hotBest - hotNext) / gap
  if (Math.abs(gapRatio - 1) < NEAR) return { mode: 'raw_logprobs' }
  if (Math.abs(gapRatio - 0.5) >= NEAR) return { unknown: 'other_gap', gapRatio }
  const getWeight = ([, logprob]: readonly [string, number]) => Math.exp(logprob / HOT.temperature)
  const two = getWeight(best) + getWeight(next)
  const share = two / others.reduce((sum, other) => sum + getWeight(other), two)
  if (share > MAX_SHARE) return { unknown: 'filters' }
  const isFiltered = Math.exp(hotBest) + Math.exp(hotNext) > (1 + share) / 2
  return { mode: isFiltered ? 'processed_logprobs' : 'temperature_logprobs' }
}

/**
 * A probe that measures the logprobs mode of an engine before its first request. The measurement runs in that request's
 * slot, so that a pause waits for both.
 */
export class LogprobsProbe {
  readonly #client: EngineClient
  readonly #logger: Logger | undefined
  #known: { mode: LogprobsMode | undefined } | undefined
  #running: Promise<void> | undefined
  /** The number of failed attempts. */
  #failedAttempts = 0
  #timesForgotten = 0

  constructor(client: EngineClient, logger: Logger | undefined) {
    this.#client = client
    this.#logger = logger
  }

  /** Discards the result: the engine may have been restarted with other options. */
  forget(): void {
    this.#known = undefined
    this.#failedAttempts = 0
    this.#timesForgotten += 1
  }

  /**
   * Returns the mode if it is known, otherwise a promise that resolves after a measurement.
   * @param model the model to request, if the engine lists one
   * @param signal aborts the wait, and also the measurement if this call started it
   * @returns undefined if the mode could not be determined: an engine that responds with errors is queried
   *   {@link MAX_ATTEMPTS} times, and not again before {@link forget}
   */
  getMode(
    model: string | undefined,
    signal: AbortSignal,
  ): LogprobsMode | undefined | Promise<LogprobsMode | undefined> {
    if (!MEASURED_KINDS.includes(this.#client.kind)) return undefined
    return this.#known ? this.#known.mode : this.#measureMode(model, signal)
  }

  async #measureMode(model: string | undefined, signal: AbortSignal): Promise<LogprobsMode | undefined> {
    const failedAttempts = this.#failedAttempts
    while (
      this.#known === undefined &&
      this.#failedAttempts === failedAttempts &&
      failedAttempts < MAX_ATTEMPTS
    ) {
      signal.throwIfAborted()
      this.#running ??= this.#measure(model, signal).finally(() => {
        this.#running = undefined
      })
      await raceAbort(this.#running, signal)
    }
    return this.#known?.mode
  }

  async #measure(model: string | undefined, signal: AbortSignal): Promise<void> {
    const forgotten = this.#timesForgotten
    const known = await this.#sendProbe(model, signal)
    // The result is discarded. The next waiting request starts another measurement.
    if (signal.aborted || forgotten !== this.#timesForgotten) return
    if (known === undefined) {
      this.#failedAttempts += 1
      return
    }
    this.#known = known
    const fields = { engine: this.#client.name, logprobs_mode: known.mode ?? 'unknown' }
    logEvent(this.#logger, 'logprobs_mode_detected', fields)
  }

  /** Sends both requests. @returns undefined if the engine responded with an error */
  async #sendProbe(
    model: string | undefined,
    signal: AbortSignal,
  ): Promise<{ mode: LogprobsMode | undefined } | undefined> {
    const named = model === undefined ? {} : { model }
    try {
      const [warm, hot] = await Promise.all([
        this.#requestFirstTokens({ ...named, ...WARM }, signal),
        this.#requestFirstTokens({ ...named, ...HOT }, signal),
      ])
      const reading = readLogprobsMode(warm, hot)
      return { mode: 'mode' in reading ? reading.mode : undefined }
    } catch {
      // The agent's request will report the engine's error.
      return undefined
    }
  }

  async #requestFirstTokens(sampling: Partial<ChatBody>, signal: AbortSignal): Promise<FirstTokens> {
    const id = `logprobs-${sampling.temperature}`
    const messages: ChatBody['messages'] = [{ role: 'user', content: 'Say hello.' }]
    const body: ChatBody = { messages, ...sampling }
    const request: GenerationRequest = { kind: 'chat', requestId: id, sessionId: id, stream: false, body }
    const found = new Map<string, number>()
    const completion = new CompletionBuilder()
    await this.#client.generate(request, completion, signal)
    for (const { token, logprob } of completion.logprobsContent[0]?.top_logprobs ?? [])
      found.set(token, logprob)
    this.#client.endSession?.(id)
    return found
  }
}
