/**
 * Verifies recorded turns with an engine: the engine scores prompt and completion, and its logprob of each sampled
 * token is compared with the recorded one.
 */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { ProxyError, toProxyError } from '../../base/errors.ts'
import { CompletionBuilder } from '../../protocol/canonical/completion.ts'
import type { EngineSampling } from '../../protocol/canonical/events.ts'
import { PromptIds } from '../../protocol/token-ids/prompt-ids.ts'
import type { EngineClient, EngineHealth } from '../engines/port/engine-client.ts'
import type { ScoreRequest, TokenScore } from '../engines/port/score.ts'
import {
  type Comparison,
  comparePairs,
  findFirstDeviation,
  isScaling,
  isWithin,
  type LogprobsKind,
  pairMasked,
  pairTokens,
  type TokenDifference,
  type TokenPair,
  type Tolerance,
} from './compare.ts'
import { findHint } from './hints.ts'
import type { TurnMasks } from './turn-masks.ts'

/** The fields of a recorded turn that verification reads. */
export interface VerifiableTurn extends TurnMasks {
  readonly sessionId: string
  readonly turnId: string
  readonly index: number
  readonly status: string
  readonly exact: boolean
  readonly model: string | null
  readonly params: Readonly<Record<string, unknown>>
  /** The engine's defaults of sampling parameters, as far as they were recorded. */
  readonly defaults?: EngineSampling['defaults'] | undefined
  /** Whether the prompt has images, audio or video. */
  readonly hasMedia?: boolean
  readonly promptTokenIds: ArrayLike<number>
  readonly completionTokenIds: ArrayLike<number>
  readonly completionLogprobs: ArrayLike<number>
  /** The distribution of the recorded logprobs. Default: {@link Verifier.defaultLogprobsKind}. */
  readonly logprobsKind?: LogprobsKind | undefined
  readonly weightVersionStart: string | null
  readonly weightVersionEnd: string | null
}

/** The options of a {@link Verifier}. */
export interface VerifyOptions {
  /** The tolerance. Default: a mean of 0.05 nats, and 1 nat for a token. */
  readonly tolerance?: Tolerance
  /**
   * The distribution of all recorded logprobs. Default: that of the turn, else {@link Verifier.defaultLogprobsKind}.
   */
  readonly logprobsKind?: LogprobsKind | undefined
  /** Whether turns are compared even if the engine has other weights. Default: no. */
  readonly anyWeights?: boolean
  /** The model to request. Default: that of each turn. */
  readonly model?: string | undefined
  /** Whether turns that were sampled greedily are also sampled again, and their ids compared. Default: no. */
  readonly greedy?: boolean
  /** The number of alternatives to request for each token, if they are needed. Default: 20, vLLM's default maximum. */
  readonly alternatives?: number
}

/** The reason why a turn was not compared. */
export type SkipReason =
  | 'not_completed'
  | 'inexact'
  | 'empty'
  | 'images'
  | 'other_weights'
  | 'changed_weights'
  | 'other_model'
  | 'unknown_temperature'
  | 'refused'

/** The result of sampling a turn again. */
interface GreedyCheck {
  /** Whether all ids are equal. */
  same: boolean
  /** The first token that differs; null if none does. */
  first_difference: { index: number; recorded: number; sampled: number | null } | null
}

/** The result of a turn. The names are those of the public JSON. */
export interface TurnResult {
  session_id: string
  turn_id: string
  index: number
  verdict: 'same' | 'differs' | 'skipped'
  /** The reason why the turn was skipped. */
  reason?: SkipReason
  /** The assumed distribution of the recorded logprobs. */
  logprobs?: LogprobsKind
  comparison?: Comparison
  /** The comparison of the logprobs over the masks, if these were recorded as well. */
  masked?: Comparison
  first_difference?: TokenDifference | null
  hint?: string
  greedy?: GreedyCheck
}

/** The result of a turn, and the data from which it was computed. */
export interface TurnVerification {
  readonly result: TurnResult
  /** The logprobs of a compared turn; empty if it was skipped. */
  readonly pairs: readonly TokenPair[]
  /** The engine's scores of a compared turn; empty if it was skipped. */
  readonly scored: readonly TokenScore[]
}

const TOLERANCE: Tolerance = { mean: 0.05, token: 1 }
const ALTERNATIVES = 20
/** The maximum number of changed prompts with which the negative control tries a turn. */
const CONTROL_ATTEMPTS = 3

/** A verifier of turns with one engine. */
export class Verifier {
  readonly tolerance: Tolerance
  readonly #engine: EngineClient
  readonly #options: VerifyOptions
  readonly #health: EngineHealth

  /**
   * @param health the reported state of the engine; a verifier must be created again if its weights change
   * @throws ProxyError `unsupported` for an engine that cannot score
   */
  constructor(engine: EngineClient, health: EngineHealth, options: VerifyOptions = {}) {
    if (!engine.score) {
      const message = `the engine at ${engine.name} cannot score tokens; use vLLM, SGLang or the embedded engine`
      throw new ProxyError('unsupported', message)
    }
    this.#engine = engine
    this.#health = health
    this.#options = options
    this.tolerance = options.tolerance ?? TOLERANCE
  }

