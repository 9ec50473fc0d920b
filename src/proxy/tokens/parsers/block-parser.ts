/**
 * The grammar of every family that writes tool calls as blocks behind an opening marker: Hermes, Qwen3-Coder, GLM,
 * DeepSeek, Kimi, Mistral and others. They differ in the markers and in what stands inside a block:
 * {@link BlockSyntax}.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import type { DeltaBuilder, OutputToolCall } from './output-delta.ts'
import { type Grammar, OutputParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import type { Reading, TextReader } from './text-reader.ts'

/**
 * What a block says: its calls, or that it is none.
 * - `malformed`: what was read of it is text, and reading goes on behind it.
 * - `misread`: a string of it never ended well; so it ended where its first closing marker is, as text. Only for
 *   grammars whose strings end with a quote that no block behind can hide: see `json-calls.ts`.
 * - `unclosed`: a value of it was not closed when the text ended. It is read again with `closesEarly`.
 */
export type BlockResult = OutputToolCall[] | 'malformed' | 'misread' | 'unclosed'

export interface BlockOptions extends OutputParserOptions {
  /** No value behind here is closed properly: the closing marker of the block ends it. */
  closesEarly: boolean
}

export interface ToolCallSyntax {
  /** What a block begins with: one of these. */
  opens: readonly string[]
  /** Without one, the next block's opening marker tells where a misread one ended. */
  close?: string
  /** Markers around a call or a group of calls, which mean nothing by themselves. */
  wrapper?: Markers | undefined
  /** Reads what stands behind the opening marker, the closing one included. */
  read(reader: TextReader, options: BlockOptions): Reading<BlockResult>
}

export interface BlockSyntax {
  /** Markers around reasoning at the beginning of a completion. */
  reasoning?: Markers & {
    /** A call may begin where reasoning was not closed: its opening marker, or its wrapper's, ends it. */
    callEndsIt?: boolean
  }
  /** Markers around the text that is content. */
  answer?: readonly Markers[]
  /** Special tokens between the parts of an answer: no text wherever they stand. */
  silent?: readonly string[]
  call?: ToolCallSyntax
}

export interface Markers {
  open: string
  close: string
}

/** The markers that most reasoning models write. */
export const THINK = { open: '<think>', close: '</think>' } as const

/** The same of models that go over to a call without closing them, as vLLM's and SGLang's parsers of them know. */
export const THINK_OR_CALL = { ...THINK, callEndsIt: true } as const

/** @param innerMarkers markers that stand inside a call */
export function blockFamily(
  name: string,
  innerMarkers: readonly string[],
  syntax: BlockSyntax,
): ParserFamily {
  const { reasoning, answer = [], silent = [], call } = syntax
  const pairs = [reasoning, ...answer, call?.wrapper].flatMap((pair) => [pair?.open, pair?.close])
  const markers = [...pairs, ...(call?.opens ?? []), call?.close, ...silent, ...innerMarkers]
  const grammar = blockGrammar(syntax)
  return {
    name,
    keepTokens: markers.filter((marker) => marker !== undefined),
    reasoning,
    grammar,
    create: (options) => new OutputParser(grammar, options),
  }
}

export function blockGrammar(syntax: BlockSyntax): Grammar {
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
  const callBegin = reasoning?.callEndsIt && call ? [wrapper?.open ?? call.opens[0]!] : []
  const reasoningEnd = new MarkerSet(reasoningCloses)
  const reasoningOrCallEnd = new MarkerSet([...reasoningCloses, ...callBegin])

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
        // It may be closed behind the call.
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

/** Reasoning is recognised at the beginning only: later, its marker is a text about the marker. */
function* opensReasoning(reader: TextReader, open: string, content: ContentGate): Reading<boolean> {
  const space = yield* reader.space()
  if (yield* reader.literal(open)) return true
  content.add(space)
  return false
}

/**
 * White space at its ends is the model's own, and a model that opens it again behind the template has opened it once: vLLM
 * (0.32, `parser/qwen3.py`) and SGLang (0.5.23, `parser/reasoning_parser.py`) read both so.
 * @returns the marker that ended it
 */
export function* readReasoning(
  reader: TextReader,
  delta: DeltaBuilder,
  { open, ends }: { open: string; ends: MarkerSet },
): Reading<string | undefined> {
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
): Reading<void> {
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

/** It ends the answer if nothing but space follows it. */
function* readAnswerEnd(reader: TextReader, content: ContentGate, marker: string): Reading<void> {
  const space = yield* reader.space()
  if (yield* reader.atEnd()) content.dropSpace()
  else content.add(marker + space)
}

/** @returns whether the blocks behind close early */
function* readBlock(
  reader: TextReader,
  content: ContentGate,
  { call, open }: { call: ToolCallSyntax; open: string },
  options: BlockOptions,
): Reading<boolean> {
  reader.startRecord()
  const reading = yield* call.read(reader, options)
  const body = reader.stopRecord()
  if (Array.isArray(reading)) {
    content.addCalls(reading)
  } else if (reading === 'unclosed' && !options.closesEarly) {
    reader.putBack(open + body)
    return true
  } else {
    const bodyLength = reading === 'misread' ? firstEndIn(body, call) : body.length
    reader.putBack(body.slice(bodyLength))
    content.add(open + body.slice(0, bodyLength))
  }
  return options.closesEarly
}

/** How much of a misread block stands before and in its first closing marker. */
function firstEndIn(body: string, { opens, close }: ToolCallSyntax): number {
  if (close === undefined) {
    const next = opens.map((open) => body.indexOf(open)).filter((index) => index !== -1)
    return Math.min(body.length, ...next)
  }
  const index = body.indexOf(close)
  return index === -1 ? body.length : index + close.length
}

/**
 * Tells content from the space and the wrappers that belong to calls: white space at the end of a growing text is held
 * back until it is known whether it belongs to the text or to the markup that follows it.
 */
class ContentGate {
  readonly #delta: DeltaBuilder
  #held = ''
  #dropsNewlines = false
  /** Whether nothing but space and markup came since the last call. */
  #behindCall = false

  constructor(delta: DeltaBuilder) {
    this.#delta = delta
  }

  /** The newlines that come next belong to the markup before them. */
  dropLeadingNewlines(): void {
    this.#dropsNewlines = true
  }

  add(text: string): void {
    const more = this.#dropsNewlines ? text.replace(/^\n+/, '') : text
    if (more !== '') this.#dropsNewlines = false
    const solid = more.trimEnd()
    if (solid !== '') {
      this.#delta.addContent(this.#held + solid)
      this.#held = ''
      this.#behindCall = false
    }
    this.#held += more.slice(solid.length)
  }

  /** Whether a wrapper is markup depends on the call in it: one without a call is text. */
  addWrapper(marker: string, isOpening: boolean): void {
    if (isOpening) this.#held += marker
    else if (this.#behindCall) this.#held = ''
    else this.add(marker)
  }

  /** What was held belongs to markup. */
  dropSpace(): void {
    this.#held = ''
  }

  addCalls(calls: readonly OutputToolCall[]): void {
    this.#held = ''
    this.#behindCall = true
    this.#delta.addCalls(calls)
  }

  /** Behind a call there is no text that the space could belong to. */
  end(): void {
    if (!this.#behindCall) this.#delta.addContent(this.#held)
  }
}
