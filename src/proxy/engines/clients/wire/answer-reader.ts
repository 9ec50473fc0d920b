/**
 * Turns the JSON that OpenAI-compatible engines answer with, whole (`chat.completion`, `text_completion`) or chunk by chunk,
 * into generation events. Where engines differ, every place that one of them uses is looked at; `docs/engine-wire.md` lists
 * the sources. Only the choice with index 0 is read: a turn records one completion.
 */
import { ProxyError } from '../../../../base/errors.ts'
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
import { addMessage } from './answer-message.ts'
import { answerDetails } from './details/answer-details.ts'
import { answerError, answerUnfinished, excerpt, isError, saidBy } from './failures.ts'
import { parseAnswer, type ReadPrompt } from './parse-answer.ts'
import { sampledIds } from './sampled-ids.ts'
import { ToolCallAssembler } from './tool-call-assembler.ts'
import { firstWeightVersion, lastWeightVersion, weightVersionOf } from './weight-version.ts'

/** What the readers of all engines' answers are told of the call. */
export interface ReaderOptions {
  /** The engine's name, for the record. */
  engine: string
  /** Whether the agent asked for logprobs and gets the engine's own entries. */
  wantsLogprobs: boolean
  /** How many alternatives per token the agent gets; undefined: all that come. */
  alternatives?: number | undefined
  /** What else is to be read of it. */
  record?: CaptureOptions | undefined
  /** The place of the prompt from which routed experts were asked for; absent: 0. */
  expertsStart?: number | undefined
  /** Cleans text of the engine that becomes part of an error. */
  redact(text: string): string
}

export interface AnswerOptions extends ReaderOptions {
  /** Whether the agent asked for tokens written as `token_id:123`. */
  wantsIdsAsTokens: boolean
  /** The ids that were sent as the prompt: the engine sees them as they are, even if it does not repeat them. */
  sentPromptTokenIds: PromptIds | readonly number[] | undefined
  /** What reads the prompt's ids, where it is not enough to read them anew. */
  readPrompt?: ReadPrompt | undefined
}

const TOKEN_ID = /^token_id:(\d+)$/

/**
 * Finish reasons of what did not finish. vLLM fails a call whose cache could not be loaded with `error` (`FinishReason` in
 * `vllm/v1/engine/__init__.py`), which its route of ids answers like any other; OpenRouter has it for a provider that broke.
 */
const FAILURES: ReadonlyMap<string, string> = new Map([
  ['abort', 'aborted the request'],
  ['error', 'failed while it answered'],
])

export class AnswerReader {
  readonly #options: AnswerOptions
  #started = false
  #finishReason: string | undefined
  #stopReason: string | number | null | undefined
  #usage: Usage | undefined
  #weightVersion: string | undefined
  #prompt: PromptIds | undefined
  /** What was reported after the start, and not in it. */
  #latePrompt: PromptIds | undefined
  #tokens = 0
  #skipped: string | undefined
  readonly #toolCalls = new ToolCallAssembler()

  constructor(options: AnswerOptions) {
    this.#options = options
  }

