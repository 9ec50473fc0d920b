/**
 * Generates one completion token by token, from forced or sampled ids, and returns events. It uses no clock and no I/O.
 */
import type { GenerationDelta, GenerationEnd, GenerationEvent } from '../../protocol/canonical/events.ts'
import type { TokenLogprob } from '../../protocol/canonical/messages.ts'
import type { CaptureOptions } from '../../protocol/token-data/kinds.ts'
import type { TokenTable } from '../../protocol/token-data/token-data.ts'
import type { OutputDelta } from '../../proxy/tokens/parsers/output-delta.ts'
import type { OutputParser } from '../../proxy/tokens/parsers/output-parser.ts'
import { StopStrings } from '../../proxy/tokens/tokenizer/stop-strings.ts'
import { StreamingDecoder } from '../../proxy/tokens/tokenizer/streaming-decoder.ts'
import type { Tokenizer } from '../../proxy/tokens/tokenizer/tokenizer.ts'
import type { EmbeddedModel } from './embedded-model.ts'
import type { NextTokenDistribution } from './ngram-model.ts'
import { Sampler } from './sampler.ts'
import type { LogprobsOptions, SamplingParams } from './sampling-params.ts'
import { selectMostProbable } from './score.ts'

/** The input of a {@link Generation}. */
interface GenerationInput {
  promptIds: readonly number[]
  params: SamplingParams
  /** The forced beginning of the completion; sampling continues after it. */
  forcedIds?: readonly number[]
  /** The parser of content, reasoning and tool calls. Default: none, and all text is content. */
  parser?: OutputParser | undefined
  /** The logprobs that the request asks for. Events contain those of the sampled tokens in any case. */
  logprobsOptions?: LogprobsOptions | undefined
  /** The token data to report in addition to ids and logprobs. */
  record?: CaptureOptions | undefined
}

/** The reason why a completion ends with the current token. */
type EndReason = Pick<GenerationEnd, 'finishReason' | 'stopReason'>

/** A completion in progress. */
export class Generation {
  readonly #model: EmbeddedModel
  readonly #input: GenerationInput
  readonly #sampler: Sampler
  readonly #decoder: StreamingDecoder
  readonly #stops: StopStrings
  /** The ids of prompt and completion so far. */
  readonly #ids: number[]
  #hasToolCalls = false
  #done = false

