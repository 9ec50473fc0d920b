import { ProxyError } from '../../../base/errors.ts'
import type { GenerationDelta, GenerationEnd } from '../../../protocol/canonical/events.ts'
import type { TokenLogprob } from '../../../protocol/canonical/messages.ts'
import type { ChatBody, SamplingFields } from '../../../protocol/canonical/request.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'
import { opensReasoning } from '../../tokens/parsers/choose-parser.ts'
import { createForcedToolCallParser } from '../../tokens/parsers/forced-tool-calls.ts'
import type { OutputDelta } from '../../tokens/parsers/output-delta.ts'
import { createOutputReader, type OutputReader } from '../../tokens/parsers/output-reader.ts'
import { StopStrings } from '../../tokens/tokenizer/stop-strings.ts'
import { StreamingDecoder } from '../../tokens/tokenizer/streaming-decoder.ts'

/** Decodes a completion's tokens, and searches the text for stop strings. */
export interface CompletionText {
  readonly decoder: StreamingDecoder
  readonly stops: StopStrings
}

/**
 * Returns a decoder that parses the completion as the engine itself would have.
 * @param followed `promptText`: the text before the completion; `prefix`: the same, with the part of a truncated turn
 *   that was already sampled, default: promptText; `forcesCall`: decoding is constrained to tool calls as JSON
 */
export function createChatDecoder(
  model: TokenModel,
  body: ChatBody,
  followed: { promptText: string; prefix?: string | undefined; forcesCall: boolean },
): CompletionDecoder {
  const { tokenizer, parser, responses } = model
  const { promptText, prefix = promptText, forcesCall } = followed
  const startsInReasoning = opensReasoning(parser, promptText)
  const parserOptions = { tools: body.tool_choice === 'none' ? null : body.tools, startsInReasoning }
  const includeStop = includesStop(body)
  const byTemplate = forcesCall ? undefined : responses
  const getParser = () =>
    forcesCall ? createForcedToolCallParser(parser, parserOptions) : parser.create(parserOptions)
  return new CompletionDecoder({
    ...createChatText(model, body, forcesCall),
    endTokenIds: getEndTokenIds(model, body),
    includeStop,
    ...(body.return_tokens_as_token_ids !== true && { getText: (id: number) => tokenizer.decode([id]) }),
    oneToolCall: body.parallel_tool_calls === false,
    minTokens: typeof body.min_tokens === 'number' ? body.min_tokens : 0,
    ...(parser.reasoning && { reasoningCount: new ReasoningCounter(parser.reasoning, startsInReasoning) }),
    reader: byTemplate?.open(prefix, parserOptions.tools) ?? createOutputReader(getParser()),
  })
}

/** Returns a decoder of a text completion, which has no reasoning and no tool calls. */
export function createTextDecoder(model: TokenModel, body: SamplingFields): CompletionDecoder {
  return new CompletionDecoder({
    ...createCompletionText(model, body),
    endTokenIds: getEndTokenIds(model, body),
    includeStop: includesStop(body),
    oneToolCall: false,
    minTokens: 0,
    reader: { read: (texts) => texts.map(toTextDelta), close() {} },
  })
}

/** Returns the same as {@link createChatText} for a text completion. */
export function createCompletionText({ tokenizer }: TokenModel, body: SamplingFields): CompletionText {
  const skipSpecialTokens = body.skip_special_tokens !== false
  return { decoder: new StreamingDecoder(tokenizer, { skipSpecialTokens }), stops: createStops(body) }
}

function toTextDelta(text: string): OutputDelta {
  return text === '' ? {} : { content: text }
}

/**
 * Returns a decoder of a completion's tokens and the search for stop strings in its text.
 * @param forcesCall whether decoding is constrained to tool calls as JSON
 */
export function createChatText(
  { tokenizer, parser, responses }: TokenModel,
  body: ChatBody,
  forcesCall: boolean,
): CompletionText {
  // A response template may refer to any special token.
  const isByTemplate = !forcesCall && responses !== undefined
  const skipSpecialTokens = body.skip_special_tokens !== false && !isByTemplate
  return {
    decoder: new StreamingDecoder(tokenizer, { skipSpecialTokens, keepTokens: parser.keepTokens }),
    stops: createStops(body),
  }
}

function createStops(body: SamplingFields): StopStrings {
  const stops = typeof body.stop === 'string' ? [body.stop] : (body.stop ?? [])
  return new StopStrings(stops, { include: includesStop(body) })
}

