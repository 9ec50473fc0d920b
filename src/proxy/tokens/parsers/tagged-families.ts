/** The families that write each parameter of a tool call as an element with plain text. */
import { createBlockFamily, type Markers, THINK, THINK_OR_CALL } from './block-parser.ts'
import { createInvokeTags, createTaggedSyntax } from './tagged-tool-calls.ts'

const FUNCTION_TAGS = {
  call: '<function=',
  callClose: '</function>',
  parameter: '<parameter=',
  parameterClose: '</parameter>',
  nameEnds: { '>': {} },
}

/**
 * Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5:
 * `<tool_call>\n<function=f>\n<parameter=a>\nvalue\n</parameter>\n</function>\n</tool_call>`. Models sometimes omit
 * `<tool_call>`, so `<function=…>` delimits the call.
 * Sources: the models' chat templates; vLLM's `parser/qwen3.py`; SGLang's `qwen3_coder_detector.py`.
 */
export const qwen3Coder = createBlockFamily('qwen3_coder', [], {
  reasoning: THINK_OR_CALL,
  call: createTaggedSyntax({ ...FUNCTION_TAGS, wrapper: { open: '<tool_call>', close: '</tool_call>' } }),
})

/**
 * MiMo V2: Qwen3-Coder's tags, with each value on the line of its tags: `<parameter=a>value</parameter>`.
 * Sources: vLLM's `parser/mimo.py`; SGLang's `mimo_detector.py`.
 */
export const mimo = createBlockFamily('mimo', [], {
  reasoning: THINK_OR_CALL,
  call: createTaggedSyntax({
    ...FUNCTION_TAGS,
    keepsNewlines: true,
    wrapper: { open: '<tool_call>', close: '</tool_call>' },
  }),
})

/**
 * Seed-OSS: Qwen3-Coder's tags in `<seed:tool_call>`, reasoning in `<seed:think>`.
 * Sources: the model's chat template; vLLM's `seed_oss_tool_parser.py` and `seedoss_reasoning_parser.py`.
 */
export const seedOss = createBlockFamily('seed_oss', [], {
  reasoning: { open: '<seed:think>', close: '</seed:think>', callEndsIt: true },
  call: createTaggedSyntax({
    ...FUNCTION_TAGS,
    wrapper: { open: '<seed:tool_call>', close: '</seed:tool_call>' },
  }),
})

/**
 * MiniMax M2: `<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">value</parameter>\n</invoke>\n` and so on.
 * Sources: the model's chat template; vLLM's `parser/minimax_m2.py`; SGLang's `minimax_m2.py`.
 */
export const minimaxM2 = createBlockFamily('minimax_m2', [], {
  reasoning: THINK_OR_CALL,
  call: createTaggedSyntax({
    ...createInvokeTags(''),
    wrapper: { open: '<minimax:tool_call>', close: '</minimax:tool_call>' },
  }),
})

/**
 * DeepSeek V3.2: MiniMax M2's elements in DSML's notation. Each parameter declares whether it is a string or JSON:
 * `<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>`.
 * Sources: the model's chat template; SGLang's `deepseekv32_detector.py`.
 */
export const deepseekV32 = createBlockFamily('deepseek_v32', [], {
  reasoning: THINK,
  call: createDsmlSyntax('function_calls'),
})

/**
 * DeepSeek V4: the format of V3.2 in a `tool_calls` element, which may begin inside unclosed reasoning.
 * Sources: the model's chat template; vLLM's `parser/deepseek_v4.py`; SGLang's `deepseekv4_detector.py`.
 */
export const deepseekV4 = createBlockFamily('deepseek_v4', [], {
  reasoning: THINK_OR_CALL,
  call: createDsmlSyntax('tool_calls'),
})

/**
 * DeepSeek V4.1: the format of V4 with a space before the name of each tag: `<｜DSML｜ calls>`, `<｜DSML｜ invoke
 * name="f">`.
 * Sources: the model's prompt encoder; SGLang's `deepseekv41_detector.py`.
 */
