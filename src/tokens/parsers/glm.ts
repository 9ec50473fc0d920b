/**
 * GLM's tool calls, since 4.5:
 * `<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>value</arg_value>\n</tool_call>`; 4.7 writes no newlines.
 * Sources: the chat templates of GLM-4.5 and 4.7; vLLM's `glm4_moe_tool_parser.py` and `glm47_moe_tool_parser.py`.
 */
import { MarkerSet } from '../markers.ts'
import { type BlockOptions, type BlockReading, blockFamily, THINK } from './block-parser.ts'
import { jsonOfTextArguments, type TextArgument } from './text-arguments.ts'
import { type Reading, RunScanner, type TextReader } from './text-reader.ts'

const CLOSE = '</tool_call>'
const KEY_END = new MarkerSet(['</arg_key>', CLOSE])
const VALUE_END = new MarkerSet(['</arg_value>'])
const EARLY_VALUE_END = new MarkerSet(['</arg_value>', CLOSE])

export const glm = blockFamily('glm45', ['<arg_key>', '</arg_key>', '<arg_value>', '</arg_value>'], {
  reasoning: THINK,
  call: { open: '<tool_call>', close: CLOSE, read: readCall },
})

function* readCall(reader: TextReader, { tools, closesEarly }: BlockOptions): Reading<BlockReading> {
  yield* reader.space()
  const name = (yield* reader.scan(new RunScanner(/[^<\n{]*/y))).trim()
  if (name === '') return 'malformed'
  const written: TextArgument[] = []
  yield* reader.space()
  while (yield* reader.literal('<arg_key>')) {
    const key = yield* reader.upTo(KEY_END)
    yield* reader.space()
    if (key.marker !== '</arg_key>' || !(yield* reader.literal('<arg_value>'))) return 'malformed'
    const value = yield* reader.upTo(closesEarly ? EARLY_VALUE_END : VALUE_END)
    if (value.marker === undefined) return 'unclosed'
    if (value.marker === CLOSE) return 'malformed'
    written.push({ name: key.text.trim(), text: value.text })
    yield* reader.space()
  }
  const isWhole = (yield* reader.literal(CLOSE)) || (yield* reader.atEnd())
  return isWhole ? [{ name, arguments: jsonOfTextArguments(name, written, tools) }] : 'malformed'
}