/** Returns the tokens that end a completion if they are its last. */
export function getEndTokenIds({ eosTokenIds }: TokenModel, body: SamplingFields): ReadonlySet<number> {
  return new Set([...eosTokenIds, ...filterNumbers(body.stop_token_ids)])
}

/** The names of the option in vLLM and in SGLang. */
function includesStop(body: SamplingFields): boolean {
  return body.include_stop_str_in_output === true || body.no_stop_trim === true
}

function filterNumbers(value: unknown): number[] {
  return Array.isArray(value) ? value.filter((id) => typeof id === 'number') : []
}

const TOKEN_AS_ID = 'token_id:'

/** The events of an engine after the start. */
type CompletionEvent = GenerationDelta | GenerationEnd

interface CompletionDecoderParts {
  decoder: StreamingDecoder
  stops: StopStrings
  /** Tokens that end a completion if they are its last. */
  endTokenIds: ReadonlySet<number>
  /** Whether the stop string or token that ends a completion is part of its text. */
  includeStop: boolean
  /** The number of first tokens in which stop strings have no effect. */
  minTokens: number
  /**
   * Whether the agent accepts one tool call: later ones remain in the tokens, and are not in the message, as in vLLM.
   */
  oneToolCall: boolean
  /** Returns the text of a single token; absent: the agent requested tokens as `token_id:123`. */
  getText?: (id: number) => string
  reader: OutputReader
  /** Absent: the format has no markers of reasoning. */
  reasoningCount?: ReasoningCounter
}

/**
 * Converts an engine's tokens into output for the agent. Every token is forwarded as it arrived, with the text that it
 * completed: none while a character, a stop string or markup is incomplete.
 */
export class CompletionDecoder {
  readonly #parts: CompletionDecoderParts
  #tokenCount = 0
  /** The last token, if it may have ended the completion, in which case it has no text. */
  #undecided: number | undefined
  #calledTools = false
  #hasIds = false
  /** Whether the engine sent text, which is never forwarded. */
  #hasText = false

  constructor(parts: CompletionDecoderParts) {
    this.#parts = parts
  }

