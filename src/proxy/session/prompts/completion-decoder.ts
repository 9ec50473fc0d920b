import { ProxyError } from '../../../base/errors.ts'
import type { GenerationDelta, GenerationEnd } from '../../../protocol/canonical/events.ts'
import type { TokenLogprob } from '../../../protocol/canonical/messages.ts'
import type { ChatBody, SamplingFields } from '../../../protocol/canonical/request.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'
import { endsWithReasoningOpener } from '../../tokens/parsers/choose-parser.ts'
import { createForcedToolCallParser } from '../../tokens/parsers/forced-tool-calls.ts'
import type { OutputDelta } from '../../tokens/parsers/output-delta.ts'
import { createOutputReader, type OutputReader } from '../../tokens/parsers/output-reader.ts'
import { StopStrings } from '../../tokens/tokenizer/stop-strings.ts'
import { StreamingDecoder } from '../../tokens/tokenizer/streaming-decoder.ts'

/** The decoder of a completion's tokens, and the search for stop strings in its text. */
export interface CompletionTextReaders {
  readonly decoder: StreamingDecoder
  readonly stops: StopStrings
}

/**
 * Creates the decoder of a chat completion, which parses reasoning and tool calls as the engine would have.
 * @param followed `promptText`: the text before the completion. `prefix`: that text and the part of the message that
 *   was sampled before, for a message that is continued; default: `promptText`. `textBefore`: the content of a message
 *   that is continued; default: none. `forcesCall`: whether decoding is constrained to tool calls as JSON
 */
