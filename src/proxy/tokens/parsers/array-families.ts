/** The families that write all calls of an answer as one JSON array between two markers. */
import { blockFamily, THINK } from './block-parser.ts'
import { arrayCallSyntax, type CallKeys } from './json-calls.ts'

const NAMED: CallKeys = { name: 'name', arguments: ['arguments', 'parameters'] }

/**
 * Granite 3: `<|tool_call|>[{"name": "f", "arguments": {…}}]`, by some of its versions behind `<tool_call>`.
 * Sources: the chat template of Granite 3.3; vLLM's `granite_tool_parser.py`.
 */
export const granite = blockFamily('granite', [], {
  reasoning: THINK,
  answer: [{ open: '<response>', close: '</response>' }],
  call: arrayCallSyntax(['<|tool_call|>', '<tool_call>'], '</tool_call>', NAMED),
})

/**
 * Phi 4 mini: `functools[{"name": "f", "arguments": {…}}]`, or the array between its own special tokens.
 * Sources: the model card of Phi-4-mini-instruct; vLLM's `phi4mini_tool_parser.py`.
 */
export const phi4Mini = blockFamily('phi4_mini_json', [], {
  reasoning: THINK,
  call: arrayCallSyntax(['functools', '<|tool_call|>'], '<|/tool_call|>', NAMED),
})

/**
 * Hunyuan A13B: `<tool_calls>[{"name": "f", "arguments": {…}}]</tool_calls>`, content in `<answer>…</answer>`.
 * Sources: the model's chat template; vLLM's `hunyuan_a13b_tool_parser.py` and `hunyuan_a13b_reasoning_parser.py`.
 */
export const hunyuanA13b = blockFamily('hunyuan_a13b', [], {
  reasoning: THINK,
  answer: [{ open: '<answer>', close: '</answer>' }],
  call: arrayCallSyntax(['<tool_calls>'], '</tool_calls>', NAMED),
})

/**
 * Nemotron Nano v2: `<TOOLCALL>[{"name": "f", "arguments": {…}}]</TOOLCALL>`.
 * Sources: the model's chat template; vLLM's `nemotron_json_tool_parser.py`.
 */
export const nemotronJson = blockFamily('nemotron_json', [], {
  reasoning: THINK,
  call: arrayCallSyntax(['<TOOLCALL>'], '</TOOLCALL>', NAMED),
})

/**
 * Cohere's Command R7B and A: `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters":
 * {…}}]<|END_ACTION|>`. Its ids count from 0 in each answer. Sources: the chat template of Command R7B; SGLang's
 * `cohere_command4_detector.py`.
 */
export const cohere = blockFamily('cohere_command', [], {
  reasoning: { open: '<|START_THINKING|>', close: '<|END_THINKING|>' },
  answer: [
    { open: '<|START_RESPONSE|>', close: '<|END_RESPONSE|>' },
    { open: '<|START_TEXT|>', close: '<|END_TEXT|>' },
  ],
  call: arrayCallSyntax(['<|START_ACTION|>'], '<|END_ACTION|>', {
    name: 'tool_name',
    arguments: ['parameters'],
    id: null,
  }),
})
