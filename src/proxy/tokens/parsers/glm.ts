/**
 * GLM's tool calls, since 4.5:
 * `<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>value</arg_value>\n</tool_call>`; 4.7 writes no newlines.
 * Sources: the chat templates of GLM-4.5 and 4.7; vLLM's `glm4_moe_tool_parser.py` and `glm47_moe_tool_parser.py`.
 */
import { blockFamily, THINK_OR_CALL } from './block-parser.ts'
import { keyedCallSyntax, keyedMarkers } from './keyed-calls.ts'

const TAGS = {
  call: { open: '<tool_call>', close: '</tool_call>' },
  key: { open: '<arg_key>', close: '</arg_key>' },
  value: { open: '<arg_value>', close: '</arg_value>' },
}

export const glm = blockFamily('glm45', keyedMarkers(TAGS), {
  reasoning: THINK_OR_CALL,
  call: keyedCallSyntax(TAGS),
})
