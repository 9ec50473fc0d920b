/**
 * The grammar of every family that writes tool calls as blocks behind an opening marker: Hermes, Qwen3-Coder, GLM,
 * DeepSeek, Kimi, Mistral and others. They differ in the markers and in what stands inside a block:
 * {@link BlockSyntax}.
 */
import { MarkerSet } from '../markers.ts'
import { type Grammar, GrammarParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import type { DeltaBuilder, WrittenCall } from './parsed-delta.ts'
import { SpaceGate } from './space-gate.ts'
import type { Reading, TextReader } from './text-reader.ts'

/**
 * What a block says: its calls, or that it is none.
 * - `malformed`: what was read of it is text, and reading goes on behind it.
 * - `misread`: a string of it never ended well; so it ended where its first closing marker is, as text. Only for
 *   grammars whose strings end with a quote that no block behind can hide: see `json-calls.ts`.
 * - `unclosed`: a value of it was not closed when the text ended. It is read again with `closesEarly`.
 */
export type BlockReading = WrittenCall[] | 'malformed' | 'misread' | 'unclosed'

export interface BlockOptions extends OutputParserOptions {
  /** No value behind here is closed properly: the closing marker of the block ends it. */
  closesEarly: boolean
}

export interface CallSyntax {
  open: string
  /** Without one, the next block's opening marker tells where a misread one ended. */
  close?: string
  /** Markers around a call or a group of calls, which mean nothing by themselves. */
  wrapper?: { open: string; close: string }
  /** Reads what stands behind the opening marker, the closing one included. */
  read(reader: TextReader, options: BlockOptions): Reading<BlockReading>
}

export interface BlockSyntax {
  /** Markers around reasoning at the beginning of a completion. */
  reasoning?: { open: string; close: string }
  call?: CallSyntax
}

/** The markers that most reasoning models write. */
export const THINK = { open: '<think>', close: '</think>' } as const

/** @param innerMarkers markers that stand inside a call */
export function blockFamily(
  name: string,
  innerMarkers: readonly string[],
  syntax: BlockSyntax,
): ParserFamily {
  const { reasoning, call } = syntax
  const pairs = [reasoning, call, call?.wrapper].flatMap((pair) => [pair?.open, pair?.close])
  const markers = [...pairs, ...innerMarkers]
  const grammar = blockGrammar(syntax)
  return {
    name,
    keepTokens: markers.filter((marker) => marker !== undefined),
    ...(reasoning && { reasoningOpen: reasoning.open }),
    create: (options) => new GrammarParser(grammar, options),
  }
}

export function blockGrammar(syntax: BlockSyntax): Grammar {
  const { reasoning, call } = syntax
  const reasoningEnd = new MarkerSet(reasoning ? [reasoning.close] : [])
  const contentMarkers = new MarkerSet(call ? [call.open, ...Object.values(call.wrapper ?? {})] : [])
  const noMarkers = new MarkerSet([])

  return function* readCompletion(reader, delta, options) {
    const content = new ContentGate(delta)
    if (
      reasoning &&
      (options.startsInReasoning || (yield* opensReasoning(reader, reasoning.open, content)))
    ) {
      yield* readReasoning(reader, delta, reasoningEnd)
      content.dropLeadingNewlines()
    }
    const looksForCalls = call !== undefined && (options.tools?.length ?? 0) > 0
    yield* readContent(reader, content, looksForCalls ? contentMarkers : noMarkers, call, options)
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

function* readReasoning(reader: TextReader, delta: DeltaBuilder, end: MarkerSet): Reading<void> {
  const gate = new SpaceGate()
  gate.dropLeadingNewlines()
  const { marker } = yield* reader.upTo(end, (text) => delta.addReasoning(gate.push(text)))
  if (marker === undefined) delta.addReasoning(gate.flush())
}

function* readContent(
  reader: TextReader,
  content: ContentGate,
  markers: MarkerSet,
  call: CallSyntax | undefined,
  options: OutputParserOptions,
): Reading<void> {
  let closesEarly = false
  for (;;) {
    const { marker } = yield* reader.upTo(markers, (text) => content.add(text))
    if (marker === undefined) return
    if (marker === call!.open) {
      closesEarly = yield* readBlock(reader, content, call!, { ...options, closesEarly })
    } else {
      content.addWrapper(marker, marker === call!.wrapper!.open)
    }
  }
}

/** @returns whether the blocks behind close early */
function* readBlock(
  reader: TextReader,
  content: ContentGate,
  call: CallSyntax,
  options: BlockOptions,
): Reading<boolean> {
  reader.startRecord()
  const reading = yield* call.read(reader, options)
  const body = reader.stopRecord()
  if (Array.isArray(reading)) {
    content.addCalls(reading)
  } else if (reading === 'unclosed' && !options.closesEarly) {
    reader.putBack(call.open + body)
    return true
  } else {
    const bodyLength = reading === 'misread' ? firstEndIn(body, call) : body.length
    reader.putBack(body.slice(bodyLength))
    content.add(call.open + body.slice(0, bodyLength))
  }
  return options.closesEarly
}

/** How much of a misread block stands before and in its first closing marker. */
function firstEndIn(body: string, { open, close }: CallSyntax): number {
  const index = body.indexOf(close ?? open)
  return index === -1 ? body.length : index + (close?.length ?? 0)
}

/** Tells content from the space and the wrappers that belong to calls. */
class ContentGate {
  readonly #delta: DeltaBuilder
  readonly #space = new SpaceGate()
  /** Whether nothing but space and markup came since the last call. */
  #behindCall = false

  constructor(delta: DeltaBuilder) {
    this.#delta = delta
  }

  dropLeadingNewlines(): void {
    this.#space.dropLeadingNewlines()
  }

  add(text: string): void {
    const solid = this.#space.push(text)
    if (solid !== '') this.#behindCall = false
    this.#delta.addContent(solid)
  }

  /** Whether a wrapper is markup depends on the call in it: one without a call is text. */
  addWrapper(marker: string, isOpening: boolean): void {
    if (isOpening) this.#space.hold(marker)
    else if (this.#behindCall) this.#space.drop()
    else this.add(marker)
  }

  addCalls(calls: readonly WrittenCall[]): void {
    this.#space.drop()
    this.#behindCall = true
    for (const call of calls) this.#delta.addCall(call)
  }

  /** Behind a call there is no text that the space could belong to. */
  end(): void {
    if (!this.#behindCall) this.#delta.addContent(this.#space.flush())
  }
}