  /**
   * The distribution of turns for which none was recorded: SGLang reports logprobs after temperature, other engines
   * before it.
   */
  get defaultLogprobsKind(): LogprobsKind {
    return this.#options.logprobsKind ?? (this.#engine.kind === 'sglang' ? 'temperature' : 'raw')
  }

  #getLogprobsKind(turn: VerifiableTurn): LogprobsKind {
    return this.#options.logprobsKind ?? turn.logprobsKind ?? this.defaultLogprobsKind
  }

  /** Verifies a turn. @throws ProxyError of the engine, except `engine_rejected`, after which the turn is skipped */
  async verify(turn: VerifiableTurn, signal: AbortSignal): Promise<TurnVerification> {
    const { sessionId: session_id, turnId: turn_id, index } = turn
    const head = { session_id, turn_id, index }
    const skipped = (reason: SkipReason): TurnVerification => ({
      result: { ...head, verdict: 'skipped', reason },
      pairs: [],
      scored: [],
    })
    const reason = this.#findSkipReason(turn)
    if (reason !== undefined) return skipped(reason)
    try {
      const scored = await this.#score(turn, Int32Array.from(turn.promptTokenIds), signal)
      const pairs = this.#pairTokens(turn, scored)
      const masked = createMaskedPairs(turn, scored)
      const greedy = this.#isGreedyChecked(turn) ? await this.#sampleAgain(turn, signal) : undefined
      return { result: { ...head, ...this.#judge(turn, { pairs, masked, greedy }) }, pairs, scored }
    } catch (thrown) {
      const error = toProxyError(thrown)
      // vLLM must sample one token after the completion, for which a full context has no room.
      if (error.code === 'engine_rejected') return skipped('refused')
      throw error
    }
  }

  /**
   * Runs the negative control: if the last token of the prompt is changed, the engine's logprobs of the completion must
   * differ. If they do not, the engine ignores the prompt, and its scores are meaningless.
   * @param verification the result of {@link verify}
   * @returns whether the logprobs differ
   */
  async runControl(
    turn: VerifiableTurn,
    { scored }: TurnVerification,
    signal: AbortSignal,
  ): Promise<boolean> {
    const truth = scored.map(({ logprob }) => logprob)
    for (const prompt of createOtherPrompts(turn)) {
      const changed = await this.#score(turn, prompt, signal)
      if (!isWithin(comparePairs(pairTokens(truth, changed, 'raw', 1)), this.tolerance)) return true
    }
    return false
  }

  #pairTokens(turn: VerifiableTurn, scored: readonly TokenScore[]): TokenPair[] {
    const { completionLogprobs: recorded, completionTokenIds: tokenIds, samplingMask: mask = [] } = turn
    const kind = this.#getLogprobsKind(turn)
    if (kind === 'raw') return pairTokens(recorded, scored, kind, 1)
    const temperature = getTemperature(turn)
    assert(temperature !== undefined, 'a turn is compared after temperature only if its temperature is known')
    if (kind === 'mask') return pairMasked({ recorded, tokenIds, mask }, scored, temperature)
    return pairTokens(recorded, scored, kind, temperature)
  }

  #judge(
    turn: VerifiableTurn,
    { pairs, masked, greedy }: TurnFindings,
  ): Omit<TurnResult, 'session_id' | 'turn_id' | 'index'> {
    const { tolerance } = this
    const comparison = comparePairs(pairs)
    const overMask = masked.length > 0 ? comparePairs(masked) : undefined
    const isSame = isWithin(comparison, tolerance)
    const isMaskSame = overMask === undefined || isWithin(overMask, tolerance)
    const hint = isSame ? undefined : findHint({ pairs, params: turn.params, tolerance })
    return {
      verdict: isSame && isMaskSame && greedy?.same !== false ? 'same' : 'differs',
      logprobs: this.#getLogprobsKind(turn),
      comparison,
      ...(overMask && { masked: overMask }),
      ...(isSame && !isMaskSame && { hint: MASK_DIFFERS }),
      first_difference: findFirstDeviation(pairs, turn.completionTokenIds, tolerance),
      ...(hint !== undefined && { hint }),
      ...(greedy && { greedy }),
    }
  }

  #findSkipReason(turn: VerifiableTurn): SkipReason | undefined {
    if (turn.status !== 'completed') return 'not_completed'
    if (!turn.exact) return 'inexact'
    if (turn.completionTokenIds.length === 0) return 'empty'
    // The request to score has token ids only, so that the engine would score another prompt.
    if (turn.hasMedia) return 'images'
    const { weightVersion, models } = this.#health
    const { weightVersionStart: start, weightVersionEnd: end } = turn
    if (!this.#options.anyWeights) {
      if (start !== end) return 'changed_weights'
      if (weightVersion !== undefined && start !== null && start !== weightVersion) return 'other_weights'
    }
    const { model = turn.model } = this.#options
    const isServed = model === null || models.length === 0 || models.some(({ id }) => id === model)
    if (!isServed) return 'other_model'
    const isKnown = this.#getLogprobsKind(turn) === 'raw' || getTemperature(turn) !== undefined
    return isKnown ? undefined : 'unknown_temperature'
  }

  async #score(
    turn: VerifiableTurn,
    promptTokenIds: Int32Array,
    signal: AbortSignal,
  ): Promise<readonly TokenScore[]> {
    const { model = turn.model, alternatives = ALTERNATIVES } = this.#options
    const isAdapter = this.#health.models.some(({ id, isAdapter: is }) => id === model && is)
    const loraPath = isAdapter ? model : turn.params.lora_path
    const temperature = getTemperature(turn)
    const needsAlternatives =
      temperature !== undefined &&
      (isScaling(this.#getLogprobsKind(turn), temperature) || turn.samplingLogprobs !== undefined)
    const request: ScoreRequest = {
      promptTokenIds,
      completionTokenIds: Int32Array.from(turn.completionTokenIds),
      model: model ?? undefined,
      loraPath: typeof loraPath === 'string' ? loraPath : undefined,
      alternatives: needsAlternatives ? alternatives : 0,
    }
    return (await this.#engine.score!(request, signal)).tokens
  }

  /** Returns whether a turn is sampled again. */
  #isGreedyChecked(turn: VerifiableTurn): boolean {
    return this.#options.greedy === true && getTemperature(turn) === 0 && this.#engine.takesTokenIds
  }

  /** Samples as many tokens as were recorded after the same prompt, and compares their ids. */
  async #sampleAgain(turn: VerifiableTurn, signal: AbortSignal): Promise<GreedyCheck> {
    const { model = turn.model } = this.#options
    const { completionTokenIds: recorded } = turn
    const id = randomUUID()
    const { max_completion_tokens: _newer, n: _n, stream: _s, stream_options: _o, ...params } = turn.params
    const body = {
      ...params,
      messages: [],
      ...(model !== null && { model }),
      max_tokens: recorded.length,
    }
    const request = {
      kind: 'chat' as const,
      body,
      requestId: id,
      sessionId: id,
      stream: false,
      promptTokenIds: new PromptIds(Int32Array.from(turn.promptTokenIds)),
    }
    const completion = new CompletionBuilder()
    await this.#engine.generate(request, completion, signal)
    const { tokenIds: sampled } = completion
    const index = Array.from(recorded).findIndex((token, index) => sampled[index] !== token)
    if (index === -1) return { same: true, first_difference: null }
    const difference = { index, recorded: recorded[index]!, sampled: sampled[index] ?? null }
    return { same: false, first_difference: difference }
  }
}