  /**
   * Returns the tokens of all deltas with their text; the engine's own text is dropped. The end is preceded by the
   * deferred text, if any, and has the finish reason of the chat API.
   * @throws ProxyError `engine_failed` if the engine sampled without reporting ids: the agent would receive an empty
   *   completion
   */
  async read(events: readonly CompletionEvent[]): Promise<CompletionEvent[]> {
    const decoded = events.map((event) => (event.type === 'delta' ? this.#decodeDelta(event) : event))
    const end = events.findLast((event) => event.type === 'end')
    const texts = decoded.flatMap((event) => ('text' in event ? [event.text] : []))
    if (end !== undefined) texts.push(this.#lastText(end))
    const parsed = await this.#parts.reader.read(texts, end !== undefined)
    let next = 0
    return decoded.flatMap((event): CompletionEvent[] => {
      if ('text' in event) return [{ ...event.tokens, ...this.#selectToolCalls(parsed[next++]!) }]
      return event.type === 'end' ? this.#finish(event, parsed.slice(next)) : [event]
    })
  }

  /** Releases the parser, at the end of the events. */
  close(): void {
    this.#parts.reader.close()
  }

  #decodeDelta({ content, ...delta }: GenerationDelta): { tokens: GenerationDelta; text: string } {
    const tokens = this.#withTexts(delta)

    this.#hasText ||= Boolean(content)
    this.#hasIds ||= (tokens.tokenIds ?? []).length > 0
    let text = ''
    for (const id of tokens.tokenIds ?? []) text += this.#read(id)
    return { tokens, text }
  }

  #lastText(end: GenerationEnd): string {
    const hasSampled = this.#hasText || (end.usage?.completion_tokens ?? 0) > 0
    if (hasSampled && !this.#hasIds) {
      const message =
        'The engine reported no token ids of its completion, which token mode requires: a gateway in front of it may remove them, or ' +
        'it may be too old for return_token_ids'
      throw new ProxyError('engine_failed', message)
    }
    const { decoder, stops, includeStop } = this.#parts
    const endedByToken = end.finishReason === 'stop' && typeof end.stopReason !== 'string'
    const last = endedByToken && !includeStop ? '' : this.#readUndecided()
    return last + stops.push(decoder.flush()) + stops.flush()
  }

  #finish(end: GenerationEnd, parsed: readonly OutputDelta[]): CompletionEvent[] {
    const deltas = parsed.map((delta) => this.#selectToolCalls(delta)).filter(isNotEmpty)
    const finishReason = this.#calledTools && end.finishReason === 'stop' ? 'tool_calls' : end.finishReason
    // null means that an engine's completion ended by itself.
    const stopReason = end.stopReason === undefined ? this.#parts.stops.matched : end.stopReason
    return [
      ...deltas.map((delta) => ({ type: 'delta' as const, ...delta })),
      { ...end, ...this.#getUsage(end), finishReason, ...(stopReason !== undefined && { stopReason }) },
    ]
  }

  /**
   * Adds the number of reasoning tokens: an engine that receives ids does not know which of its tokens are reasoning.
   */
  #getUsage({ usage }: GenerationEnd): Pick<GenerationEnd, 'usage'> {
    const count = this.#parts.reasoningCount?.count() ?? 0
    if (usage === undefined || count === 0) return {}
    const details = { ...usage.completion_tokens_details, reasoning_tokens: count }
    return { usage: { ...usage, completion_tokens_details: details } }
  }

  /** Returns the text that this token completes. */
  #read(id: number): string {
    const text = this.#readUndecided()
    if (!this.#parts.endTokenIds.has(id)) return text + this.#decode(id)
    this.#undecided = id
    return text
  }

  /** Returns the text of a token that did not end the completion. */
  #readUndecided(): string {
    if (this.#undecided === undefined) return ''
    const text = this.#decode(this.#undecided)
    this.#undecided = undefined
    return text
  }

  #decode(id: number): string {
    const { decoder, stops, minTokens } = this.#parts
    this.#tokenCount += 1
    const text = decoder.push([id])
    this.#parts.reasoningCount?.addToken(text)
    return stops.push(text, this.#tokenCount > minTokens)
  }

  /** Converts tokens to text: an engine writes them as ids if alternatives are recorded. */
  #withTexts(delta: GenerationDelta): GenerationDelta {
    const { getText: textOf } = this.#parts
    const { logprobsContent: entries } = delta
    if (textOf === undefined || !entries?.[0]?.token.startsWith(TOKEN_AS_ID)) return delta
    const write = <Entry extends Pick<TokenLogprob, 'token' | 'bytes'>>(entry: Entry): Entry => {
      if (!entry.token.startsWith(TOKEN_AS_ID)) return entry
      const token = textOf(Number(entry.token.slice(TOKEN_AS_ID.length)))
      return { ...entry, token, bytes: [...Buffer.from(token)] }
    }
    const logprobsContent = entries.map((entry) => {
      return { ...write(entry), top_logprobs: entry.top_logprobs.map(write) }
    })
    return { ...delta, logprobsContent }
  }

  #selectToolCalls(parsed: OutputDelta): OutputDelta {
    if (parsed.reasoning !== undefined) this.#parts.reasoningCount?.addReasoning(parsed.reasoning)
    if (parsed.toolCalls === undefined) return parsed
    this.#calledTools ||= parsed.toolCalls.length > 0
    if (!this.#parts.oneToolCall) return parsed
    const { toolCalls, ...rest } = parsed
    const first = toolCalls.filter(({ index }) => index === 0)
    return first.length === 0 ? rest : { ...rest, toolCalls: first }
  }
}

function isNotEmpty(parsed: OutputDelta): boolean {
  return Object.values(parsed).some((part) => part !== undefined)
}

/** Enough text to find the marker that opens reasoning, which is only recognised at the beginning. */
const HEAD_CHARS = 1_024

/** Counts the reasoning tokens of a completion, without the markers, as in vLLM (`count_reasoning_tokens`). */
class ReasoningCounter {
  /** null: the prompt has opened the reasoning. */
  readonly #openedBy: string | null
  readonly #open: string
  /** The offset of each token in the text. */
  readonly #begins: number[] = []
  #length = 0
  #head = ''
  #reasoningChars = 0

  constructor({ open }: { open: string }, startsInReasoning: boolean) {
    this.#open = open
    this.#openedBy = startsInReasoning ? null : open
  }

  /** @param text that the token completed */
  addToken(text: string): void {
    this.#begins.push(this.#length)
    this.#length += text.length
    if (this.#head.length < HEAD_CHARS) this.#head += text
  }

  addReasoning(text: string): void {
    this.#reasoningChars += text.length
  }

  count(): number {
    if (this.#reasoningChars === 0) return 0
    let from = this.#openedBy === null ? 0 : this.#head.indexOf(this.#openedBy)
    while (this.#head.startsWith(this.#open, from)) from += this.#open.length
    const end = from + this.#reasoningChars
    return this.#begins.filter((begin) => begin >= from && begin < end).length
  }
}
