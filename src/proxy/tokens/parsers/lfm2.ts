/**
 * LFM2's tool calls: `<|tool_call_start|>[f(a=1), g(b="x")]<|tool_call_end|>`, or a JSON array between the markers.
 * Sources: the chat template of LFM2.5; SGLang's `lfm2_detector.py`; vLLM's `lfm2_tool_parser.py`.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import { type BlockResult, createBlockFamily, THINK } from './block-parser.ts'
import { readNamedCalls } from './json-tool-calls.ts'
import { readPythonCalls } from './python-tool-calls.ts'
import { type GrammarStep, TextReader } from './text-reader.ts'

const CLOSE = '<|tool_call_end|>'
/** The set of the closing marker. It is a special token, so no string in a call contains it. */
const END = new MarkerSet([CLOSE])

/** Matches the beginning of an object or of a list of objects, in linear time for white space without either. */
const BEGINS_JSON = /^\s*(?:\[\s*)?\{/

export const lfm2 = createBlockFamily('lfm2', [], {
  reasoning: THINK,
  call: { opens: ['<|tool_call_start|>'], close: CLOSE, read: readCalls },
})

function* readCalls(reader: TextReader): GrammarStep<BlockResult> {
  const { text } = yield* reader.upTo(END)
  return BEGINS_JSON.test(text) ? readJson(text) : (readPythonCalls(text) ?? 'malformed')
}

function readJson(text: string): BlockResult {
  const reader = new TextReader()
  reader.push(text)
  reader.end()
  const { value } = readNamedCalls(reader, { name: 'name', arguments: ['arguments'] }).next()
  return Array.isArray(value) ? value : 'malformed'
}
