/**
 * Output parsers convert the text that a model writes into content, reasoning and tool calls. Parsing a complete
 * response is `push(text)` and `finish()`, so streamed and complete responses cannot differ: the merged result does not
 * depend on how the text is split. The work is linear in the length of the text.
 */
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { DeltaBuilder, type OutputDelta } from './output-delta.ts'
import { type GrammarStep, TextReader } from './text-reader.ts'

export interface OutputParserOptions {
  /** The request's tools. Tool calls are parsed only if there are any, as in vLLM. */
  tools?: readonly Tool[] | null | undefined
  /** Whether the prompt ended inside a reasoning block that its template opened. Default: false. */
  startsInReasoning?: boolean
  /** Creates the id of a tool call to which the model gives none. Default: random. */
  makeToolCallId?: () => string
}

/** The models that write the same markup. */
export interface ParserFamily {
  readonly name: string
  /** Special tokens of the markup, which must be present in the text that is pushed. */
  readonly keepTokens: readonly string[]
  /** The markers around reasoning; a template may write the first one at the end of the prompt. */
  readonly reasoning?: { open: string; close: string } | undefined
  /** The opening markers that end reasoning: those of a tool call that begins in it. Absent: none does. */
  readonly callBegin?: readonly string[]
  /** Returns the missing end of the header in which a completion was truncated; empty if it was truncated elsewhere. */
  readonly headerRest?: ((completion: string) => string) | undefined
  /**
   * The grammar for text that may lack headers. Absent if every text must follow a header, because the output of an
   * engine that is constrained to JSON could not be parsed.
   */
  readonly grammar?: Grammar
  create(options: OutputParserOptions): OutputParser
}

/** A generator that parses one completion in the markup of a model family. */
export type Grammar = (
  reader: TextReader,
  delta: DeltaBuilder,
  options: OutputParserOptions,
) => GrammarStep<void>

/** Runs a grammar over a text that arrives in parts. */
export class OutputParser {
  readonly #reader = new TextReader()
  readonly #delta: DeltaBuilder
  readonly #run: GrammarStep<void>

  constructor(grammar: Grammar, options: OutputParserOptions) {
    this.#delta = new DeltaBuilder(options.makeToolCallId)
    this.#run = grammar(this.#reader, this.#delta, options)
  }

  /**
   * Returns the output that `text` completes. Text that may still become markup is buffered until it is unambiguous.
   */
  push(text: string): OutputDelta {
    this.#reader.push(text)
    this.#run.next()
    return this.#delta.take()
  }

  /**
   * Returns the buffered output: markup that was never closed is returned as text. It must be called once, at the end.
   */
  finish(): OutputDelta {
    this.#reader.end()
    this.#run.next()
    return this.#delta.take()
  }
}
