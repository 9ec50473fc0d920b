/**
 * Converts responses of SGLang's `/generate` to generation events; the wire format is that of
 * `python/sglang/srt/managers/tokenizer_manager.py`. In a stream, servers repeat everything from the start in each
 * event unless they were started with `--incremental-streaming-output`; older ones, with `--stream-output`, repeat
 * logprobs and text, but not ids. A request cannot select the form, so the length of each list is compared with
 * `completion_tokens`, which always counts from the start.
 *
 * The text is ignored: an event does not show whether its text continues or repeats the previous one. The ids are
 * sufficient.
 */
import { ProxyError } from '../../../../base/errors.ts'
import { isRecord, parseJson } from '../../../../base/json.ts'
import type {
  GenerationDelta,
  GenerationEnd,
  GenerationEvent,
} from '../../../../protocol/canonical/events.ts'
import type { TokenLogprob, Usage } from '../../../../protocol/canonical/messages.ts'
import type { CaptureOptions } from '../../../../protocol/token-data/kinds.ts'
import type { TokenData } from '../../../../protocol/token-data/token-data.ts'
import { PromptIds } from '../../../../protocol/token-ids/prompt-ids.ts'
import { isTokenId } from '../../../../protocol/token-ids/token-ids.ts'
import type { ReaderOptions } from '../wire/completion-reader.ts'
import { readSampledIds } from '../wire/completion-reader.ts'
import {
  createAlternativesTable,
  readAlternatives,
  readInt32Experts,
  readPromptEntries,
  readSamplingLogprobs,
  readSamplingMask,
  readVersionSpans,
} from '../wire/details/read.ts'
import {
  convertErrorBody,
  createEngineError,
  createUnfinishedResponseError,
  isError,
} from '../wire/failures.ts'
import type { JsonReader } from '../wire/generation.ts'
import { findFirstWeightVersion, findLastWeightVersion, readWeightVersion } from '../wire/weight-version.ts'

export interface GenerateReaderOptions extends ReaderOptions {
  /** The ids that were sent; the engine does not repeat them. */
  promptTokenIds: PromptIds
  /**
   * Whether the request has images. The engine inserts their placeholders, so the prompt is known only from its
   * response. Default: no.
   */
  hasImages?: boolean
}

/** SGLang's entry of a token: `[logprob, id, text]`, with the text only if requested. */
type TokenEntry = [logprob: unknown, id: unknown, text?: unknown]

/** A reader of one response of `/generate`. */
export class GenerateReader implements JsonReader {
  readonly #options: GenerateReaderOptions
  #started = false
  /** The number of tokens in events returned so far. */
  #seen = 0
  #meta: Record<string, unknown> = {}
  #skipped: string | undefined
  /** The weight version in the start event. */
  #firstVersion: string | undefined

  constructor(options: GenerateReaderOptions) {
    this.#options = options
  }

