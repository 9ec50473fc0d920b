/** The families that write tool calls as JSON between markers, most of them as one array. */
import { createBlockFamily, THINK, THINK_OR_CALL } from './block-parser.ts'
import {
  createArraySyntax,
  createHeaderSyntax,
  createObjectSyntax,
  createSequenceSyntax,
  decodeString,
  keepJson,
  readArray,
  type ToolCallKeys,
} from './json-tool-calls.ts'

const NAMED: ToolCallKeys = { name: 'name', arguments: ['arguments', 'parameters'] }
const HERMES_KEYS: ToolCallKeys = { name: 'name', arguments: ['arguments'], toArguments: keepJson }

/**
 * Hermes, Qwen2.5, Qwen3 and many fine-tunes: `<tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>`, preceded by
 * `<think>…</think>`.
 * Sources: the chat templates of Qwen2.5 and Qwen3; vLLM's `hermes_tool_parser.py` and `qwen3_reasoning_parser.py`.
 */
export const hermes = createBlockFamily('hermes', [], {
  reasoning: THINK_OR_CALL,
  call: createObjectSyntax('<tool_call>', '</tool_call>', HERMES_KEYS),
})

/**
 * Granite 3: `<|tool_call|>[{"name": "f", "arguments": {…}}]`; some versions begin with `<tool_call>`.
 * Sources: the chat template of Granite 3.3; vLLM's `granite_tool_parser.py`.
 */
export const granite = createBlockFamily('granite', [], {
  reasoning: THINK,
  answer: [{ open: '<response>', close: '</response>' }],
  call: createArraySyntax(['<|tool_call|>', '<tool_call>'], '</tool_call>', {
    ...NAMED,
    toArguments: decodeString,
  }),
})

/**
 * Phi 4 mini: `functools[{"name": "f", "arguments": {…}}]`, or the array between special tokens.
 * Sources: the model card of Phi-4-mini-instruct; vLLM's `phi4mini_tool_parser.py`.
 */
export const phi4Mini = createBlockFamily('phi4_mini_json', [], {
  reasoning: THINK,
  call: createArraySyntax(['functools', '<|tool_call|>'], '<|/tool_call|>', {
    ...NAMED,
    toArguments: keepJson,
  }),
})

/**
 * Hunyuan A13B: `<tool_calls>[{"name": "f", "arguments": {…}}]</tool_calls>`, content in `<answer>…</answer>`.
 * Sources: the model's chat template; vLLM's `hunyuan_a13b_tool_parser.py` and `hunyuan_a13b_reasoning_parser.py`.
 */
export const hunyuanA13b = createBlockFamily('hunyuan_a13b', [], {
  reasoning: THINK,
  answer: [{ open: '<answer>', close: '</answer>' }],
  call: createArraySyntax(['<tool_calls>'], '</tool_calls>', {
    ...NAMED,
    toArguments: (json) => (json.startsWith('"') ? decodeString(json) : undefined),
  }),
})

/**
 * Nemotron Nano v2: `<TOOLCALL>[{"name": "f", "arguments": {…}}]</TOOLCALL>`.
 * Sources: the model's chat template; vLLM's `nemotron_json_tool_parser.py`.
 */
export const nemotronJson = createBlockFamily('nemotron_json', [], {
  reasoning: THINK,
  call: createArraySyntax(['<TOOLCALL>'], '</TOOLCALL>', NAMED),
})

/**
 * Cohere's Command R7B and A: `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters":
 * {…}}]<|END_ACTION|>`. Tool-call ids count from 0 in each completion, so they are not passed to the agent. Sources:
 * the chat template of Command R7B; SGLang's `cohere_command4_detector.py`.
 */
export const cohere = createBlockFamily('cohere_command', [], {
  reasoning: { open: '<|START_THINKING|>', close: '<|END_THINKING|>', callEndsIt: true },
  answer: [
    { open: '<|START_RESPONSE|>', close: '<|END_RESPONSE|>' },
    { open: '<|START_TEXT|>', close: '<|END_TEXT|>' },
  ],
  call: createArraySyntax(['<|START_ACTION|>'], '<|END_ACTION|>', {
    name: 'tool_name',
    arguments: ['parameters'],
    id: null,
  }),
})

/**
 * Command R+: ``Action:\n```json\n[{"tool_name": "f", "parameters": {…}}]\n``` ``. Source: the model's chat template.
 */
export const commandRPlus = createBlockFamily('command_r_plus', [], {
  call: createArraySyntax(['Action:\n```json', 'Action: ```json', 'Action:```json'], '```', {
    name: 'tool_name',
    arguments: ['parameters'],
  }),
})

/**
 * Apriel 1.5 and 1.6: `Here are my reasoning steps:\n…\n[BEGIN FINAL RESPONSE]\n…\n<tool_calls>[{"name": "f",
 * "arguments": {…}}]</tool_calls>`. Source: the models' chat templates.
 */
export const apriel = createBlockFamily('apriel', [], {
  reasoning: { open: 'Here are my reasoning steps:', close: '[BEGIN FINAL RESPONSE]', callEndsIt: true },
  answer: [{ open: '[BEGIN FINAL RESPONSE]', close: '[END FINAL RESPONSE]' }],
  call: createArraySyntax(['<tool_calls>'], '</tool_calls>', NAMED),
})

/** MiniMax M1: `<tool_calls>\n{"name": "f", "arguments": {…}}\n…\n</tool_calls>`. Source: the model's chat template. */
export const minimaxM1 = createBlockFamily('minimax_m1', [], {
  reasoning: THINK,
  call: createSequenceSyntax('<tool_calls>', '</tool_calls>', NAMED),
})