/** The comparisons of a turn. */
interface TurnFindings {
  readonly pairs: readonly TokenPair[]
  /** The logprobs over the masks; empty if they were not recorded. */
  readonly masked: readonly TokenPair[]
  readonly greedy: GreedyCheck | undefined
}

const MASK_DIFFERS =
  'the logprobs over the tokens that remain after top_p, top_k or min_p differ: a mask is missing or wrong'

/**
 * Pairs the recorded logprobs over masks with the engine's, for the tokens that have such a logprob. The mask of such a
 * token may be missing. There are no pairs if the temperature is unknown, on which these logprobs depend.
 */
function createMaskedPairs(turn: VerifiableTurn, scored: readonly TokenScore[]): TokenPair[] {
  const { samplingLogprobs, samplingMask, completionTokenIds } = turn
  const temperature = getTemperature(turn)
  if (samplingLogprobs === undefined || temperature === undefined) return []
  const indices = scored
    .map((_, index) => index)
    .filter((index) => typeof samplingLogprobs[index] === 'number')
  const tokens = {
    recorded: indices.map((index) => samplingLogprobs[index]!),
    tokenIds: indices.map((index) => completionTokenIds[index]!),
    mask: indices.map((index) => samplingMask?.[index] ?? null),
  }
  return pairMasked(
    tokens,
    indices.map((index) => scored[index]!),
    temperature,
  )
}

/**
 * Returns the temperature of a turn; undefined if its request sets none and the engine's default was not recorded:
 * engines take it from the model's `generation_config.json`, often below 1.
 */
function getTemperature({ params: { temperature }, defaults }: VerifiableTurn): number | undefined {
  return typeof temperature === 'number' ? temperature : defaults?.temperature
}

/** Returns prompts whose last token, which affects a model most, is replaced by other tokens of the turn. */
function createOtherPrompts({ promptTokenIds, completionTokenIds }: VerifiableTurn): Int32Array[] {
  const prompt = Int32Array.from(promptTokenIds)
  const last = prompt.at(-1)!
  const others = new Set([...Array.from(completionTokenIds), ...prompt.toReversed()])
  others.delete(last)
  // If all tokens of the turn are equal, any other id is used.
  if (others.size === 0) others.add(last === 0 ? 1 : last - 1)
  return [...others].slice(0, CONTROL_ATTEMPTS).map((other) => prompt.with(-1, other))
}
