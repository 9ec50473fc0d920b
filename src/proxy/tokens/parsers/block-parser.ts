/**
 * The grammar of families that write tool calls as blocks with an opening marker: Hermes, Qwen3-Coder, GLM, DeepSeek,
 * Kimi, Mistral and others. A {@link BlockSyntax} describes the markers and the contents of a family's blocks.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import type { DeltaBuilder, OutputToolCall } from './output-delta.ts'
import { type Grammar, OutputParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import type { GrammarStep, TextReader } from './text-reader.ts'

/**
 * The result of reading a block: its tool calls, or the reason why it contains none.
 * - `malformed`: the text that was read is content, and parsing continues after it.
 * - `misread`: a string in the block was not terminated correctly and may have swallowed the closing marker. The block
 *   up to its first closing marker is content, and the text after the marker is parsed again. This is linear only for
 *   grammars like that of `json-tool-calls.ts`.
 * - `unclosed`: a value was not closed when the text ended. The block is read again with `closesEarly`.
 */
export type BlockResult = OutputToolCall[] | 'malformed' | 'misread' | 'unclosed'

/** The options for reading a block. */
export interface BlockOptions extends OutputParserOptions {
  /**
   * Whether the block's closing marker also ends a value, because a value of this or an earlier block lacks its closing
   * tag.
   */
  closesEarly: boolean
}

/** The syntax of a family's tool calls. */
export interface ToolCallSyntax {
  /** The opening markers, any of which begins a block. */
  opens: readonly string[]
  /** The closing marker. Default: none; a misread block ends at the next block's opening marker. */
  close?: string
  /** Additional markers around a tool call or a group of tool calls. */
  wrapper?: Markers | undefined
  /** Reads a block from after its opening marker to the end of its closing marker. */
  read(reader: TextReader, options: BlockOptions): GrammarStep<BlockResult>
}

/** The syntax of a family's completions. */
export interface BlockSyntax {
  /** Markers around reasoning at the beginning of a completion. */
  reasoning?: Markers & {
    /** Whether the opening marker of a tool call, or of its wrapper, also ends reasoning. */
    callEndsIt?: boolean
  }
  /** Pairs of markers, one of which may enclose the content. */
  answer?: readonly Markers[]
  /** Special tokens between the parts of a completion, which are omitted from the output. */
  silent?: readonly string[]
  call?: ToolCallSyntax
}

/** A pair of markers. */
export interface Markers {
  open: string
  close: string
}

/** The reasoning markers of most models. */
export const THINK = { open: '<think>', close: '</think>' } as const

/**
 * The same markers for models that may begin a tool call inside unclosed reasoning, as in vLLM's and SGLang's parsers.
 */
export const THINK_OR_CALL = { ...THINK, callEndsIt: true } as const

/**
 * Creates the parser family of a block syntax.
 * @param innerMarkers the markers inside tool calls
 */
export function createBlockFamily(
  name: string,
  innerMarkers: readonly string[],
  syntax: BlockSyntax,
): ParserFamily {
  const { reasoning, answer = [], silent = [], call } = syntax
  const pairs = [reasoning, ...answer, call?.wrapper].flatMap((pair) => [pair?.open, pair?.close])
  const markers = [...pairs, ...(call?.opens ?? []), call?.close, ...silent, ...innerMarkers]
  const grammar = createBlockGrammar(syntax)
  return {
    name,
    keepTokens: markers.filter((marker) => marker !== undefined),
    reasoning,
    callBegin: getCallBegin(syntax),
    grammar,
    create: (options) => new OutputParser(grammar, options),
  }
}

/** Creates the grammar of a block syntax. */
export function createBlockGrammar(syntax: BlockSyntax): Grammar {
  const { reasoning, answer = [], silent = [], call } = syntax
  const wrapper = call?.wrapper
  const answerOpens = answer.map(({ open }) => open)
  const ends = [...answer.map(({ close }) => close), ...silent]
  const reasoningCloses = reasoning ? [reasoning.close] : []
  const ignored = [...reasoningCloses, ...silent]
  const callMarkers = call ? [...call.opens, ...(wrapper ? [wrapper.open, wrapper.close] : [])] : []
  const markersWithCalls = new MarkerSet([...callMarkers, ...ends])
  const markersWithoutCalls = new MarkerSet(ends)
  const markersAndReasoningEnd = new MarkerSet([...callMarkers, ...ends, ...reasoningCloses])
  const reasoningEnd = new MarkerSet(reasoningCloses)
  const reasoningOrCallEnd = new MarkerSet([...reasoningCloses, ...getCallBegin(syntax)])

  return function* readCompletion(reader, delta, options) {
    const content = new ContentFilter(delta)
    const looksForCalls = call !== undefined && (options.tools?.length ?? 0) > 0
    let markers = looksForCalls ? markersWithCalls : markersWithoutCalls
    const { startsInReasoning, startsInContent } = options
    if (
      reasoning &&
      (startsInReasoning ||
        (!startsInContent && (yield* readReasoningOpener(reader, reasoning.open, content))))
    ) {
      const ends = looksForCalls ? reasoningOrCallEnd : reasoningEnd
      const end = yield* readReasoning(reader, delta, { open: reasoning.open, ends })
      if (end !== undefined && end !== reasoning.close) {
        reader.putBack(end)
        // The model may write the closing marker of reasoning after the tool call.
        markers = markersAndReasoningEnd
      }
    }
    if (answerOpens.length > 0) {
      const space = yield* reader.space()
      if ((yield* reader.oneOf(answerOpens)) === undefined) content.add(space)
      else content.dropLeadingNewlines()
    }
    yield* readContent(reader, content, { markers, ignored, call }, options)
    content.end()
  }
}

