/**
 * Converts the JSON of OpenAI-compatible engines to generation events, both complete responses (`chat.completion`,
 * `text_completion`) and chunks. Where engines differ, all known locations of a value are read; `docs/engine-wire.md`
 * lists the sources. Only the choice with index 0 is read: a turn records one completion.
 */
import { type ErrorCode, ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../../../../base/json.ts'
import type {
  GenerationDelta,
  GenerationEnd,
  GenerationEvent,
} from '../../../../protocol/canonical/events.ts'
import type { TokenLogprob, Usage } from '../../../../protocol/canonical/messages.ts'
import type { CaptureOptions } from '../../../../protocol/token-data/kinds.ts'
import { PromptIds } from '../../../../protocol/token-ids/prompt-ids.ts'
import { isTokenId } from '../../../../protocol/token-ids/token-ids.ts'
import { addMessage, ToolCallAssembler } from './add-message.ts'
import { readTokenData } from './details/read-token-data.ts'
import {
  convertErrorBody,
  createEngineError,
  createUnfinishedResponseError,
  isError,
  toExcerpt,
} from './failures.ts'
import { type PromptIdParser, parseResponse } from './parse-response.ts'
import { findFirstWeightVersion, findLastWeightVersion, readWeightVersion } from './weight-version.ts'

/** The properties of a request that all engines' readers need. */
export interface ReaderOptions {
  /** The engine's name, for the recorded turn. */
  engine: string
  /** Whether the agent requested logprobs, and therefore receives the engine's entries. */
  wantsLogprobs: boolean
  /** The number of alternatives per token for the agent; undefined: all. */
  alternatives?: number | undefined
  /** The additional token data to read; undefined: none. */
  record?: CaptureOptions | undefined
  /** The prompt position from which routed experts were requested; absent: 0. */
  expertsStart?: number | undefined
  /** Removes credentials from the engine's text before it becomes part of an error. */
  redact(text: string): string
}

export interface CompletionReaderOptions extends ReaderOptions {
  /** Whether the agent requested tokens in the form `token_id:123`. */
  wantsIdsAsTokens: boolean
  /** The ids that were sent as the prompt: the engine sees them unchanged, even if it does not repeat them. */
  sentPromptTokenIds: PromptIds | readonly number[] | undefined
  /** Reads the prompt's ids; absent: they are parsed without a cache. */
  readPrompt?: PromptIdParser | undefined
}

const TOKEN_ID = /^token_id:(\d+)$/

/**
 * Finish reasons of failed responses (`FinishReason` in `vllm/v1/engine/__init__.py`). vLLM ends running requests with
 * `abort` when a trainer pauses it in that mode. It ends a request whose cache could not be loaded with `error`, which
 * its ids route returns like any other reason; OpenRouter uses `error` for a provider failure.
 */
const FAILURES: ReadonlyMap<string, { code: ErrorCode; what: string }> = new Map([
  ['abort', { code: 'engine_aborted', what: 'aborted the request' }],
  ['error', { code: 'engine_failed', what: 'failed during its response' }],
])

export class CompletionReader {
  readonly #options: CompletionReaderOptions
  #started = false
  #finishReason: string | undefined
  #stopReason: string | number | null | undefined
  #usage: Usage | undefined
  #weightVersion: string | undefined
  /** The weight version in the start event. */
  #firstVersion: string | undefined
  #prompt: PromptIds | undefined
  /** The prompt's ids if reported after the start event. */
  #latePrompt: PromptIds | undefined
  #tokens = 0
  #skipped: string | undefined
  readonly #toolCalls = new ToolCallAssembler()

  constructor(options: CompletionReaderOptions) {
    this.#options = options
  }

  /**
   * Reads one chunk, or the complete response, and appends its events to `events`.
   * @param json text, or its UTF-8, which is faster for a complete response
   * @param isComplete whether it is the complete response
   * @throws ProxyError `engine_failed` if it is the engine's error or is malformed, `engine_lost` for an error after
   *   tokens; `engine_rejected` if it is an error of the client
   */
  read(json: string | Buffer, events: GenerationEvent[], isComplete = false): void {
    const response = this.#parse(json)
    this.#readRoot(response)
    if (!Array.isArray(response.choices)) {
      this.#skip(json, isComplete)
      return
    }
    this.#skipped = undefined
    const choice = getFirstChoice(response.choices)
    // vLLM reports the prompt's ids at the root in chat, and in the choice in completions; SGLang in the choice in both.
    const reported = response.prompt_token_ids ?? choice?.prompt_token_ids
    if (!this.#started) this.#start(response, choice, events, isComplete, reported)
    else this.#readLatePrompt(reported)
    if (choice === undefined) return
    this.#weightVersion = findLastWeightVersion(choice) ?? this.#weightVersion
    const delta = this.#delta(choice, response)
    if (delta !== undefined) events.push(delta)
    if (typeof choice.finish_reason === 'string') {
      this.#finishReason = choice.finish_reason
      this.#stopReason = readStopReason(choice)
    }
  }

  /**
   * Returns the event that ends the response, after the last chunk.
   * @throws ProxyError `engine_lost` if no finish reason arrived; `engine_aborted` or `engine_failed` if the engine
   *   aborted the request or failed: the tokens sampled until then are not a finished sample; `engine_failed` or
   *   `engine_rejected` if an event without choices, which must be an error, arrived instead of a finish reason
   */
  end(): GenerationEnd {
    const { engine } = this.#options
    if (this.#finishReason === undefined && this.#skipped !== undefined)
      throw convertErrorBody(engine, this.#skipped, this.#options.redact)
    if (this.#finishReason === undefined) throw createUnfinishedResponseError(engine)
    const failed = FAILURES.get(this.#finishReason)
    if (failed !== undefined) throw new ProxyError(failed.code, `the engine at ${engine} ${failed.what}`)
    return {
      type: 'end',
      finishReason: this.#finishReason,
      stopReason: this.#stopReason,
      usage: this.#usage,
      ...(this.#latePrompt && { promptTokenIds: this.#latePrompt }),
      weightVersion: this.#weightVersion,
    }
  }

  /** Whether the engine has reported another weight version than that of the start event. */
  get haveWeightsChanged(): boolean {
    return this.#firstVersion !== undefined && this.#weightVersion !== this.#firstVersion
  }

  #parse(json: string | Buffer): Record<string, unknown> {
    const { engine, redact, readPrompt } = this.#options
    let response: unknown
    try {
      response = parseResponse(json, readPrompt)
    } catch {
      const text = toExcerpt(redact(json.toString()))
      throw createEngineError(
        'engine_failed',
        `the engine at ${engine} did not respond with JSON`,
        `: ${text}`,
      )
    }
    if (isRecord(response) && !isError(response)) return response
    const isCut = this.#started && this.#finishReason === undefined && isRecord(response)
    throw convertErrorBody(engine, json.toString(), redact, isCut ? 'engine_lost' : 'engine_failed')
  }

  /**
   * Skips an event that has no choices: gateways add warnings and costs to streams, even after the finish reason.
   * Stores its text, because it is reported as an error if no finish reason follows.
   */
  #skip(json: string | Buffer, isComplete: boolean): void {
    const { engine, redact } = this.#options
    if (isComplete) throw convertErrorBody(engine, json.toString(), redact)
    this.#skipped = json.toString()
  }

  #readRoot(response: Record<string, unknown>): void {
    if (isRecord(response.usage)) this.#usage = response.usage as unknown as Usage
    // SGLang sends the version in `metadata`, gateways at the root. The spans of vLLM, which are in the choice, are
    // read separately.
    const version =
      response.weight_version ?? (isRecord(response.metadata) ? response.metadata.weight_version : undefined)
    this.#weightVersion = readWeightVersion(version) ?? this.#weightVersion
  }

  #start(
    response: Record<string, unknown>,
    choice: Record<string, unknown> | undefined,
    events: GenerationEvent[],
    isComplete: boolean,
    reported: unknown,
  ): void {
    this.#started = true
    const holders = [response.metadata, choice].filter(isRecord)
    const first = holders.map((holder) => findFirstWeightVersion(holder, isComplete)).find(Boolean)
    const weightVersion = first ?? (isComplete ? undefined : this.#weightVersion)
    this.#firstVersion = weightVersion
    const promptTokenIds = readIds(reported ?? this.#options.sentPromptTokenIds)
    this.#prompt = promptTokenIds
    events.push({
      type: 'start',
      engine: this.#options.engine,
      model: typeof response.model === 'string' ? response.model : undefined,
      promptTokenIds,
      weightVersion,
      ...(isComplete && { isComplete }),
    })
  }

  /** Stores prompt ids that arrive after the start event: a router may send a chunk before the engine's first one. */
  #readLatePrompt(reported: unknown): void {
    const isReported = reported instanceof PromptIds || (Array.isArray(reported) && reported.length > 0)
    if (!isReported) return
    // A list with an invalid id makes the prompt unknown.
    const ids = readIds(reported) ?? PromptIds.of()
    if (this.#prompt?.equals(ids)) return
    this.#prompt = ids
    this.#latePrompt = ids
  }

  /** Converts a choice. @returns undefined if it contains neither text nor tokens */
  #delta(choice: Record<string, unknown>, response: Record<string, unknown>): GenerationDelta | undefined {
    const delta: GenerationDelta = { type: 'delta' }
    if (isRecord(choice.delta)) addMessage(delta, choice.delta, true, this.#toolCalls)
    else if (isRecord(choice.message)) addMessage(delta, choice.message, false, this.#toolCalls)
    else if (typeof choice.text === 'string' && choice.text !== '') delta.content = choice.text
    const entries = isRecord(choice.logprobs) ? this.#addLogprobs(delta, choice.logprobs) : []
    // null means "not reported" rather than "no tokens": some vLLM versions return it although ids were requested.
    // SGLang's complete chat responses use `response_token_ids` since 0.5.18.
    const ids = choice.token_ids ?? choice.response_token_ids
    if (Array.isArray(ids)) delta.tokenIds = readSampledIds(ids)
    if (this.#options.record) this.#addDetails(delta, choice, response, entries)
    return Object.keys(delta).length > 1 ? delta : undefined
  }

  #addDetails(
    delta: GenerationDelta,
    choice: Record<string, unknown>,
    response: Record<string, unknown>,
    entries: readonly TokenLogprob[],
  ): void {
    const { record, expertsStart = 0 } = this.#options
    this.#tokens += delta.tokenIds?.length ?? 0
    const chunk = { response, choice, prompt: this.#prompt, tokens: this.#tokens, entries, expertsStart }
    const details = readTokenData(record!, chunk)
    if (details) delta.details = details
  }

  /** Adds the logprobs of a choice. @returns the engine's entries, unchanged */
  #addLogprobs(delta: GenerationDelta, logprobs: Record<string, unknown>): readonly TokenLogprob[] {
    const reported = Array.isArray(logprobs.content)
      ? normalizeEntries(logprobs.content)
      : toLegacyEntries(logprobs)
    if (reported.length === 0) return reported
    if (!reported.every(isTokenEntry)) {
      throw new ProxyError(
        'engine_failed',
        `the engine at ${this.#options.engine} responded with invalid logprobs`,
      )
    }
    const entries = reported.map(replaceInvalidLogprob)
    delta.logprobs = entries.map((entry) => entry.logprob)
    const recovered = recoverTokenIds(entries)
    if (recovered !== undefined) delta.tokenIds = recovered
    const { wantsLogprobs, wantsIdsAsTokens, alternatives } = this.#options
    if (!wantsLogprobs) return entries
    const shown =
      alternatives === undefined ? entries : entries.map((entry) => limitAlternatives(entry, alternatives))
    delta.logprobsContent = recovered === undefined || wantsIdsAsTokens ? shown : shown.map(withTokenText)
    return entries
  }
}

function getFirstChoice(choices: unknown[]): Record<string, unknown> | undefined {
  const first = choices.find((choice) => isRecord(choice) && (choice.index ?? 0) === 0)
  return first as Record<string, unknown> | undefined
}

/** Returns ids; undefined if they are absent or invalid: a partly known prompt is treated as unknown. */
function readIds(ids: unknown): PromptIds | undefined {
  if (ids instanceof PromptIds) return ids
  if (!Array.isArray(ids)) return undefined
  const read = new Int32Array(ids.length)
  // One loop over tens of thousands of ids: a separate check and copy take six times as long.
  for (let index = 0; index < ids.length; index += 1) {
    const id: unknown = ids[index]
    if (!isTokenId(id)) return undefined
    read[index] = id
  }
  return new PromptIds(read)
}

/**
 * Converts the parallel lists of the legacy completions API to entries. A null logprob becomes NaN, which keeps the
 * position and cannot be mistaken for a probability.
 */
function toLegacyEntries(logprobs: Record<string, unknown>): TokenLogprob[] {
  const { tokens, token_logprobs: values, top_logprobs: tops } = logprobs
  if (!Array.isArray(values)) return []
  return values.map((value, index) => ({
    token: Array.isArray(tokens) && typeof tokens[index] === 'string' ? tokens[index] : '',
    logprob: typeof value === 'number' ? value : Number.NaN,
    bytes: null,
    top_logprobs: Array.isArray(tops) && isRecord(tops[index]) ? toTopEntries(tops[index]) : [],
  }))
}

function toTopEntries(top: Record<string, unknown>): TokenLogprob['top_logprobs'] {
  return Object.entries(top).map(([token, logprob]) => ({
    token,
    logprob: typeof logprob === 'number' ? logprob : Number.NaN,
    bytes: null,
  }))
}

/**
 * Normalizes entries with ids. vLLM's `/inference/v1/generate` sends no texts, and `token_id` instead of `token`
 * (`GenerateLogProbsContent`, since 0.28). Such an entry is converted to the older form, with the id written as a
 * token.
 */
function normalizeEntries(content: unknown[]): TokenLogprob[] {
  const isByIds = isRecord(content[0]) && content[0].token_id !== undefined
  return isByIds ? content.map(withTokenAsId) : (content as TokenLogprob[])
}

function withTokenAsId(entry: unknown): TokenLogprob {
  if (!isRecord(entry) || entry.token !== undefined || !isTokenId(entry.token_id))
    return entry as TokenLogprob
  const { token_id: id, top_logprobs: tops, ...rest } = entry
  const written = {
    ...rest,
    token: `token_id:${id}`,
    bytes: null,
    ...(Array.isArray(tops) && { top_logprobs: tops.map(withTokenAsId) }),
  }
  return written as unknown as TokenLogprob
}

function isTokenEntry(entry: unknown): boolean {
  return isRecord(entry) && typeof entry.token === 'string'
}

/** Replaces a logprob that is not a number by NaN, so that it is never read as one: `[-1]` is not -1. */
function replaceInvalidLogprob(entry: TokenLogprob): TokenLogprob {
  return typeof entry.logprob === 'number' ? entry : { ...entry, logprob: Number.NaN }
}

/** Returns the ids of tokens in the form `token_id:123`; undefined unless all have it. */
function recoverTokenIds(entries: TokenLogprob[]): number[] | undefined {
  if (!entries[0]?.token.startsWith('token_id:')) return undefined
  const ids: number[] = []
  for (const { token } of entries) {
    const id = TOKEN_ID.exec(token)?.[1]
    if (id === undefined) return undefined
    ids.push(Number(id))
  }
  return ids
}

/** Restores the text of tokens when the proxy, and not the agent, requested ids: engines report the text in `bytes`. */
function withTokenText(entry: TokenLogprob): TokenLogprob {
  const { top_logprobs: tops } = entry
  return { ...readText(entry), ...(tops && { top_logprobs: tops.map(readText) }) }
}

function readText<Entry extends Pick<TokenLogprob, 'token' | 'bytes'>>(entry: Entry): Entry {
  return entry.bytes ? { ...entry, token: Buffer.from(entry.bytes).toString('utf8') } : entry
}

/** Limits the alternatives to the agent's number, since the proxy may have requested more. */
function limitAlternatives(entry: TokenLogprob, count: number): TokenLogprob {
  const { top_logprobs: tops } = entry
  return tops && tops.length > count ? { ...entry, top_logprobs: tops.slice(0, count) } : entry
}

function readStopReason(choice: Record<string, unknown>): string | number | null | undefined {
  const reason = choice.stop_reason === undefined ? choice.matched_stop : choice.stop_reason
  return typeof reason === 'string' || typeof reason === 'number' || reason === null ? reason : undefined
}

const isNumber = (value: unknown): value is number => typeof value === 'number'

/**
 * Returns the ids of an engine's list. A value that is not a number becomes NaN, an invalid id, so that the turn is
 * inexact and later code can rely on numbers.
 */
export function readSampledIds(list: unknown[]): number[] {
  return list.every(isNumber) ? list : list.map((value) => (isNumber(value) ? value : Number.NaN))
}
