/**
 * Hermes' tool calls, which Qwen2.5, Qwen3 and many fine-tunes write:
 * `<tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>`, with `<think>…</think>` before them.
 * Sources: the chat templates of Qwen2.5 and Qwen3; vLLM's `hermes_tool_parser.py` and `qwen3_reasoning_parser.py`.
 */
import { blockFamily, THINK_OR_CALL } from './block-parser.ts'
import { namedCallSyntax } from './json-calls.ts'

export const hermes = blockFamily('hermes', [], {
  reasoning: THINK_OR_CALL,
  call: namedCallSyntax('<tool_call>', '</tool_call>', { name: 'name', arguments: ['arguments'] }),
})
