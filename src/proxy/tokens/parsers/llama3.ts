/**
 * Llama 3's tool calls: the whole answer is `{"name": "f", "parameters": {…}}`, several of them with `; ` between,
 * sometimes with `<|python_tag|>` before them. Only the end of the answer tells such a call from an answer in JSON.
 * Sources: the chat templates of Llama 3.1 and 3.2; vLLM's `llama_tool_parser.py`.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import { namedCall, readObject, type ToolCallKeys } from './json-tool-calls.ts'
import type { DeltaBuilder, OutputToolCall } from './output-delta.ts'
import { OutputParser, type OutputParserOptions, type ParserFamily } from './output-parser.ts'
import type { Reading, TextReader } from './text-reader.ts'

const PYTHON_TAG = '<|python_tag|>'
const KEYS: ToolCallKeys = { name: 'name', arguments: ['parameters', 'arguments'] }
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
): Reading<void> {
  reader.startRecord()
  const calls = tools?.length ? yield* readCalls(reader) : undefined
  const begun = reader.stopRecord()
  if (calls !== undefined) return delta.addCalls(calls)
  delta.addContent(begun)
  yield* reader.upTo(NO_MARKERS, (text) => delta.addContent(text))
}

/** undefined unless the whole text is calls and nothing else. */
function* readCalls(reader: TextReader): Reading<OutputToolCall[] | undefined> {
  yield* reader.space()
  const isTagged = yield* reader.literal(PYTHON_TAG)
  let begun = isTagged ? '' : yield* readFirstKey(reader)
  if (begun === undefined) return undefined
  const calls: OutputToolCall[] = []
  for (;;) {
    const object = yield* readObject(reader, begun)
    const call = object && namedCall(object.members, KEYS)
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
 * An object up to its first key: an answer in JSON is shown as it comes once it cannot be a call.
 * @returns undefined if it is none
 */
function* readFirstKey(reader: TextReader): Reading<string | undefined> {
  if (!(yield* reader.literal('{'))) return undefined
  const space = yield* reader.space()
  if (!(yield* reader.literal('"'))) return undefined
  const { text: key, marker } = yield* reader.upTo(QUOTE)
  return marker !== undefined && CALL_KEYS.includes(key) ? `{${space}"${key}"` : undefined
}
