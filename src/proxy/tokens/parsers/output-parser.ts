/**
 * An output parser turns the text that a model writes into what an agent reads: content, reasoning, tool calls.
 * A whole completion is `push(text)` and `finish()`: streaming and whole answers cannot differ, and however the text
 * is cut, the merged result is the same. The work grows with the text and with nothing else.
 */
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { DeltaBuilder, type OutputDelta } from './output-delta.ts'
import { type Reading, TextReader } from './text-reader.ts'

export interface OutputParserOptions {
  /** The request's tools. Tool calls are looked for only if there are any, as in vLLM. */
  tools?: readonly Tool[] | null | undefined
  /** The prompt ended inside a reasoning block that its template opened. Default: false. */
  startsInReasoning?: boolean
  /** Names a call whose model gives it no id. Default: random. */
  makeToolCallId?: () => string
}

/** The models that write the same markup. */
export interface ParserFamily {
  readonly name: string
  /** Special tokens that the markup is made of: they must be visible in the text that is pushed. */
  readonly keepTokens: readonly string[]
  /** The markers around reasoning; a template may write the first at the end of the prompt. */
  readonly reasoning?: { open: string; close: string } | undefined
  /** Returns what the header lacks that a completion was cut off in; empty if it was cut off elsewhere. */
  readonly headerRest?: ((said: string) => string) | undefined
  /**
   * What reads a bare text. Where every text must stand behind a header, an engine that is held to JSON writes nothing
   * that can be read, and there is none.
   */
  readonly grammar?: Grammar
  create(options: OutputParserOptions): OutputParser
}

/** What a family makes of a whole completion. */
export type Grammar = (reader: TextReader, delta: DeltaBuilder, options: OutputParserOptions) => Reading<void>

/** Runs a grammar over a text as it comes. */
export class OutputParser {
  readonly #reader = new TextReader()
  readonly #delta: DeltaBuilder
  readonly #run: Reading<void>

  constructor(grammar: Grammar, options: OutputParserOptions) {
    this.#delta = new DeltaBuilder(options.makeToolCallId)
    this.#run = grammar(this.#reader, this.#delta, options)
  }

  /** What `text` completed. What may still become markup is held back until it is clear. */
  push(text: string): OutputDelta {
    this.#reader.push(text)
    this.#run.next()
    return this.#delta.take()
  }

  /** What was held back: markup that never closed is shown as the text that it was. Call once, at the end. */
  finish(): OutputDelta {
    this.#reader.end()
    this.#run.next()
    return this.#delta.take()
  }
}
