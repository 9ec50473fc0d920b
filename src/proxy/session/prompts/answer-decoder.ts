import { ProxyError } from '../../../base/errors.ts'
import type { GenerationDelta, GenerationEnd } from '../../../protocol/canonical/events.ts'
import type { TokenLogprob } from '../../../protocol/canonical/messages.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'
import { opensReasoning } from '../../tokens/parsers/choose-parser.ts'
import { createForcedCallParser } from '../../tokens/parsers/forced-tool-calls.ts'
import type { OutputDelta } from '../../tokens/parsers/output-delta.ts'
import { createAnswerReader, type OutputReader } from '../../tokens/parsers/output-reader.ts'
import { StopStrings } from '../../tokens/tokenizer/stop-strings.ts'
import { StreamingDecoder } from '../../tokens/tokenizer/streaming-decoder.ts'

/**
 * What reads the answer to this request as the engine itself would have.
 * @param followed `promptText`: what the answer follows; `prefix`: the same, with as much of a turn that was cut off as was
 *   sampled of it, default: promptText; `forcesCall`: the engine is held to write calls as JSON
 */
export function decoderFor(
  { tokenizer, parser, responses, eosTokenIds }: TokenModel,
  body: ChatBody,
  followed: { promptText: string; prefix?: string | undefined; forcesCall: boolean },
): AnswerDecoder {
  const { promptText, prefix = promptText, forcesCall } = followed
  const stops = typeof body.stop === 'string' ? [body.stop] : (body.stop ?? [])
  const startsInReasoning = opensReasoning(parser, promptText)
  const parserOptions = { tools: body.tool_choice === 'none' ? null : body.tools, startsInReasoning }
  // vLLM's name for it, and SGLang's.
  const includeStop = body.include_stop_str_in_output === true || body.no_stop_trim === true
  const byTemplate = forcesCall ? undefined : responses
  const parserOf = () =>
    forcesCall ? createForcedCallParser(parser, parserOptions) : parser.create(parserOptions)
  return new AnswerDecoder({
    decoder: new StreamingDecoder(tokenizer, {
      // A response template may name any of them.
      skipSpecialTokens: body.skip_special_tokens !== false && byTemplate === undefined,
      keepTokens: parser.keepTokens,
    }),
    stops: new StopStrings(stops, { include: includeStop }),
    endTokenIds: new Set([...eosTokenIds, ...numbersOf(body.stop_token_ids)]),
    includeStop,
    ...(body.return_tokens_as_token_ids !== true && { textOf: (id: number) => tokenizer.decode([id]) }),
    oneToolCall: body.parallel_tool_calls === false,
    minTokens: typeof body.min_tokens === 'number' ? body.min_tokens : 0,
    ...(parser.reasoning && { reasoningCount: new ReasoningCount(parser.reasoning, startsInReasoning) }),
    reader: byTemplate?.open(prefix, parserOptions.tools) ?? createAnswerReader(parserOf()),
  })
}

function numbersOf(value: unknown): number[] {
  return Array.isArray(value) ? value.filter((id) => typeof id === 'number') : []
}

const TOKEN_AS_ID = 'token_id:'

/** What an engine says after the start. */
type AnswerEvent = GenerationDelta | GenerationEnd

interface AnswerDecoderParts {
  decoder: StreamingDecoder
  stops: StopStrings
  /** Tokens that end a completion if they are its last. */
  endTokenIds: ReadonlySet<number>
  /** What ends a completion belongs to its text. */
  includeStop: boolean
  /** Stop strings that come with these first tokens end nothing. */
  minTokens: number
  /** The agent takes one tool call: later ones are in the tokens, and not in the message, as vLLM has it. */
  oneToolCall: boolean
  /** What a token reads like by itself; absent: the agent wants tokens written as `token_id:123`. */
  textOf?: (id: number) => string
  reader: OutputReader
  /** Absent: the format has no place where reasoning begins and ends. */
  reasoningCount?: ReasoningCount
}

/**
 * Turns an engine's tokens into what an agent reads. Every token is passed on as it came, with the text that it
 * completed: none, while a character, a stop string or markup is not whole yet.
 */
export class AnswerDecoder {
  readonly #parts: AnswerDecoderParts
  #tokenCount = 0
  /** The last token, if it may have ended the completion: then it shows no text. */
  #undecided: number | undefined
  #calledTools = false
  #hasIds = false
  /** The engine's own text was there, of which nothing is passed on. */
  #hasText = false

