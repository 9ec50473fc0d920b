/**
 * Qwen3-Coder's and Qwen3.5's tool calls:
 * `<tool_call>\n<function=f>\n<parameter=a>\nvalue\n</parameter>\n</function>\n</tool_call>`.
 * The model sometimes leaves `<tool_call>` out, so the call is what stands in `<function=…>`.
 * Sources: the chat template of Qwen3-Coder; vLLM's `qwen3coder_tool_parser.py`.
 */
import { blockFamily, THINK } from './block-parser.ts'
import { taggedCallSyntax } from './tagged-calls.ts'

export const qwen3Coder = blockFamily('qwen3_coder', [], {
  reasoning: THINK,
  call: taggedCallSyntax({
    call: '<function=',
    callClose: '</function>',
    parameter: '<parameter=',
    parameterClose: '</parameter>',
    nameEnd: '>',
    wrapper: { open: '<tool_call>', close: '</tool_call>' },
  }),
})