/** Returns the opening markers of tool calls, if they end reasoning. */
function getCallBegin({ reasoning, call }: BlockSyntax): string[] {
  return reasoning?.callEndsIt && call ? [call.wrapper?.open ?? call.opens[0]!] : []
}

/**
 * Reads the opening marker of reasoning, if the completion begins with it. Later ones are part of the content.
 */
function* readReasoningOpener(
  reader: TextReader,
  open: string,
  content: ContentFilter,
): GrammarStep<boolean> {
  const space = yield* reader.space()
  if (yield* reader.literal(open)) return true
  content.add(space)
  return false
}

/**
 * Reads reasoning, including the white space around it. Further opening markers are skipped, because the template may
 * already have written one. vLLM (0.32, `parser/qwen3.py`) and SGLang (0.5.23, `parser/reasoning_parser.py`) do the
 * same.
 * @returns the marker that ended the reasoning; undefined at the end of the text
 */
export function* readReasoning(
  reader: TextReader,
  delta: DeltaBuilder,
  { open, ends }: { open: string; ends: MarkerSet },
): GrammarStep<string | undefined> {
  while (yield* reader.literal(open)) {}
  const { marker } = yield* reader.upTo(ends, (text) => delta.addReasoning(text))
  return marker
}

/** Reads content and tool calls to the end of the text. */
function* readContent(
  reader: TextReader,
  content: ContentFilter,
  {
    markers,
    ignored,
    call,
  }: { markers: MarkerSet; ignored: readonly string[]; call: ToolCallSyntax | undefined },
  options: OutputParserOptions,
): GrammarStep<void> {
  let closesEarly = false
  for (;;) {
    const { marker } = yield* reader.upTo(markers, (text) => content.add(text))
    if (marker === undefined) return
    if (ignored.includes(marker)) continue
    if (call?.opens.includes(marker)) {
      closesEarly = yield* readBlock(reader, content, { call, open: marker }, { ...options, closesEarly })
    } else if (marker === call?.wrapper?.open || marker === call?.wrapper?.close) {
      content.addWrapper(marker, marker === call.wrapper?.open)
    } else {
      yield* readAnswerEnd(reader, content, marker)
    }
  }
}

/** Handles a marker after content: it is markup if only white space follows it, else content. */
function* readAnswerEnd(reader: TextReader, content: ContentFilter, marker: string): GrammarStep<void> {
  const space = yield* reader.space()
  if (yield* reader.atEnd()) content.dropSpace()
  else content.add(marker + space)
}

/** Reads a block, and adds its tool calls or its text. @returns the value of `closesEarly` for the text that follows */
function* readBlock(
  reader: TextReader,
  content: ContentFilter,
  { call, open }: { call: ToolCallSyntax; open: string },
  options: BlockOptions,
): GrammarStep<boolean> {
  reader.startRecord()
  const reading = yield* call.read(reader, options)
  const body = reader.stopRecord()
  if (Array.isArray(reading)) {
    content.addCalls(reading)
  } else if (reading === 'unclosed' && !options.closesEarly) {
    reader.putBack(open + body)
    return true
  } else {
    const bodyLength = reading === 'misread' ? findFirstEnd(body, call) : body.length
    reader.putBack(body.slice(bodyLength))
    content.add(open + body.slice(0, bodyLength))
  }
  return options.closesEarly
}

/** Returns the length of a misread block, including its first closing marker. */
function findFirstEnd(body: string, { opens, close }: ToolCallSyntax): number {
  if (close === undefined) {
    const next = opens.map((open) => body.indexOf(open)).filter((index) => index !== -1)
    return Math.min(body.length, ...next)
  }
  const index = body.indexOf(close)
  return index === -1 ? body.length : index + close.length
}

/**
 * A filter that removes white space and wrappers around tool calls from content. Trailing white space is buffered until
 * the text after it shows whether it is content or markup.
 */
class ContentFilter {
  readonly #delta: DeltaBuilder
  #pending = ''
  #dropsNewlines = false
  /** Whether only white space and markup have followed the last tool call. */
  #followsCall = false

  constructor(delta: DeltaBuilder) {
    this.#delta = delta
  }

  /** Drops newlines at the beginning of the next text, because they belong to the markup before it. */
  dropLeadingNewlines(): void {
    this.#dropsNewlines = true
  }

  add(text: string): void {
    const more = this.#dropsNewlines ? text.replace(/^\n+/, '') : text
    if (more !== '') this.#dropsNewlines = false
    const stripped = more.trimEnd()
    if (stripped !== '') {
      this.#delta.addContent(this.#pending + stripped)
      this.#pending = ''
      this.#followsCall = false
    }
    this.#pending += more.slice(stripped.length)
  }

  /** Adds a marker of a wrapper. A wrapper without a tool call is content. */
  addWrapper(marker: string, isOpening: boolean): void {
    if (isOpening) this.#pending += marker
    else if (this.#followsCall) this.#pending = ''
    else this.add(marker)
  }

  /** Drops the buffered text, which belongs to markup. */
  dropSpace(): void {
    this.#pending = ''
  }

  addCalls(calls: readonly OutputToolCall[]): void {
    this.#pending = ''
    this.#followsCall = true
    this.#delta.addCalls(calls)
  }

  /** Emits the buffered text, except after a tool call, where it is markup. */
  end(): void {
    if (!this.#followsCall) this.#delta.addContent(this.#pending)
  }
}
