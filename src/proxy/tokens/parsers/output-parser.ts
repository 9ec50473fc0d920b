/**
 * Output parsers convert the text of a completion to content, reasoning and tool calls. A complete response is parsed
 * with the same `push(text)` and `finish()` as a stream, and the merged result does not depend on how the text is
 * split. The time is linear in the length of the text.
 */
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { DeltaBuilder, type OutputDelta } from './output-delta.ts'
import { type GrammarStep, TextReader } from './text-reader.ts'

/** The properties of a request on which parsing its completion depends. */
export interface OutputParserOptions {
  /** The request's tools. Tool calls are parsed only if there are any, as in vLLM. */
  tools?: readonly Tool[] | null | undefined
  /** Whether the prompt ended inside a reasoning block that its template opened. Default: false. */
  startsInReasoning?: boolean
  /** Whether the completion continues the content of a message, after which reasoning cannot begin. Default: false. */
  startsInContent?: boolean
  /** Creates the id of a tool call for which the model has written none. Default: random ids. */
  makeToolCallId?: () => string
}

/** A family of models that write the same markup, and its parser. */
export interface ParserFamily {
  readonly name: string
  /** The special tokens of the markup, which the decoder must not omit from the text. */
  readonly keepTokens: readonly string[]
  /** The markers around reasoning. A template may write the opening one at the end of the prompt. */
  readonly reasoning?: { open: string; close: string } | undefined
  /** The opening markers of tool calls that end reasoning. Default: none. */
  readonly callBegin?: readonly string[]
  /**
   * Returns the missing end of the header in which a completion was truncated; empty if it was not truncated in one.
   */
  readonly getMissingHeader?: ((completion: string) => string) | undefined
  /**
   * The grammar, with which `forced-tool-calls.ts` parses output that an engine may have constrained to JSON. Absent
   * for families in which every text follows a header, because constrained output has none.
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

/** A parser that runs a grammar over a text that arrives in parts. */
export class OutputParser {
  readonly #reader = new TextReader()
  readonly #delta: DeltaBuilder
  readonly #run: GrammarStep<void>

  constructor(grammar: Grammar, options: OutputParserOptions) {
    this.#delta = new DeltaBuilder(options.makeToolCallId)
    this.#run = grammar(this.#reader, this.#delta, options)
  }

  /**
   * Adds text, and returns the output that is complete with it. Text that may still become markup is buffered.
   */
  push(text: string): OutputDelta {
    this.#reader.push(text)
    this.#run.next()
    return this.#delta.take()
  }

  /**
   * Ends the text, and returns the buffered output. Markup that was not closed is returned as text.
   */
  finish(): OutputDelta {
    this.#reader.end()
    this.#run.next()
    return this.#delta.take()
  }
}
