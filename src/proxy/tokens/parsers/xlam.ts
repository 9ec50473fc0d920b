/**
 * xLAM's tool calls: the complete output is `[{"name": "f", "arguments": {…}}]`, or such an array is in a JSON code
 * block, in `<tool_call>…</tool_call>` or after `[TOOL_CALLS]`. Only the end of the output distinguishes the first form
 * from a response in JSON. Source: vLLM's `xlam_tool_parser.py`.
 */
import { type BlockResult, type BlockSyntax, createBlockFamily, createBlockGrammar } from './block-parser.ts'
import { decodeString, readNamedCalls, type ToolCallKeys } from './json-tool-calls.ts'
import type { DeltaBuilder } from './output-delta.ts'
import { OutputParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import type { GrammarStep, TextReader } from './text-reader.ts'

const CLOSES = ['```', '</tool_call>']
const SYNTAX: BlockSyntax = {
  call: { opens: ['```json', '<tool_call>', '[TOOL_CALLS]'], read: readBlock },
}
const readContent = createBlockGrammar(SYNTAX)

export const xlam: ParserFamily = {
  ...createBlockFamily('xlam', ['</tool_call>'], SYNTAX),
  grammar: readCompletion,
  create: (options) => new OutputParser(readCompletion, options),
}

const KEYS: ToolCallKeys = {
  name: 'name',
  arguments: ['arguments'],
  toArguments: (json) => (json.startsWith('"') ? decodeString(json) : undefined),
}

function* readCompletion(
  reader: TextReader,
  delta: DeltaBuilder,
  options: OutputParserOptions,
): GrammarStep<void> {
  reader.startRecord()
  yield* reader.space()
  const isArray = options.tools?.length && (yield* reader.peek()) === '['
  const calls = isArray ? yield* readNamedCalls(reader, KEYS) : 'malformed'
  yield* reader.space()
  const isComplete = Array.isArray(calls) && (yield* reader.atEnd())
  const begun = reader.stopRecord()
  if (isComplete) return delta.addCalls(calls)
  reader.putBack(begun)
  yield* readContent(reader, delta, options)
}

function* readBlock(reader: TextReader): GrammarStep<BlockResult> {
  const calls = yield* readNamedCalls(reader, KEYS)
  yield* reader.space()
  yield* reader.oneOf(CLOSES)
  return calls
}
