/**
 * Hunyuan 3's tool calls: `<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>value</arg_value>\n`
 * and so on. Its public tokenizers give each of these markers a suffix: `<tool_call:opensource>`.
 * Sources: the chat template of Hy3; SGLang's `hunyuan_detector.py`.
 */
import { blockFamily, type Markers } from './block-parser.ts'
import { keyedCallSyntax, keyedMarkers } from './keyed-calls.ts'
import type { ParserFamily } from './output-parser.ts'

export const hunyuan = hunyuanFamily('hy_v3', '')
export const hunyuanOpenSource = hunyuanFamily('hy_v3_opensource', ':opensource')

function hunyuanFamily(name: string, suffix: string): ParserFamily {
  const markers = (tag: string): Markers => ({ open: `<${tag}${suffix}>`, close: `</${tag}${suffix}>` })
  const tags = {
    call: markers('tool_call'),
    key: markers('arg_key'),
    value: markers('arg_value'),
    nameEnd: `<tool_sep${suffix}>`,
  }
  return blockFamily(name, keyedMarkers(tags), {
    reasoning: { ...markers('think'), callEndsIt: true },
    call: { ...keyedCallSyntax(tags), wrapper: markers('tool_calls') },
  })
}