  /**
   * Reads one event, or the complete response.
   * @throws ProxyError `engine_failed` if it is the engine's error or has inconsistent tokens, `engine_lost` for an
   *   error after tokens; `engine_aborted` if the engine aborted the request, `engine_rejected` if it did so because of
   *   an error in the request
   */
  read(json: string | Buffer, events: GenerationEvent[], isComplete = false): void {
    const response = this.#parse(json.toString(), isComplete)
    if (response === undefined) return
    this.#meta = response.meta_info
    const aborted = this.#createAbortError()
    if (aborted !== undefined && !this.#hasNewTokens(response.output_ids)) throw aborted
    if (!this.#started) events.push(this.#start(response, isComplete))
    const delta = this.#delta(response)
    if (delta !== undefined) events.push(delta)
    // In a stream, the tokens before an error are recorded. The error of a complete response is thrown by `end`.
    if (aborted !== undefined && !isComplete) throw aborted
  }

  /**
   * Returns the end event.
   * @throws ProxyError `engine_lost` if no finish reason arrived; as {@link read} for an aborted response
   */
  end(): GenerationEnd {
    const aborted = this.#createAbortError()
    if (aborted !== undefined) throw aborted
    const { finish_reason: finish, weight_version: weights } = this.#meta
    if (!isRecord(finish) || typeof finish.type !== 'string') {
      const { engine, redact } = this.#options
      throw this.#skipped === undefined
        ? createUnfinishedResponseError(engine)
        : convertErrorBody(engine, this.#skipped, redact)
    }
    const { matched } = finish
    return {
      type: 'end',
      finishReason: finish.type,
      stopReason: typeof matched === 'string' || typeof matched === 'number' ? matched : null,
      usage: parseUsage(this.#meta),
      weightVersion: readWeightVersion(weights),
    }
  }

  /** Whether the engine has reported another weight version than that of the start event. */
  get haveWeightsChanged(): boolean {
    const last = findLastWeightVersion(this.#meta) ?? readWeightVersion(this.#meta.weight_version)
    return this.#firstVersion !== undefined && last !== undefined && last !== this.#firstVersion
  }

  /** Parses an event. @returns undefined for an event that is not part of the response, such as a gateway's warning */
  #parse(
    json: string,
    isComplete: boolean,
  ): (Record<string, unknown> & { meta_info: Record<string, unknown> }) | undefined {
    const response = parseJson(json)
    const isObject = isRecord(response) && !isError(response)
    this.#skipped = undefined
    if (isObject && isRecord(response.meta_info)) return { ...response, meta_info: response.meta_info }
    const mayBeSkipped = isObject && response.output_ids === undefined && !isComplete
    if (!mayBeSkipped) {
      const isCut =
        this.#seen > 0 && isRecord(response) && isError(response) && !isRecord(this.#meta.finish_reason)
      const { engine, redact } = this.#options
      throw convertErrorBody(engine, json, redact, isCut ? 'engine_lost' : 'engine_failed')
    }
    this.#skipped = json
    return undefined
  }

  /**
   * Returns the error of an aborted response; undefined for any other response. Only the type of its finish reason
   * distinguishes an aborted response.
   */
  #createAbortError(): ProxyError | undefined {
    const { finish_reason: finish } = this.#meta
    if (!isRecord(finish) || finish.type !== 'abort') return undefined
    const message = this.#options.redact(String(finish.message ?? 'no reason given'))
    const status = Number(finish.status_code)
    if (status >= 400 && status < 500) {
      return new ProxyError('engine_rejected', message, {
        status,
        engineBody: { error: { message } },
        logMessage: 'the engine aborted the request',
      })
    }
    return createEngineError(
      'engine_aborted',
      `the engine at ${this.#options.engine} aborted the request`,
      `: ${message}`,
    )
  }

  /**
   * Returns whether an aborted response has new tokens. SGLang repeats the last one when it aborts a request in its
   * queue (`_handle_abort_req`), and older versions report no ids.
   */
  #hasNewTokens(ids: unknown): boolean {
    if (!Array.isArray(ids) || ids.length === 0) return false
    const fresh = this.#selectNew(ids)
    return (
      fresh !== undefined && this.#seen + fresh.length === this.#meta.completion_tokens && fresh.length > 0
    )
  }

  #start({ prompt_token_ids: reported }: Record<string, unknown>, isComplete: boolean): GenerationEvent {
    this.#started = true
    const { engine, promptTokenIds: sent, hasImages } = this.#options
    const promptTokenIds = hasImages ? parseIds(reported) : sent
    this.#firstVersion = findFirstWeightVersion(this.#meta, isComplete)
    return {
      type: 'start',
      engine,
      promptTokenIds,
      weightVersion: this.#firstVersion,
      ...(isComplete && { isComplete }),
    }
  }

  /** Converts the new tokens. @returns undefined if there are none */
  #delta({ output_ids: ids }: Record<string, unknown>): GenerationDelta | undefined {
    if (!Array.isArray(ids)) throw this.#createError('reported no output_ids')
    const fresh = this.#selectNew(readSampledIds(ids))
    if (fresh === undefined) {
      const { completion_tokens: count } = this.#meta
      throw this.#createError(`lost token ids: it reported ${this.#seen}, then ${ids.length}, of ${count}`)
    }
    const details = this.#options.record && this.#details(this.#options.record, fresh.length)
    if (fresh.length === 0) return details && { type: 'delta', details }
    const delta: GenerationDelta = { type: 'delta', tokenIds: fresh, details }
    this.#addLogprobs(delta, fresh)
    this.#seen += fresh.length
    return delta
  }