  constructor(model: EmbeddedModel, input: GenerationInput) {
    this.#model = model
    this.#input = input
    this.#ids = [...input.promptIds]
    this.#sampler = new Sampler({
      params: input.params,
      vocabularySize: model.ngrams.vocabularySize,
      eosTokenId: model.eosTokenId,
      promptIds: input.promptIds,
    })
    const { skipSpecialTokens, stop, includeStop } = input.params
    this.#decoder = new StreamingDecoder(model.tokenizer, { skipSpecialTokens })
    this.#stops = new StopStrings(stop, { include: includeStop })
  }

  /** Whether the last token has been generated. */
  get done(): boolean {
    return this.#done
  }

  /** Generates the next token. @returns its delta and, if it is the last one, the end of the completion */
  generateNext(): GenerationEvent[] {
    const next = this.#model.ngrams.getNextDistribution(this.#ids)
    const id = this.#input.forcedIds?.[this.#completionLength] ?? this.#sampler.draw(next)
    this.#ids.push(id)
    this.#sampler.accept(id)
    const { text, ending } = this.#readToken(id)
    const delta = this.#makeDelta(id, next, this.#parse(text, ending !== undefined))
    return ending ? [delta, this.#finish(ending)] : [delta]
  }

  get #completionLength(): number {
    return this.#ids.length - this.#input.promptIds.length
  }

  /**
   * Decodes a token and checks whether it ends the completion. A stop string takes precedence over the length limit, as
   * in vLLM.
   */
  #readToken(id: number): { text: string; ending?: EndReason } {
    const { params } = this.#input
    const byToken = this.#endingWith(id)
    const decoded = byToken && !params.includeStop ? '' : this.#decoder.push([id])
    // vLLM checks stop strings one token later than stop tokens (`vllm/v1/engine/detokenizer.py`).
    const text = this.#stops.push(decoded, this.#completionLength > params.minTokens)
    const stop = this.#stops.matched
    if (byToken) return { text: text + this.#flushText(), ending: byToken }
    if (stop !== undefined) return { text, ending: { finishReason: 'stop', stopReason: stop } }
    if (this.#completionLength < params.maxTokens) return { text }
    return { text: text + this.#flushText(), ending: { finishReason: 'length', stopReason: null } }
  }

  /** Returns the reason why the completion ends with this token; undefined if the token does not end it. */
  #endingWith(id: number): EndReason | undefined {
    const { params } = this.#input
    if (this.#completionLength < params.minTokens) return undefined
    if (id === this.#model.eosTokenId && !params.ignoreEos) return { finishReason: 'stop', stopReason: null }
    return params.stopTokenIds.includes(id) ? { finishReason: 'stop', stopReason: id } : undefined
  }

  /** Returns the text that was buffered because it could have become a stop string or a complete character. */
  #flushText(): string {
    return this.#stops.flush() + this.#decoder.flush()
  }

  #parse(text: string, isLast: boolean): OutputDelta {
    const { parser } = this.#input
    if (parser === undefined) return text === '' ? {} : { content: text }
    const parsed = parser.push(text)
    return isLast ? joinDeltas(parsed, parser.finish()) : parsed
  }

  #makeDelta(id: number, next: NextTokenDistribution, parsed: OutputDelta): GenerationDelta {
    if (parsed.toolCalls) this.#hasToolCalls = true
    const delta: GenerationDelta = {
      type: 'delta',
      ...parsed,
      tokenIds: [id],
      logprobs: [next.getLogprob(id)],
    }
    const { tokenizer } = this.#model
    const { record, logprobsOptions } = this.#input
    if (record?.topLogprobs !== undefined)
      delta.details = { top_logprobs: getAlternatives(tokenizer, next, record.topLogprobs) }
    if (logprobsOptions) delta.logprobsContent = [describeToken(tokenizer, next, id, logprobsOptions)]
    return delta
  }

  #finish({ finishReason, stopReason }: EndReason): GenerationEnd {
    this.#done = true
    const [promptTokens, completionTokens] = [this.#input.promptIds.length, this.#completionLength]
    return {
      type: 'end',
      finishReason: finishReason === 'stop' && this.#hasToolCalls ? 'tool_calls' : finishReason,
      stopReason: stopReason ?? null,
      usage: {
        prompt_tokens: promptTokens,
        completion_tokens: completionTokens,
        total_tokens: promptTokens + completionTokens,
      },
    }
  }
}

function joinDeltas(first: OutputDelta, second: OutputDelta): OutputDelta {
  const joined: OutputDelta = { ...first, ...second }
  if (first.content && second.content) joined.content = first.content + second.content
  if (first.reasoning && second.reasoning) joined.reasoning = first.reasoning + second.reasoning
  if (first.toolCalls && second.toolCalls) joined.toolCalls = [...first.toolCalls, ...second.toolCalls]
  return joined
}

/** Returns a token's entry in the logprobs of OpenAI's and vLLM's APIs, including its most probable alternatives. */
function describeToken(
  tokenizer: Tokenizer,
  next: NextTokenDistribution,
  id: number,
  options: LogprobsOptions,
): TokenLogprob {
  return {
    ...describe(tokenizer, next, id, options),
    top_logprobs: selectMostProbable(next, tokenizer.vocabSize, options.top).map((other) =>
      describe(tokenizer, next, other, options),
    ),
  }
}

/**
 * Returns a token's entry without alternatives. The bytes are those of the text even if the token is written as its id.
 */
function describe(tokenizer: Tokenizer, next: NextTokenDistribution, id: number, options: LogprobsOptions) {
  const text = tokenizer.getPiece(id).text ?? tokenizer.decode([id])
  return {
    token: options.asTokenIds ? `token_id:${id}` : text,
    logprob: next.getLogprob(id),
    bytes: [...Buffer.from(text)],
  }
}

/** Returns the most probable tokens and their logprobs as a row of token data. */
function getAlternatives(tokenizer: Tokenizer, next: NextTokenDistribution, count: number): TokenTable {
  const ids = selectMostProbable(next, tokenizer.vocabSize, count)
  return { counts: [ids.length], ids, logprobs: ids.map((id) => next.getLogprob(id)) }
}
