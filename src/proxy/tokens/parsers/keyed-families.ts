/** The families that write each parameter of a tool call as two elements: one with its name and one with its value. */
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

/** Matches a marker with a suffix, and captures the suffix. */
const SUFFIXED_MARKER = /^<(?:think|tool_calls|tool_call|arg_key|arg_value)(:[^\s>]+)>$/

/** Hunyuan 4 with plain markers; see {@link createHunyuan4Family}. */
export const hunyuan4 = createHunyuan4Family([])

/**
 * Creates the family of Hunyuan 4: `<tool_calls><tool_call>f<arg_key>a</arg_key><arg_value>value</arg_value>` and so
 * on. Each checkpoint adds a different suffix to the markers, such as `<tool_call:6124c78e>`. Source: vLLM's
 * `hy_v4_tool_parser.py` and `hy_v4_reasoning_parser.py`.
 * @param addedTokens the added tokens of the checkpoint's tokenizer, which contain the markers
 */
export function createHunyuan4Family(addedTokens: Iterable<string>): ParserFamily {
  const suffixes = Iterator.from(addedTokens).map((token) => SUFFIXED_MARKER.exec(token)?.[1])
  const suffix = suffixes.find((found) => found !== undefined) ?? ''
  const wrapper = createMarkers('tool_calls', suffix)
  return createKeyedFamily('hy_v4', suffix, { wrapper, callEndsReasoning: false })
}

function createHunyuanFamily(name: string, suffix: string): ParserFamily {
  const wrapper = createMarkers('tool_calls', suffix)
  return createKeyedFamily(name, suffix, { nameEnd: `<tool_sep${suffix}>`, wrapper })
}

/** The properties in which the families differ besides their suffix. */
interface FamilyMarkup {
  /** An optional marker after the function's name. Default: none. */
  nameEnd?: string
  /** The markers around all tool calls. Default: none. */
  wrapper?: Markers
  /** Whether a tool call that begins inside reasoning ends it. Default: yes. */
  callEndsReasoning?: boolean
}

/** Creates a family. @param suffix the suffix of the markers' names */
function createKeyedFamily(
  name: string,
  suffix: string,
  { nameEnd, wrapper, callEndsReasoning = true }: FamilyMarkup = {},
): ParserFamily {
  const [key, value] = [createMarkers('arg_key', suffix), createMarkers('arg_value', suffix)]
  const inner = [key.open, key.close, value.open, value.close, ...(nameEnd ? [nameEnd] : [])]
  const call = createKeyedSyntax({ call: createMarkers('tool_call', suffix), key, value, nameEnd })
  return createBlockFamily(name, inner, {
    reasoning: { ...createMarkers('think', suffix), callEndsIt: callEndsReasoning },
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
    // A truncated call is text, because its name may be incomplete, or another parameter may be missing.
    const isComplete = yield* reader.literal(call.close)
    return isComplete ? [{ name, arguments: toJsonArguments(name, written, tools) }] : 'malformed'
  }

  return { opens: [call.open], close: call.close, read: readCall }
}
