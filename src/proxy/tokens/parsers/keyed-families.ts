/** The families that write each parameter of a tool call as two elements, one with the name and one with the value. */
import { MarkerSet } from '../tokenizer/markers.ts'
import {
  type BlockOptions,
  type BlockResult,
  createBlockFamily,
  type Markers,
  type ToolCallSyntax,
} from './block-parser.ts'
import type { ParserFamily } from './output-parser.ts'
import { type TextArgument, toJsonArguments } from './text-arguments.ts'
import { type GrammarStep, RunScanner, type TextReader } from './text-reader.ts'

/**
 * GLM, since 4.5: `<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>value</arg_value>\n</tool_call>`; 4.7 writes no
 * newlines.
 * Sources: the chat templates of GLM-4.5 and 4.7; vLLM's `glm4_moe_tool_parser.py` and `glm47_moe_tool_parser.py`.
 */
export const glm = createKeyedFamily('glm45', '')

/**
 * Hunyuan 3: `<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>value</arg_value>\n` and so on.
 * Its public tokenizers add a suffix to each of these markers: `<tool_call:opensource>`.
 * Sources: the chat template of Hy3; SGLang's `hunyuan_detector.py`.
 */
export const hunyuan = createHunyuanFamily('hy_v3', '')
export const hunyuanOpenSource = createHunyuanFamily('hy_v3_opensource', ':opensource')

function createHunyuanFamily(name: string, suffix: string): ParserFamily {
  return createKeyedFamily(name, suffix, `<tool_sep${suffix}>`, createMarkers('tool_calls', suffix))
}

/**
 * Returns the family for a suffix of the markers.
 * @param nameEnd an optional marker after the function's name
 */
function createKeyedFamily(name: string, suffix: string, nameEnd?: string, wrapper?: Markers): ParserFamily {
  const [key, value] = [createMarkers('arg_key', suffix), createMarkers('arg_value', suffix)]
  const inner = [key.open, key.close, value.open, value.close, ...(nameEnd ? [nameEnd] : [])]
  const call = createKeyedSyntax({ call: createMarkers('tool_call', suffix), key, value, nameEnd })
  return createBlockFamily(name, inner, {
    reasoning: { ...createMarkers('think', suffix), callEndsIt: true },
    call: { ...call, wrapper },
  })
}

function createMarkers(tag: string, suffix: string): Markers {
  return { open: `<${tag}${suffix}>`, close: `</${tag}${suffix}>` }
}

function createKeyedSyntax({
  call,
  key,
  value,
  nameEnd,
}: {
  call: Markers
  key: Markers
  value: Markers
  nameEnd: string | undefined
}): ToolCallSyntax {
  const keyEnds = new MarkerSet([key.close, call.close])
  const valueEnds = new MarkerSet([value.close])
  const earlyValueEnds = new MarkerSet([value.close, call.close])

  function* readCall(reader: TextReader, { tools, closesEarly }: BlockOptions): GrammarStep<BlockResult> {
    yield* reader.space()
    const name = (yield* reader.scan(new RunScanner(/[^<\n{]*/y))).trim()
    if (name === '') return 'malformed'
    if (nameEnd !== undefined) yield* reader.literal(nameEnd)
    const written: TextArgument[] = []
    yield* reader.space()
    while (yield* reader.literal(key.open)) {
      const { text: keyText, marker: keyEnd } = yield* reader.upTo(keyEnds)
      yield* reader.space()
      if (keyEnd !== key.close || !(yield* reader.literal(value.open))) return 'malformed'
      const { text, marker } = yield* reader.upTo(closesEarly ? earlyValueEnds : valueEnds)
      if (marker === undefined) return 'unclosed'
      if (marker !== value.close) return 'malformed'
      written.push({ name: keyText.trim(), text })
      yield* reader.space()
    }
    // A truncated call is not a tool call: its name may be incomplete, and another parameter may be missing.
    const isComplete = yield* reader.literal(call.close)
    return isComplete ? [{ name, arguments: toJsonArguments(name, written, tools) }] : 'malformed'
  }

  return { opens: [call.open], close: call.close, read: readCall }
}
