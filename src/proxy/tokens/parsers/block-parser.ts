/**
 * The grammar of every family that writes tool calls as blocks that begin with an opening marker: Hermes, Qwen3-Coder,
 * GLM, DeepSeek, Kimi, Mistral and others. They differ in the markers and in the contents of a block:
 * {@link BlockSyntax}.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import type { DeltaBuilder, OutputToolCall } from './output-delta.ts'
import { type Grammar, OutputParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import type { GrammarStep, TextReader } from './text-reader.ts'

/**
 * The result of reading a block: its tool calls, or the reason why it has none.
 * - `malformed`: the text that was read is content, and parsing continues after it.
 * - `misread`: a string in it is not terminated correctly, so the block ends at its first closing marker, and is
 *   content. Only for grammars whose strings end with a quote that no later block can hide: see `json-tool-calls.ts`.
 * - `unclosed`: a value was not closed when the text ended. The block is read again with `closesEarly`.
 */
export type BlockResult = OutputToolCall[] | 'malformed' | 'misread' | 'unclosed'

export interface BlockOptions extends OutputParserOptions {
  /** Whether values after this point lack closing tags, so that the block's closing marker ends them. */
  closesEarly: boolean
}

export interface ToolCallSyntax {
  /** The opening markers, any of which begins a block. */
  opens: readonly string[]
  /** The closing marker. If there is none, a misread block ends at the next block's opening marker. */
  close?: string
  /** Markers around a tool call or a group of tool calls, without further meaning. */
  wrapper?: Markers | undefined
  /** Reads the block after its opening marker, including the closing marker. */
  read(reader: TextReader, options: BlockOptions): GrammarStep<BlockResult>
}

export interface BlockSyntax {
  /** Markers around reasoning at the beginning of a completion. */
  reasoning?: Markers & {
    /** Whether the opening marker of a tool call, or of its wrapper, also ends reasoning. */
    callEndsIt?: boolean
  }
  /** Markers around the content. */
  answer?: readonly Markers[]
  /** Special tokens between the parts of a completion; they are never content. */
  silent?: readonly string[]
  call?: ToolCallSyntax
}

export interface Markers {
  open: string
  close: string
}

/** The markers of most reasoning models. */
export const THINK = { open: '<think>', close: '</think>' } as const

/** The same markers for models that begin a tool call without closing them, as vLLM's and SGLang's parsers expect. */
export const THINK_OR_CALL = { ...THINK, callEndsIt: true } as const

/**
 * Returns the parser family of a block syntax.
 * @param innerMarkers markers inside a tool call
 */
export function createBlockFamily(
  name: string,
  innerMarkers: readonly string[],
  syntax: BlockSyntax,
): ParserFamily {
  const { reasoning, answer = [], silent = [], call } = syntax
  const pairs = [reasoning, ...answer, call?.wrapper].flatMap((pair) => [pair?.open, pair?.close])
  const markers = [...pairs, ...(call?.opens ?? []), call?.close, ...silent, ...innerMarkers]
  const grammar = parseBlocks(syntax)
  return {
    name,
    keepTokens: markers.filter((marker) => marker !== undefined),
    reasoning,
    callBegin: getCallBegin(syntax),
    grammar,
    create: (options) => new OutputParser(grammar, options),
  }
}

export function parseBlocks(syntax: BlockSyntax): Grammar {
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
    const content = new ContentGate(delta)
    const looksForCalls = call !== undefined && (options.tools?.length ?? 0) > 0
    let markers = looksForCalls ? markersWithCalls : markersWithoutCalls
    if (
      reasoning &&
      (options.startsInReasoning || (yield* opensReasoning(reader, reasoning.open, content)))
    ) {
      const ends = looksForCalls ? reasoningOrCallEnd : reasoningEnd
      const end = yield* readReasoning(reader, delta, { open: reasoning.open, ends })
      if (end !== undefined && end !== reasoning.close) {
        reader.putBack(end)
        // The reasoning may be closed after the tool call.
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

/** Returns the opening markers of tool calls that end reasoning. */
function getCallBegin({ reasoning, call }: BlockSyntax): string[] {
  return reasoning?.callEndsIt && call ? [call.wrapper?.open ?? call.opens[0]!] : []
}

/**
 * Reads the opening marker of reasoning. It is recognized only at the beginning: a later one is part of the content.
 */
function* opensReasoning(reader: TextReader, open: string, content: ContentGate): GrammarStep<boolean> {
  const space = yield* reader.space()
  if (yield* reader.literal(open)) return true
  content.add(space)
  return false
}

/**
 * Reads reasoning. Surrounding white space is part of it, and a repeated opening marker is skipped, because the
 * template may have written the first: vLLM (0.32, `parser/qwen3.py`) and SGLang (0.5.23, `parser/reasoning_parser.py`)
 * do the same.
 * @returns the marker that ended it
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

function* readContent(
  reader: TextReader,
  content: ContentGate,
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

/** Reads a marker that ends the content if only white space follows it. */
function* readAnswerEnd(reader: TextReader, content: ContentGate, marker: string): GrammarStep<void> {
  const space = yield* reader.space()
  if (yield* reader.atEnd()) content.dropSpace()
  else content.add(marker + space)
}

/** Reads a block. @returns whether values in later blocks are closed early */
function* readBlock(
  reader: TextReader,
  content: ContentGate,
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

/** Returns the length of a misread block up to and including its first closing marker. */
function findFirstEnd(body: string, { opens, close }: ToolCallSyntax): number {
  if (close === undefined) {
    const next = opens.map((open) => body.indexOf(open)).filter((index) => index !== -1)
    return Math.min(body.length, ...next)
  }
  const index = body.indexOf(close)
  return index === -1 ? body.length : index + close.length
}

/**
 * Separates content from the white space and wrappers that belong to tool calls: trailing white space is buffered until
 * the text after it shows whether it belongs to the content or to markup.
 */
class ContentGate {
  readonly #delta: DeltaBuilder
  #pending = ''
  #dropsNewlines = false
  /** Whether only white space and markup have followed the last tool call. */
  #behindCall = false

  constructor(delta: DeltaBuilder) {
    this.#delta = delta
  }

  /** Drops the newlines that come next, because they belong to the markup before them. */
  dropLeadingNewlines(): void {
    this.#dropsNewlines = true
  }

  add(text: string): void {
    const more = this.#dropsNewlines ? text.replace(/^\n+/, '') : text
    if (more !== '') this.#dropsNewlines = false
    const solid = more.trimEnd()
    if (solid !== '') {
      this.#delta.addContent(this.#pending + solid)
      this.#pending = ''
      this.#behindCall = false
    }
    this.#pending += more.slice(solid.length)
  }

  /** Adds a wrapper's marker. A wrapper without a tool call is content. */
  addWrapper(marker: string, isOpening: boolean): void {
    if (isOpening) this.#pending += marker
    else if (this.#behindCall) this.#pending = ''
    else this.add(marker)
  }

  /** Drops the buffered text, which belongs to markup. */
  dropSpace(): void {
    this.#pending = ''
  }

  addCalls(calls: readonly OutputToolCall[]): void {
    this.#pending = ''
    this.#behindCall = true
    this.#delta.addCalls(calls)
  }

  /** Emits the buffered text, except after a tool call, where it is markup. */
  end(): void {
    if (!this.#behindCall) this.#delta.addContent(this.#pending)
  }
}