export const deepseekV41 = createBlockFamily('deepseek_v41', [], {
  reasoning: THINK_OR_CALL,
  call: createDsmlSyntax(' calls', ' '),
})

function createDsmlSyntax(wrapper: string, space = '') {
  return createTaggedSyntax({
    ...createInvokeTags(`｜DSML｜${space}`),
    nameEnds: {
      '">': {},
      '" string="true">': { type: 'string' },
      '" string="false">': { type: 'json' },
    },
    mustClose: true,
    wrapper: { open: `<｜DSML｜${wrapper}>`, close: `</｜DSML｜${wrapper}>` },
  })
}

/**
 * MiniCPM5: `<function name="f"><param name="a"><![CDATA[text]]></param><param name="n">5</param></function>`.
 * Sources: the model's chat template; vLLM's `minicpm5xml_tool_parser.py`; SGLang's `minicpm5_detector.py`.
 */
export const miniCpm5 = createBlockFamily('minicpm5', [], {
  reasoning: THINK,
  call: createTaggedSyntax({
    call: '<function name="',
    callClose: '</function>',
    parameter: '<param name="',
    parameterClose: '</param>',
    nameEnds: { '">': {} },
    cdata: true,
    mustClose: true,
    untyped: 'json',
  }),
})

/**
 * dots: MiniMax M2's tags in `<dots_function_call>`; a call must be closed.
 * Sources: vLLM's `dots_tool_parser.py`; SGLang's `dots_detector.py`.
 */
export const dots = createBlockFamily('dots', [], {
  reasoning: THINK,
  call: createTaggedSyntax({
    ...createInvokeTags(''),
    mustClose: true,
    wrapper: { open: '<dots_function_call>', close: '</dots_function_call>' },
  }),
})

/**
 * Step 3: `<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">` and
 * `<steptml:parameter name="a">value</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>`.
 * Sources: vLLM's `step3_tool_parser.py` and `step3_reasoning_parser.py`; SGLang's `step3_detector.py`.
 */
export const step3 = createBlockFamily(
  'step3',
  ['<｜tool_call_begin｜>', '<｜tool_sep｜>', '<｜tool_call_end｜>'],
  {
    reasoning: THINK,
    call: createTaggedSyntax({
      ...createInvokeTags('steptml:'),
      call: '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
      callClose: '</steptml:invoke><｜tool_call_end｜>',
      mustClose: true,
      wrapper: { open: '<｜tool_calls_begin｜>', close: '<｜tool_calls_end｜>' },
    }),
  },
)

/**
 * Kimi K3: `<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a"
 * type="string"<|sep|>text` `<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>`, content in a
 * `response` element.
 * Sources: the model's chat template; SGLang's `kimik3_detector.py` and `kimik3_format.py`.
 */
export const kimiK3 = createBlockFamily('kimi_k3', ['<|open|>', '<|close|>', '<|sep|>'], {
  reasoning: createChannel('think'),
  silent: [...Object.values(createChannel('response')), createChannel('message').close],
  call: createTaggedSyntax({
    call: '<|open|>call ',
    callClose: createChannel('call').close,
    parameter: '<|open|>argument ',
    parameterClose: createChannel('argument').close,
    nameEnds: { '<|sep|>': {} },
    parseHead: parseKimiHead,
    keepsNewlines: true,
    mustClose: true,
    wrapper: createChannel('tools'),
  }),
})

function createChannel(name: string): Markers {
  return { open: `<|open|>${name}<|sep|>`, close: `<|close|>${name}<|sep|>` }
}

function parseKimiHead(text: string): { name: string; type: 'string' | 'json' } {
  const attribute = (name: string) =>
    new RegExp(`(?:^|\\s)${name}="([^"]*)"`)
      .exec(text)?.[1]
      ?.replaceAll('&quot;', '"')
      .replaceAll('&amp;', '&')
  const type = attribute('type') ?? 'string'
  return { name: attribute('tool') ?? attribute('key') ?? '', type: type === 'string' ? 'string' : 'json' }
}