  /** Reads the requested token data of the new tokens. @param count their number */
  #details(requested: CaptureOptions, count: number): TokenData | undefined {
    const { promptTokenIds, expertsStart = 0 } = this.#options
    const meta = this.#meta
    const fresh = (list: unknown) => (Array.isArray(list) ? this.#selectNew<unknown>(list) : undefined)
    const getFresh = (list: unknown) => {
      const rows = fresh(list)
      return rows?.length === count && count > 0 ? rows : undefined
    }
    const support = requested.samplingMask ? getFresh(meta.output_token_sampling_logprobs) : undefined
    const tops = requested.topLogprobs === undefined ? undefined : getFresh(meta.output_top_logprobs)
    const details: { [Kind in keyof TokenData]: TokenData[Kind] | undefined } = {
      ...(requested.samplingMask && {
        sampling_mask: readSamplingMask(getFresh(meta.output_token_sampling_mask), support),
        sampling_logprobs: readSamplingLogprobs(support),
      }),
      top_logprobs:
        tops &&
        createAlternativesTable(tops.map((row) => readAlternatives(row)?.slice(0, requested.topLogprobs))),
      prompt_logprobs:
        requested.promptLogprobs === undefined
          ? undefined
          : readPromptEntries(meta.input_token_logprobs, meta.input_top_logprobs, requested.promptLogprobs),
      routed_experts: requested.routedExperts
        ? readInt32Experts(
            meta.routed_experts,
            expertsStart,
            promptTokenIds.length + Number(meta.completion_tokens),
          )
        : undefined,
      weight_versions: requested.weightVersions ? readVersionSpans(meta.weight_versions) : undefined,
    }
    const known = Object.entries(details).filter(([, detail]) => detail !== undefined)
    return known.length === 0 ? undefined : (Object.fromEntries(known) as TokenData)
  }

  /**
   * Returns the new entries of a list that contains either all tokens so far or only the new ones. Once a token was
   * seen, the two differ in length.
   * @returns undefined if the list has neither length
   */
  #selectNew<T>(list: T[]): T[] | undefined {
    const count = this.#meta.completion_tokens
    if (this.#seen === 0) return list
    if (list.length === count) return list.slice(this.#seen)
    return this.#seen + list.length === count ? list : undefined
  }

  /** Adds logprobs if there is an entry for each id; otherwise the turn is recorded without them. */
  #addLogprobs(delta: GenerationDelta, ids: readonly number[]): void {
    const { output_token_logprobs: all, output_top_logprobs: allTops } = this.#meta
    const entries = Array.isArray(all) ? this.#selectNew<TokenEntry>(all) : undefined
    if (entries?.length !== ids.length) return
    // A logprob that is null, or of another token, becomes NaN, which cannot be mistaken for a probability.
    delta.logprobs = entries.map(([logprob, id], index) =>
      typeof logprob === 'number' && id === ids[index] ? logprob : Number.NaN,
    )
    if (!this.#options.wantsLogprobs) return
    const tops = Array.isArray(allTops) ? this.#selectNew<TokenEntry[] | null>(allTops) : undefined
    delta.logprobsContent = entries.map((entry, index) => ({
      ...toTokenLogprob(entry),
      top_logprobs: (tops?.[index] ?? []).slice(0, this.#options.alternatives).map(toTokenLogprob),
    }))
  }

  #createError(what: string, detail = ''): ProxyError {
    return createEngineError('engine_failed', `the engine at ${this.#options.engine} ${what}`, detail)
  }
}

/** Parses ids; undefined if they are absent or invalid. */
function parseIds(ids: unknown): PromptIds | undefined {
  return Array.isArray(ids) && ids.every(isTokenId) ? PromptIds.from(ids) : undefined
}

function toTokenLogprob([logprob, , text]: TokenEntry): Omit<TokenLogprob, 'top_logprobs'> {
  const token = typeof text === 'string' ? text : ''
  return {
    token,
    logprob: typeof logprob === 'number' ? logprob : Number.NaN,
    bytes: [...Buffer.from(token)],
  }
}

function parseUsage(meta: Record<string, unknown>): Usage | undefined {
  const { prompt_tokens: prompt, completion_tokens: completion, cached_tokens: cached } = meta
  if (typeof prompt !== 'number' || typeof completion !== 'number') return undefined
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    ...(typeof cached === 'number' && { prompt_tokens_details: { cached_tokens: cached } }),
  }
}
