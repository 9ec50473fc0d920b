/**
 * The families that write tool calls as Python. In most of them, a list of calls is the complete output, and only its
 * end distinguishes it from a response that begins with a bracket.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import { type BlockResult, createBlockFamily, THINK } from './block-parser.ts'
import type { DeltaBuilder, OutputToolCall } from './output-delta.ts'
import { type Grammar, OutputParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import { readPythonCallLines, readPythonCalls } from './python-tool-calls.ts'
import { type GrammarStep, RunScanner, type TextReader } from './text-reader.ts'

const PYTHON_START = '<|python_start|>'
const PYTHON_END = '<|python_end|>'
const ENDS = new MarkerSet([PYTHON_END])
const NO_MARKERS = new MarkerSet([])

/**
 * Llama 3.2 with a pythonic template, ToolACE and others: the complete output is `[f(a=1), g(b="x")]`.
 * Source: vLLM's `pythonic_tool_parser.py`.
 */
export const pythonic = createListFamily('pythonic', [])

/**
 * Llama 4: the same, sometimes between `<|python_start|>` and `<|python_end|>`.
 * Source: vLLM's `llama4_pythonic_tool_parser.py`.
 */
export const llama4Pythonic = createListFamily('llama4_pythonic', [PYTHON_START, PYTHON_END])

/**
 * OLMo 3: `<function_calls>\nf(a=1)\ng(b="x")\n</function_calls>`, preceded by `<think>…</think>`.
 * Sources: vLLM's `olmo3_tool_parser.py` and `olmo3_reasoning_parser.py`.
 */
export const olmo3 = createBlockFamily('olmo3', [], {
  reasoning: THINK,
  call: { opens: ['<function_calls>'], close: '</function_calls>', read: readLines },
})

const LINES_END = new MarkerSet(['</function_calls>'])

function* readLines(reader: TextReader): GrammarStep<BlockResult> {
  const { text } = yield* reader.upTo(LINES_END)
  return readPythonCallLines(text) ?? 'malformed'
}

function createListFamily(name: string, keepTokens: readonly string[]): ParserFamily {
  const opens = keepTokens.includes(PYTHON_START) ? [PYTHON_START] : []
  const grammar: Grammar = (reader, delta, options) => readCompletion(reader, delta, options, opens)
  return { name, keepTokens, grammar, create: (options) => new OutputParser(grammar, options) }
}

function* readCompletion(
  reader: TextReader,
  delta: DeltaBuilder,
  { tools }: OutputParserOptions,
  opens: readonly string[],
): GrammarStep<void> {
  reader.startRecord()
  const calls = tools?.length ? yield* readList(reader, opens) : undefined
  const begun = reader.stopRecord()
  if (calls !== undefined) return delta.addCalls(calls)
  delta.addContent(begun)
  yield* reader.upTo(NO_MARKERS, (text) => delta.addContent(text))
}

/** Reads a list of tool calls. Returns undefined if the text contains anything else. */
function* readList(reader: TextReader, opens: readonly string[]): GrammarStep<OutputToolCall[] | undefined> {
  yield* reader.space()
  yield* reader.oneOf(opens)
  yield* reader.space()
  if (!(yield* reader.literal('['))) return undefined
  const space = yield* reader.space()
  const name = yield* reader.scan(new RunScanner(/[\p{L}\p{N}_.-]*/uy))
  const spaceAfter = yield* reader.space()
  // Other text, such as Markdown or a list of numbers, can be streamed as soon as it cannot be a call.
  if (name === '' || !(yield* reader.literal('('))) return undefined
  const { text } = yield* reader.upTo(opens.length === 0 ? NO_MARKERS : ENDS)
  yield* reader.space()
  if (!(yield* reader.atEnd())) return undefined
  return readPythonCalls(`[${space}${name}${spaceAfter}(${text}`)
}
