/**
 * Which distribution an engine's logprobs belong to. No engine reports it; two calls of one token tell: of the same prompt,
 * one as the model has it and one at temperature 2 among two tokens.
 */
import type { Logger } from '../../../base/logger.ts'
import { raceAbort } from '../../../base/race-abort.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { EngineClient, EngineKind } from '../port/engine-client.ts'

/** What may have been the first token of an answer: logprobs by text. */
export type FirstTokens = ReadonlyMap<string, number>

/** vLLM's names of `--logprobs-mode`, and one for what is between them: after temperature, before filters, as SGLang has it. */
export type LogprobsMode = 'raw_logprobs' | 'temperature_logprobs' | 'processed_logprobs'

/** The mode, or why none is known. @property gapRatio how much closer the two best tokens were at temperature 2 */
export type LogprobsReading =
  | { mode: LogprobsMode }
  | { unknown: 'logits' | 'too_few' | 'too_close' | 'filters' }
  | { unknown: 'other_gap'; gapRatio: number }

const ONE_TOKEN = { max_tokens: 1, logprobs: true, top_logprobs: 5, top_p: 1 } as const
/** What the two calls ask for, whatever their prompt is. */
export const WARM = { ...ONE_TOKEN, temperature: 1, top_k: -1 } as const
/** The filter leaves the two best tokens. */
export const HOT = { ...ONE_TOKEN, temperature: 2, top_k: 2 } as const

/** Of any other server each call may cost money, and the embedded engine gives what its model gave. */
const MEASURED_KINDS: readonly EngineKind[] = ['vllm', 'sglang']
/** How many calls in a row may find that an engine does not answer the question. */
const MAX_TRIES = 3
/** Two tokens that are closer tell nothing, as engines round. */
const MIN_GAP = 0.05
/** How far a ratio may be from 1 or 1/2. */
const NEAR = 0.1
/** Where the two best tokens have more than this share anyway, a filter that leaves them changes too little to be seen. */
const MAX_SHARE = 0.998

/**
 * The gap between the two best tokens stays where logprobs are of what the model gave, and is halved where they are of what
 * is sampled from. The shares of the two are 1 in all where the filter counts.
 * @param warm sampled with {@link WARM} @param hot with {@link HOT}; empty: the engine does not tell alternatives
 */
export function readLogprobsMode(warm: FirstTokens, hot: FirstTokens): LogprobsReading {
  if ([...warm.values(), ...hot.values()].some((value) => value > 0)) return { unknown: 'logits' }
  // Engines list the sampled token beside the best ones, in any order.
  const [best, next, ...others] = [...warm].sort((one, other) => other[1] - one[1])
  const [hotBest, hotNext] = [hot.get(best?.[0] ?? ''), hot.get(next?.[0] ?? '')]
  if (best === undefined || next === undefined || hotBest === undefined || hotNext === undefined)
    return { unknown: 'too_few' }
  const gap = best[1] - next[1]
  if (gap < MIN_GAP) return { unknown: 'too_close' }
  const gapRatio = (hotBest - hotNext) / gap
  if (Math.abs(gapRatio - 1) < NEAR) return { mode: 'raw_logprobs' }
  if (Math.abs(gapRatio - 0.5) >= NEAR) return { unknown: 'other_gap', gapRatio }
  const weightOf = ([, logprob]: readonly [string, number]) => Math.exp(logprob / HOT.temperature)
  const two = weightOf(best) + weightOf(next)
  const share = two / others.reduce((sum, other) => sum + weightOf(other), two)
  if (share > MAX_SHARE) return { unknown: 'filters' }
  const isFiltered = Math.exp(hotBest) + Math.exp(hotNext) > (1 + share) / 2
  return { mode: isFiltered ? 'processed_logprobs' : 'temperature_logprobs' }
}

/**
 * Measures one engine before the first call that it serves, in the slot of that call: so a pause waits for the measuring as
 * for the call.
 */
export class LogprobsProbe {
  readonly #client: EngineClient
  readonly #logger: Logger | undefined
  #known: { mode: LogprobsMode | undefined } | undefined
  #running: Promise<void> | undefined
  /** Those that failed. */
  #tries = 0
  #timesForgotten = 0

  constructor(client: EngineClient, logger: Logger | undefined) {
    this.#client = client
    this.#logger = logger
  }

  /** The engine may have been started anew, with other options. */
  forget(): void {
    this.#known = undefined
    this.#tries = 0
    this.#timesForgotten += 1
  }

  /**
   * @param model to ask for, if the engine lists one
   * @param signal of the call that waits; ends the measuring too, if this call has begun it
   * @returns undefined where it could not be found out: an engine that refuses is asked with {@link MAX_TRIES} calls, and not
   *   again before {@link forget}
   */
  async mode(model: string | undefined, signal: AbortSignal): Promise<LogprobsMode | undefined> {
    if (!MEASURED_KINDS.includes(this.#client.kind)) return undefined
    const tries = this.#tries
    while (this.#known === undefined && this.#tries === tries && tries < MAX_TRIES) {
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
    const known = await this.#ask(model, signal)
    // The next call that waits begins anew.
    if (signal.aborted || forgotten !== this.#timesForgotten) return
    if (known === undefined) {
      this.#tries += 1
      return
    }
    this.#known = known
    this.#logger?.info(
      { engine: this.#client.name, logprobs: known.mode ?? 'unknown' },
      "detected the engine's logprobs mode",
    )
  }

  /** @returns undefined: the engine did not answer the question */
  async #ask(
    model: string | undefined,
    signal: AbortSignal,
  ): Promise<{ mode: LogprobsMode | undefined } | undefined> {
    const named = model === undefined ? {} : { model }
    try {
      const [warm, hot] = await Promise.all([
        this.#firstTokens({ ...named, ...WARM }, signal),
        this.#firstTokens({ ...named, ...HOT }, signal),
      ])
      const reading = readLogprobsMode(warm, hot)
      return { mode: 'mode' in reading ? reading.mode : undefined }
    } catch {
      // The call itself says what is wrong with the engine.
      return undefined
    }
  }

  async #firstTokens(sampling: Partial<ChatBody>, signal: AbortSignal): Promise<FirstTokens> {
    const id = `logprobs-${sampling.temperature}`
    const messages: ChatBody['messages'] = [{ role: 'user', content: 'Say hello.' }]
    const body: ChatBody = { messages, ...sampling }
    const request: GenerationRequest = { kind: 'chat', requestId: id, sessionId: id, stream: false, body }
    const found = new Map<string, number>()
    for await (const batch of this.#client.generate(request, signal)) {
      for (const event of batch) {
        if (event.type !== 'delta') continue
        for (const { token, logprob } of event.logprobsContent?.[0]?.top_logprobs ?? [])
          found.set(token, logprob)
      }
    }
    this.#client.endSession?.(id)
    return found
  }
}