export function createChatDecoder(
  model: TokenModel,
  body: ChatBody,
  followed: {
    promptText: string
    prefix?: string | undefined
    textBefore?: string | undefined
    forcesCall: boolean
  },
): CompletionDecoder {
  const { tokenizer, parser, responses } = model
  const { promptText, prefix = promptText, textBefore = '', forcesCall } = followed
  const startsInReasoning = endsWithReasoningOpener(parser, promptText)
  const startsInContent = textBefore.trim() !== ''
  const tools = body.tool_choice === 'none' ? null : body.tools
  const parserOptions = { tools, startsInReasoning, startsInContent }
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

/** Creates the decoder of a text completion, which has no reasoning and no tool calls. */
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

/** Creates the decoder and the stop-string search of a text completion. */
export function createCompletionText({ tokenizer }: TokenModel, body: SamplingFields): CompletionTextReaders {
  const skipSpecialTokens = body.skip_special_tokens !== false
  return { decoder: new StreamingDecoder(tokenizer, { skipSpecialTokens }), stops: createStops(body) }
}

function toTextDelta(text: string): OutputDelta {
  return text === '' ? {} : { content: text }
}

/**
 * Creates the decoder and the stop-string search of a chat completion.
 * @param forcesCall whether decoding is constrained to tool calls as JSON
 */
export function createChatText(
  { tokenizer, parser, responses }: TokenModel,
  body: ChatBody,
  forcesCall: boolean,
): CompletionTextReaders {
  // A response template may search for any special token.
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

/** Returns the ids of the tokens that end a completion if they are its last. */
export function getEndTokenIds({ eosTokenIds }: TokenModel, body: SamplingFields): ReadonlySet<number> {
  return new Set([...eosTokenIds, ...filterNumbers(body.stop_token_ids)])
}

/**
 * Returns whether the text includes the stop string or token that ended it; vLLM and SGLang use different fields for
 * this.
 */
function includesStop(body: SamplingFields): boolean {
  return body.include_stop_str_in_output === true || body.no_stop_trim === true
}

function filterNumbers(value: unknown): number[] {
  return Array.isArray(value) ? value.filter((id) => typeof id === 'number') : []
}

/** The prefix of a token that vLLM writes as its id (`return_tokens_as_token_ids`). */
const TOKEN_AS_ID = 'token_id:'

/** An event of an engine after the start. */
type CompletionEvent = GenerationDelta | GenerationEnd

/** The dependencies and options of a {@link CompletionDecoder}. */
interface CompletionDecoderParts {
  decoder: StreamingDecoder
  stops: StopStrings
  /** Tokens that end a completion if they are its last. */
  endTokenIds: ReadonlySet<number>
  /** Whether the stop string or token that ends a completion is part of its text. */
  includeStop: boolean
  /** The number of tokens at the beginning in which stop strings have no effect. */
  minTokens: number
  /** Whether the message contains only the first tool call. Later ones remain in the tokens, as in vLLM. */
  oneToolCall: boolean
  /**
   * Returns the text of a single token. Absent: the agent requested tokens as `token_id:123`, so they are not
   * converted.
   */
  getText?: (id: number) => string
  reader: OutputReader
  /** The counter of reasoning tokens. Absent: the format has no markers of reasoning. */
  reasoningCount?: ReasoningCounter
}

/**
 * A converter of an engine's tokens into output for the agent. Each token is forwarded when it arrives, together with
 * the text that it completed, which may be empty while a character, a stop string or markup is incomplete.
 */
export class CompletionDecoder {
  readonly #parts: CompletionDecoderParts
  #tokenCount = 0
  /** The last token, if it may end the completion. It has no text if it does. */
  #undecided: number | undefined
  #calledTools = false
  #hasIds = false
  /** Whether the engine sent text, which is not forwarded. */
  #hasText = false

  constructor(parts: CompletionDecoderParts) {
    this.#parts = parts
  }

  /**
   * Decodes events. Deltas receive the decoded text in place of the engine's. The end is preceded by deferred text, if
   * any, and has the finish reason of the chat API.
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

  /** Releases the parser. Must be called at the end of the events. */
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
    // null is a stop reason: the completion ended with the model's end token.
    const stopReason = end.stopReason === undefined ? this.#parts.stops.matched : end.stopReason
    return [
      ...deltas.map((delta) => ({ type: 'delta' as const, ...delta })),
      { ...end, ...this.#getUsage(end), finishReason, ...(stopReason !== undefined && { stopReason }) },
    ]
  }

  /** Returns the usage with the number of reasoning tokens, which an engine that receives ids cannot determine. */
  #getUsage({ usage }: GenerationEnd): Pick<GenerationEnd, 'usage'> {
    const count = this.#parts.reasoningCount?.count() ?? 0
    if (usage === undefined || count === 0) return {}
    const details = { ...usage.completion_tokens_details, reasoning_tokens: count }
    return { usage: { ...usage, completion_tokens_details: details } }
  }

  /** Adds a token. @returns the text that it completes */
  #read(id: number): string {
    const text = this.#readUndecided()
    if (!this.#parts.endTokenIds.has(id)) return text + this.#decode(id)
    this.#undecided = id
    return text
  }

  /** Decodes the undecided token, which did not end the completion. */
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

  /** Replaces token ids in logprob entries by texts: an engine writes ids if the proxy records alternatives. */
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

  /** Returns a parsed delta without the tool calls that the agent does not receive. */
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

/** The length of text in which the opening marker of reasoning is searched: it is only recognized at the beginning. */
const HEAD_CHARS = 1_024

/**
 * A counter of a completion's reasoning tokens, without the markers, as `count_reasoning_tokens` of vLLM counts them.
 */
class ReasoningCounter {
  /** The marker that opens the reasoning; null: the prompt ends with it. */
  readonly #openedBy: string | null
  readonly #open: string
  /** The offset of each token's text. */
  readonly #begins: number[] = []
  #length = 0
  #head = ''
  #reasoningChars = 0

  constructor({ open }: { open: string }, startsInReasoning: boolean) {
    this.#open = open
    this.#openedBy = startsInReasoning ? null : open
  }

  /** Adds a token. @param text the text that it completed */
  addToken(text: string): void {
    this.#begins.push(this.#length)
    this.#length += text.length
    if (this.#head.length < HEAD_CHARS) this.#head += text
  }

  /** Adds parsed reasoning, whose length determines where the reasoning ends. */
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