  constructor(parts: AnswerDecoderParts) {
    this.#parts = parts
  }

  /**
   * The tokens of all deltas with their text; the engine's own text is dropped. With the end comes what was held back
   * until then, if anything, and the end in the words of the chat API.
   * @throws ProxyError `engine_failed` where the engine sampled and told no ids: the agent would read an empty answer
   */
  async read(events: readonly AnswerEvent[]): Promise<AnswerEvent[]> {
    const decoded = events.map((event) => (event.type === 'delta' ? this.#decodeDelta(event) : event))
    const end = events.findLast((event) => event.type === 'end')
    const texts = decoded.flatMap((event) => ('text' in event ? [event.text] : []))
    if (end !== undefined) texts.push(this.#lastText(end))
    const parsed = await this.#parts.reader.read(texts, end !== undefined)
    let next = 0
    return decoded.flatMap((event): AnswerEvent[] => {
      if ('text' in event) return [{ ...event.tokens, ...this.#note(parsed[next++]!) }]
      return event.type === 'end' ? this.#finish(event, parsed.slice(next)) : [event]
    })
  }

  /** Nothing more will be read. */
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
        'The engine told no token ids of its answer, which token mode reads: a gateway before it may take them out, or ' +
        'it may be too old for return_token_ids'
      throw new ProxyError('engine_failed', message)
    }
    const { decoder, stops, includeStop } = this.#parts
    const endedByToken = end.finishReason === 'stop' && typeof end.stopReason !== 'string'
    const last = endedByToken && !includeStop ? '' : this.#readUndecided()
    return last + stops.push(decoder.flush()) + stops.flush()
  }

  #finish(end: GenerationEnd, parsed: readonly OutputDelta[]): AnswerEvent[] {
    const deltas = parsed.map((delta) => this.#note(delta)).filter(isNotEmpty)
    const finishReason = this.#calledTools && end.finishReason === 'stop' ? 'tool_calls' : end.finishReason
    // null is an engine's word for a completion that ended by itself.
    const stopReason = end.stopReason === undefined ? this.#parts.stops.matched : end.stopReason
    return [
      ...deltas.map((delta) => ({ type: 'delta' as const, ...delta })),
      { ...end, ...this.#usageOf(end), finishReason, ...(stopReason !== undefined && { stopReason }) },
    ]
  }

  /** An engine that is sent ids does not know which of its tokens are reasoning. */
  #usageOf({ usage }: GenerationEnd): Pick<GenerationEnd, 'usage'> {
    const count = this.#parts.reasoningCount?.count() ?? 0
    if (usage === undefined || count === 0) return {}
    const details = { ...usage.completion_tokens_details, reasoning_tokens: count }
    return { usage: { ...usage, completion_tokens_details: details } }
  }

  /** The text that is clear with this token. */
  #read(id: number): string {
    const text = this.#readUndecided()
    if (!this.#parts.endTokenIds.has(id)) return text + this.#decode(id)
    this.#undecided = id
    return text
  }

  /** It ended nothing: its text is as any token's. */
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

  /** An engine writes tokens as ids where alternatives are to be recorded: to the agent they are texts. */
  #withTexts(delta: GenerationDelta): GenerationDelta {
    const { textOf } = this.#parts
    const { logprobsContent: entries } = delta
    if (textOf === undefined || !entries?.[0]?.token.startsWith(TOKEN_AS_ID)) return delta
    const written = <Entry extends Pick<TokenLogprob, 'token' | 'bytes'>>(entry: Entry): Entry => {
      if (!entry.token.startsWith(TOKEN_AS_ID)) return entry
      const token = textOf(Number(entry.token.slice(TOKEN_AS_ID.length)))
      return { ...entry, token, bytes: [...Buffer.from(token)] }
    }
    const logprobsContent = entries.map((entry) => {
      return { ...written(entry), top_logprobs: entry.top_logprobs.map(written) }
    })
    return { ...delta, logprobsContent }
  }

  #note(parsed: OutputDelta): OutputDelta {
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

/** Text enough to find the marker that opens reasoning: it is recognised at the beginning only. */
const HEAD_CHARS = 1_024

/** How many of an answer's tokens are its reasoning, without the markers, as vLLM counts (`count_reasoning_tokens`). */
class ReasoningCount {
  /** null: the prompt has opened it. */
  readonly #openedBy: string | null
  readonly #open: string
  /** Where in the text each token begins. */
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