  /**
   * Reads one chunk, or the whole answer, and appends what it says to `events`.
   * @param json text, or its UTF-8, which is the better for a whole answer
   * @param isWhole it is the whole answer
   * @throws ProxyError `engine_failed` when it is the engine's error, or nothing that an engine would say;
   *   `engine_rejected` when the error is the caller's
   */
  read(json: string | Buffer, events: GenerationEvent[], isWhole = false): void {
    const answer = this.#parse(json)
    this.#noteRoot(answer)
    if (!Array.isArray(answer.choices)) {
      this.#skip(json, isWhole)
      return
    }
    this.#skipped = undefined
    const choice = firstChoice(answer.choices)
    // vLLM: at the root in chat, on the choice in completions; SGLang: on the choice in both.
    const reported = answer.prompt_token_ids ?? choice?.prompt_token_ids
    if (!this.#started) this.#start(answer, choice, events, isWhole, reported)
    else this.#notePrompt(reported)
    if (choice === undefined) return
    this.#weightVersion = lastWeightVersion(choice) ?? this.#weightVersion
    const delta = this.#delta(choice, answer)
    if (delta !== undefined) events.push(delta)
    if (typeof choice.finish_reason === 'string') {
      this.#finishReason = choice.finish_reason
      this.#stopReason = stopReasonOf(choice)
    }
  }

  /**
   * The event that ends the answer, to be asked for when the engine has said everything.
   * @throws ProxyError `engine_lost` when no finish reason came; `engine_failed` when the engine aborted the request, or
   *   failed at it: what it had sampled until then is no finished sample; either, or `engine_rejected`, where the last
   *   event without choices takes the place of a finish reason
   */
  end(): GenerationEnd {
    const { engine } = this.#options
    if (this.#finishReason === undefined && this.#skipped !== undefined)
      throw answerError(engine, this.#skipped, this.#options.redact)
    if (this.#finishReason === undefined) throw answerUnfinished(engine)
    const failed = FAILURES.get(this.#finishReason)
    if (failed !== undefined) throw new ProxyError('engine_failed', `the engine at ${engine} ${failed}`)
    return {
      type: 'end',
      finishReason: this.#finishReason,
      stopReason: this.#stopReason,
      usage: this.#usage,
      ...(this.#latePrompt && { promptTokenIds: this.#latePrompt }),
      weightVersion: this.#weightVersion,
    }
  }

  #parse(json: string | Buffer): Record<string, unknown> {
    const { engine, redact, readPrompt } = this.#options
    let answer: unknown
    try {
      answer = parseAnswer(json, readPrompt)
    } catch {
      const said = excerpt(redact(json.toString()))
      throw saidBy('engine_failed', `the engine at ${engine} answered with no JSON`, `: ${said}`)
    }
    if (isRecord(answer) && !isError(answer)) return answer
    throw answerError(engine, json.toString(), redact)
  }

  /**
   * Passes over an event of a stream without choices: gateways add warnings and costs, also after the finish reason. Its
   * words are kept, because an engine that failed may say so in a form of its own.
   */
  #skip(json: string | Buffer, isWhole: boolean): void {
    const { engine, redact } = this.#options
    if (isWhole) throw answerError(engine, json.toString(), redact)
    this.#skipped = json.toString()
  }

  #noteRoot(answer: Record<string, unknown>): void {
    if (isRecord(answer.usage)) this.#usage = answer.usage as unknown as Usage
    // SGLang has it in `metadata`, gateways at the root; vLLM has spans on the choice, on one route.
    const version =
      answer.weight_version ?? (isRecord(answer.metadata) ? answer.metadata.weight_version : undefined)
    this.#weightVersion = weightVersionOf(version) ?? this.#weightVersion
  }

  #start(
    answer: Record<string, unknown>,
    choice: Record<string, unknown> | undefined,
    events: GenerationEvent[],
    isWhole: boolean,
    reported: unknown,
  ): void {
    this.#started = true
    const places = [answer.metadata, choice].filter(isRecord)
    const first = places.map((place) => firstWeightVersion(place, isWhole)).find(Boolean)
    const weightVersion = first ?? (isWhole ? undefined : this.#weightVersion)
    const promptTokenIds = idsOf(reported ?? this.#options.sentPromptTokenIds)
    this.#prompt = promptTokenIds
    events.push({
      type: 'start',
      engine: this.#options.engine,
      model: typeof answer.model === 'string' ? answer.model : undefined,
      promptTokenIds,
      weightVersion,
    })
  }

  /** A router may put a chunk of its own before the engine's first one. @param reported after the start */
  #notePrompt(reported: unknown): void {
    const isReported = reported instanceof PromptIds || (Array.isArray(reported) && reported.length > 0)
    if (!isReported) return
    // A list with what is no id leaves the prompt unknown.
    const ids = idsOf(reported) ?? PromptIds.of()
    if (this.#prompt?.equals(ids)) return
    this.#prompt = ids
    this.#latePrompt = ids
  }

  /** @returns undefined when the choice brings neither text nor tokens */
  #delta(choice: Record<string, unknown>, answer: Record<string, unknown>): GenerationDelta | undefined {
    const delta: GenerationDelta = { type: 'delta' }
    if (isRecord(choice.delta)) addMessage(delta, choice.delta, true, this.#toolCalls)
    else if (isRecord(choice.message)) addMessage(delta, choice.message, false, this.#toolCalls)
    else if (typeof choice.text === 'string' && choice.text !== '') delta.content = choice.text
    const entries = isRecord(choice.logprobs) ? this.#addLogprobs(delta, choice.logprobs) : []
    // null is "not reported", and not "no tokens": some vLLM versions answer so although they were asked.
    // SGLang's whole chat answers call them so since 0.5.18.
    const ids = choice.token_ids ?? choice.response_token_ids
    if (Array.isArray(ids)) delta.tokenIds = sampledIds(ids)
    if (this.#options.record) this.#addDetails(delta, choice, answer, entries)
    return Object.keys(delta).length > 1 ? delta : undefined
  }

  #addDetails(
    delta: GenerationDelta,
    choice: Record<string, unknown>,
    answer: Record<string, unknown>,
    entries: readonly TokenLogprob[],
  ): void {
    const { record, expertsStart = 0 } = this.#options
    this.#tokens += delta.tokenIds?.length ?? 0
    const said = { answer, choice, prompt: this.#prompt, tokens: this.#tokens, entries, expertsStart }
    const details = answerDetails(record!, said)
    if (details) delta.details = details
  }

  /** @returns the engine's entries, as it sent them */
  #addLogprobs(delta: GenerationDelta, logprobs: Record<string, unknown>): readonly TokenLogprob[] {
    const said = Array.isArray(logprobs.content) ? writtenEntries(logprobs.content) : legacyEntries(logprobs)
    if (said.length === 0) return said
    if (!said.every(isTokenEntry)) {
      throw new ProxyError(
        'engine_failed',
        `the engine at ${this.#options.engine} answered with broken logprobs`,
      )
    }
    const entries = said.map(withNumber)
    delta.logprobs = entries.map((entry) => entry.logprob)
    const recovered = recoverTokenIds(entries)
    if (recovered !== undefined) delta.tokenIds = recovered
    const { wantsLogprobs, wantsIdsAsTokens, alternatives } = this.#options
    if (!wantsLogprobs) return entries
    const shown =
      alternatives === undefined ? entries : entries.map((entry) => withFewer(entry, alternatives))
    delta.logprobsContent = recovered === undefined || wantsIdsAsTokens ? shown : shown.map(withTokenText)
    return entries
  }
}

function firstChoice(choices: unknown[]): Record<string, unknown> | undefined {
  const first = choices.find((choice) => isRecord(choice) && (choice.index ?? 0) === 0)
  return first as Record<string, unknown> | undefined
}

/** @returns undefined when they are absent, or not ids: a prompt that is half known is not known */
function idsOf(ids: unknown): PromptIds | undefined {
  if (ids instanceof PromptIds) return ids
  if (!Array.isArray(ids)) return undefined
  const read = new Int32Array(ids.length)
  // One loop over tens of thousands of ids: a check of all and then a copy take six times as long.
  for (let at = 0; at < ids.length; at += 1) {
    const id: unknown = ids[at]
    if (!isTokenId(id)) return undefined
    read[at] = id
  }
  return new PromptIds(read)
}

/**
 * The entries of the older Completions, whose lists run in parallel. A null logprob becomes NaN: it keeps its place, and
 * cannot be mistaken for a probability.
 */
function legacyEntries(logprobs: Record<string, unknown>): TokenLogprob[] {
  const { tokens, token_logprobs: values, top_logprobs: tops } = logprobs
  if (!Array.isArray(values)) return []
  return values.map((value, at) => ({
    token: Array.isArray(tokens) && typeof tokens[at] === 'string' ? tokens[at] : '',
    logprob: typeof value === 'number' ? value : Number.NaN,
    bytes: null,
    top_logprobs: Array.isArray(tops) && isRecord(tops[at]) ? topEntries(tops[at]) : [],
  }))
}

function topEntries(top: Record<string, unknown>): TokenLogprob['top_logprobs'] {
  return Object.entries(top).map(([token, logprob]) => ({
    token,
    logprob: typeof logprob === 'number' ? logprob : Number.NaN,
    bytes: null,
  }))
}

/**
 * `/inference/v1/generate` of vLLM knows no texts and has `token_id` in the place of `token` (`GenerateLogProbsContent`,
 * since 0.28). Such an entry becomes what older versions send: the id, written as a token.
 */
function writtenEntries(content: unknown[]): TokenLogprob[] {
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

/** What stands in the place of a logprob and is no number keeps its place, and is never read as one: `[-1]` is not -1. */
function withNumber(entry: TokenLogprob): TokenLogprob {
  return typeof entry.logprob === 'number' ? entry : { ...entry, logprob: Number.NaN }
}

/** Ids from tokens that are written as `token_id:123`; undefined unless all are. */
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

/** The proxy asked for ids in the place of text, not the agent: engines leave the text in `bytes`. */
function withTokenText(entry: TokenLogprob): TokenLogprob {
  const { top_logprobs: tops } = entry
  return { ...textOf(entry), ...(tops && { top_logprobs: tops.map(textOf) }) }
}

function textOf<Entry extends Pick<TokenLogprob, 'token' | 'bytes'>>(entry: Entry): Entry {
  return entry.bytes ? { ...entry, token: Buffer.from(entry.bytes).toString('utf8') } : entry
}

/** More may have been asked for than the agent did. */
function withFewer(entry: TokenLogprob, count: number): TokenLogprob {
  const { top_logprobs: tops } = entry
  return tops && tops.length > count ? { ...entry, top_logprobs: tops.slice(0, count) } : entry
}

function stopReasonOf(choice: Record<string, unknown>): string | number | null | undefined {
  const reason = choice.stop_reason === undefined ? choice.matched_stop : choice.stop_reason
  return typeof reason === 'string' || typeof reason === 'number' || reason === null ? reason : undefined
}
