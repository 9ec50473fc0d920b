/**
 * Kimi K2's tool calls: `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`, all in
 * one section. `functions.f:0` is the call's id, and the template wants to see it again.
 * Sources: Kimi K2's `tool_call_guidance.md`; vLLM's `kimi_k2_tool_parser.py`.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import { type BlockReading, blockFamily, THINK_OR_CALL } from './block-parser.ts'
import { endsBlock, readArguments } from './json-calls.ts'
import type { Reading, TextReader } from './text-reader.ts'

const ARGUMENTS_BEGIN = '<|tool_call_argument_begin|>'
const CLOSE = '<|tool_call_end|>'
const HEADER_ENDS = new MarkerSet([ARGUMENTS_BEGIN, CLOSE])

export const kimi = blockFamily('kimi_k2', [ARGUMENTS_BEGIN], {
  reasoning: THINK_OR_CALL,
  call: {
    opens: ['<|tool_call_begin|>'],
    close: CLOSE,
    wrapper: { open: '<|tool_calls_section_begin|>', close: '<|tool_calls_section_end|>' },
    read: readCall,
  },
})

function* readCall(reader: TextReader): Reading<BlockReading> {
  const header = yield* reader.upTo(HEADER_ENDS)
  if (header.marker !== ARGUMENTS_BEGIN) return 'malformed'
  const id = header.text.trim()
  const name = /^(?:functions\.)?([\w.-]+):\d+$/.exec(id)?.[1]
  if (name === undefined) return 'malformed'
  const reading = yield* readArguments(reader, { id, name })
  if (!Array.isArray(reading)) return reading
  return (yield* endsBlock(reader, CLOSE)) ? reading : 'misread'
}
