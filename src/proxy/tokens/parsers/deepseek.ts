/**
 * The families of DeepSeek V3 and R1, and of V3.1. Tool calls in V3 and R1:
 * `<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n` + "```json\n{…}\n```" + `<｜tool▁call▁end｜>`; in V3.1:
 * `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`. One pair of wrappers encloses all calls.
 * Sources: the models' chat templates; vLLM's `deepseekv3_tool_parser.py` and `deepseekv31_tool_parser.py`.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import { type BlockResult, createBlockFamily, THINK } from './block-parser.ts'
import { endsBlock, readJsonArguments, startsJson } from './json-tool-calls.ts'
import type { ParserFamily } from './output-parser.ts'
import type { GrammarStep, TextReader } from './text-reader.ts'

const SEPARATOR = '<｜tool▁sep｜>'
const CLOSE = '<｜tool▁call▁end｜>'
const HEADER_ENDS = new MarkerSet([SEPARATOR, CLOSE])
const NAME_ENDS = new MarkerSet(['\n', CLOSE])

export const deepseek = createBlockFamily('deepseek_v3', [SEPARATOR], {
  reasoning: THINK,
  call: {
    opens: ['<｜tool▁call▁begin｜>'],
    close: CLOSE,
    wrapper: { open: '<｜tool▁calls▁begin｜>', close: '<｜tool▁calls▁end｜>' },
    read: readCall,
  },
})

/**
 * The same parser as {@link deepseek}, which reads both formats. The families differ only in how tool calls are
 * constrained.
 */
export const deepseekV31: ParserFamily = { ...deepseek, name: 'deepseek_v31' }

function* readCall(reader: TextReader): GrammarStep<BlockResult> {
  const header = yield* reader.upTo(HEADER_ENDS)
  if (header.marker !== SEPARATOR) return 'malformed'
  const space = yield* reader.space()
  const isFenced = !space.includes('\n') && !startsJson(yield* reader.peek())
  let name = header.text
  if (isFenced) {
    const line = yield* reader.upTo(NAME_ENDS)
    if (line.marker !== '\n' || !(yield* reader.literal('```json\n'))) return 'malformed'
    name = line.text
  }
  const reading = yield* readJsonArguments(reader, { name: name.trim() })
  if (isFenced) {
    yield* reader.space()
    yield* reader.literal('```')
  }
  if (!Array.isArray(reading)) return reading
  return (yield* endsBlock(reader, CLOSE)) ? reading : 'misread'
}