/**
 * Tool calls of GigaChat 3, a message with the role `function call` after the content, and of GigaChat 3.1, a token:
 * `<|function_call|>{"name": "f", "arguments": {…}}<|message_sep|>`.
 * Sources: the models' chat templates; vLLM's `gigachat3_tool_parser.py`; SGLang's `gigachat3_detector.py`.
 */
const GIGACHAT_CALL = createObjectSyntax('<|function_call|>', '<|message_sep|>', NAMED)
export const gigaChat3 = createBlockFamily('gigachat3', ['<|role_sep|>'], {
  silent: ['<|message_sep|>'],
  call: { ...GIGACHAT_CALL, opens: [...GIGACHAT_CALL.opens, 'function call<|role_sep|>\n'] },
})

/**
 * Solar Open:
 * `<|think|>…<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{…}`
 * `<|tool_call:end|><|calls|>`, content after `<|content|>`. Source: the model's chat template.
 */
export const solarOpen = createBlockFamily(
  'solar_open',
  ['<|begin|>', '<|tool_call:name|>', '<|tool_call:args|>'],
  {
    reasoning: { open: '<|think|>', close: '<|end|>' },
    silent: ['<|begin|>assistant', '<|content|>', '<|flush|>'],
    call: createHeaderSyntax('<|tool_call:begin|>', ['<|tool_call:name|>', '<|tool_call:args|>'], {
      close: '<|tool_call:end|>',
      wrapper: { open: '<|tool_calls|>', close: '<|calls|>' },
    }),
  },
)

/**
 * Kimi K2: `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`, all calls in one
 * section. `functions.f:0` is the tool call's id, which the template expects in later requests.
 * Sources: Kimi K2's `tool_call_guidance.md`; vLLM's `kimi_k2_tool_parser.py`.
 */
export const kimi = createBlockFamily('kimi_k2', ['<|tool_call_argument_begin|>'], {
  reasoning: THINK_OR_CALL,
  call: createHeaderSyntax(
    '<|tool_call_begin|>',
    ['<|tool_call_argument_begin|>'],
    {
      close: '<|tool_call_end|>',
      acceptsAnyJson: true,
      wrapper: { open: '<|tool_calls_section_begin|>', close: '<|tool_calls_section_end|>' },
    },
    ([id = '']) => {
      const name = /^(?:functions\.)?([\w.-]+):\d+$/.exec(id)?.[1]
      return name === undefined ? undefined : { id, name }
    },
  ),
})

/**
 * Apertus: `<|tools_prefix|>[{"f": {…}}, {"g": {…}}]<|tools_suffix|>`, reasoning in
 * `<|inner_prefix|>…<|inner_suffix|>`.
 * Sources: the chat template of Apertus-8B; SGLang's `apertus2509_detector.py`.
 */
export const apertus = createBlockFamily('apertus', [], {
  reasoning: { open: '<|inner_prefix|>', close: '<|inner_suffix|>' },
  call: {
    opens: ['<|tools_prefix|>'],
    close: '<|tools_suffix|>',
    *read(reader) {
      yield* reader.space()
      if (!(yield* reader.literal('['))) return 'malformed'
      const calls = yield* readArray(reader, (members) => {
        const [[name, written] = ['', '']] = members
        return members.size === 1 ? [{ name, arguments: written }] : undefined
      })
      if (calls === 'misread') return calls
      yield* reader.space()
      yield* reader.literal('<|tools_suffix|>')
      return calls
    },
  },
})

/** Functionary 3.1: `<function=f>{…}</function>`. Source: the model's chat template. */
export const functionaryV31 = createBlockFamily('functionary_v3_1', [], {
  call: createHeaderSyntax('<function=', ['>'], { close: '</function>' }),
})

/**
 * LongCat Flash: `<longcat_tool_call>\n{"name": "f", "arguments": {…}}\n</longcat_tool_call>`.
 * Source: vLLM's `longcat_tool_parser.py`.
 */
export const longcat = createBlockFamily('longcat', [], {
  call: createObjectSyntax('<longcat_tool_call>', '</longcat_tool_call>', HERMES_KEYS),
})

/**
 * ERNIE 4.5: `…</think>\n\n<tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>`, or content in
 * `<response>…</response>`.
 * Sources: vLLM's `ernie45_tool_parser.py` and `ernie45_reasoning_parser.py`.
 */
export const ernie45 = createBlockFamily('ernie45', [], {
  reasoning: THINK,
  answer: [{ open: '<response>', close: '</response>' }],
  call: createObjectSyntax('<tool_call>', '</tool_call>', HERMES_KEYS),
})

/**
 * InternLM 2 and 3, Intern-S1: `<|action_start|><|plugin|>\n{"name": "f", "parameters": {…}}<|action_end|>`.
 * Sources: vLLM's `internlm2_tool_parser.py`; SGLang's `internlm_detector.py`.
 */
const INTERNLM_CALL = createObjectSyntax('<|action_start|><|plugin|>', '<|action_end|>', {
  name: 'name',
  arguments: ['parameters', 'arguments'],
  toArguments: keepJson,
})
export const internlm = createBlockFamily('internlm', ['<|action_start|>', '<|plugin|>'], {
  reasoning: THINK,
  call: { ...INTERNLM_CALL, opens: [...INTERNLM_CALL.opens, '<|action_start|> <|plugin|>'] },
})
