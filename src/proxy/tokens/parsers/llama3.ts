/**
 * Llama 3's tool calls: the complete output is `{"name": "f", "parameters": {…}}`, several of them separated by `; `,
 * sometimes preceded by `<|python_tag|>`. Only the end of the output distinguishes such a call from a response in JSON.
 * Sources: the chat templates of Llama 3.1 and 3.2; vLLM's `llama_tool_parser.py`.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import { keepJson, readNamedCall, readObject, type ToolCallKeys } from './json-tool-calls.ts'
import type { DeltaBuilder, OutputToolCall } from './output-delta.ts'
import { OutputParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import type { GrammarStep, TextReader } from './text-reader.ts'

const PYTHON_TAG = '<|python_tag|>'
const KEYS: ToolCallKeys = { name: 'name', arguments: ['parameters', 'arguments'], toArguments: keepJson }
const CALL_KEYS = [KEYS.name, 'type', ...KEYS.arguments]
const QUOTE = new MarkerSet(['"'])
const NO_MARKERS = new MarkerSet([])

export const llama3: ParserFamily = {
  name: 'llama3_json',
  keepTokens: [PYTHON_TAG],
  grammar: readCompletion,
  create: (options) => new OutputParser(readCompletion, options),
}

function* readCompletion(
  reader: TextReader,
  delta: DeltaBuilder,
  { tools }: OutputParserOptions,
): GrammarStep<void> {
  reader.startRecord()
  const calls = tools?.length ? yield* readCalls(reader) : undefined
  const begun = reader.stopRecord()
  if (calls !== undefined) return delta.addCalls(calls)
  delta.addContent(begun)
  yield* reader.upTo(NO_MARKERS, (text) => delta.addContent(text))
}

/** Reads tool calls. Returns undefined if the text contains anything else. */
function* readCalls(reader: TextReader): GrammarStep<OutputToolCall[] | undefined> {
  yield* reader.space()
  const isTagged = yield* reader.literal(PYTHON_TAG)
  let begun = isTagged ? '' : yield* readFirstKey(reader)
  if (begun === undefined) return undefined
  const calls: OutputToolCall[] = []
  for (;;) {
    const object = yield* readObject(reader, begun)
    const call = object && readNamedCall(object.members, KEYS)
    if (call === undefined) return undefined
    calls.push(...call)
    yield* reader.space()
    const isSeparated = yield* reader.literal(';')
    yield* reader.space()
    if (yield* reader.atEnd()) return calls
    if (!isSeparated) return undefined
    begun = ''
  }
}

/**
 * Reads an object up to its first key, so that a response in JSON can be streamed as soon as it cannot be a tool call.
 * @returns the text; undefined if it cannot be the beginning of a tool call
 */
function* readFirstKey(reader: TextReader): GrammarStep<string | undefined> {
  if (!(yield* reader.literal('{'))) return undefined
  const space = yield* reader.space()
  if (!(yield* reader.literal('"'))) return undefined
  const { text: key, marker } = yield* reader.upTo(QUOTE)
  return marker !== undefined && CALL_KEYS.includes(key) ? `{${space}"${key}"` : undefined
}
