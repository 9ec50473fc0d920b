/** Families without a test file of their own; texts as in their templates and vLLM's parsers. */
import t from 'tap'
import type { Tool } from '../../../../../src/protocol/canonical/messages.ts'
import { findParser, PARSER_FAMILIES } from '../../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { assertSameForAnyChunks, parse, parseBriefly } from './parse.ts'

const tools: Tool[] = [
  {
    type: 'function',
    function: {
      name: 'f',
      parameters: { type: 'object', properties: { text: { type: 'string' }, count: { type: 'integer' } } },
    },
  },
]
const read = (name: string, text: string) => parseBriefly(findParser(name), text, { tools })
const ARRAY = '[{"name": "f", "arguments": {"text":  "]</tool_calls>"}}, {"name": "g", "arguments": {}}]'
const CALLS = ['f({"text":  "]</tool_calls>"})', 'g({})']

t.test('granite, phi4, hunyuan, nemotron: one array of tool calls between markers', async (t) => {
  t.same(read('granite', `<|tool_call|>${ARRAY}`), { calls: CALLS })
  t.same(read('granite', `I look.\n<tool_call>${ARRAY}</tool_call>`), { content: 'I look.', calls: CALLS })
  t.same(read('phi4_mini_json', `functools${ARRAY}`), { calls: CALLS })
  t.same(read('phi4_mini_json', `<|tool_call|>${ARRAY}<|/tool_call|>`), { calls: CALLS })
  t.same(read('hunyuan_a13b', `<tool_calls>${ARRAY}</tool_calls>`), { calls: CALLS })
  t.same(read('nemotron_json', `<TOOLCALL>${ARRAY}</TOOLCALL>`), { calls: CALLS })
})

t.test('text that is not an array of tool calls stays visible with its markers', async (t) => {
  for (const [name, text] of [
    ['phi4_mini_json', 'import functools\nfunctools.partial(f)'],
    ['granite', '<|tool_call|>[]'],
    ['hunyuan_a13b', '<tool_calls>[{"name": "f"}]</tool_calls>'],
    ['cohere_command', '<|START_ACTION|>[{"tool_name": 1, "parameters": {}}]<|END_ACTION|>'],
    ['apertus', '<|tools_prefix|>[{"f": {}, "g": {}}]<|tools_suffix|>'],
    ['lfm2', '<|tool_call_start|>[f(1)]<|tool_call_end|>'],
    ['lfm2', '<|tool_call_start|>[f(a=1)] and more<|tool_call_end|>'],
  ] as const) {
    t.same(read(name, text), { content: text }, text)
  }
})

t.test('markers around the complete content are removed; elsewhere they are content', async (t) => {
  t.same(read('hunyuan_a13b', '<think>\nhm\n</think>\n<answer>\nHi.\n</answer>'), {
    reasoning: '\nhm\n',
    content: 'Hi.',
  })
  t.same(read('granite', '<think>hm</think><response>Hi.</response>'), { reasoning: 'hm', content: 'Hi.' })
  t.same(
    read('cohere_command', '<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Hi.<|END_RESPONSE|>'),
    {
      reasoning: 'hm',
      content: 'Hi.',
    },
  )
  t.same(read('granite', 'Close it with </response> there.'), { content: 'Close it with </response> there.' })
})

t.test('seed_oss: its own markers around reasoning and tool calls', async (t) => {
  const call =
    '<seed:tool_call>\n<function=f>\n<parameter=count>5</parameter>\n<parameter=text>5</parameter>\n</function>\n</seed:tool_call>'
  t.same(read('seed_oss', `<seed:think>hm</seed:think>I look.${call}`), {
    reasoning: 'hm',
    content: 'I look.',
    calls: ['f({"count": 5, "text": "5"})'],
  })
})

t.test('deepseek_v32: the markup determines which arguments are strings, whatever the schema', async (t) => {
  const parameter = (name: string, isString: boolean, text: string) =>
    `<｜DSML｜parameter name="${name}" string="${isString}">${text}</｜DSML｜parameter>\n`
  const text = `<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n${parameter('count', true, '5')}${parameter('text', false, '[1]')}</｜DSML｜invoke>\n</｜DSML｜function_calls>`
  t.same(read('deepseek_v32', text), { calls: ['f({"count": "5", "text": [1]})'] })
})

t.test('cohere: ids that restart in each response are not forwarded', async (t) => {
  const text = '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>'
  t.same(parse(findParser('cohere_command'), text).toolCalls[0]?.id, 'id_0')
})

t.test('kimi, mistral, cohere: tool calls end reasoning that was not closed', async (t) => {
  const texts = {
    kimi_k2:
      '<think>hm<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
    mistral: '[THINK]hm[TOOL_CALLS]f[ARGS]{}',
    cohere_command:
      '<|START_THINKING|>hm<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>',
  }
  for (const [name, text] of Object.entries(texts))
    t.same(read(name, text), { reasoning: 'hm', calls: ['f({})'] }, name)
})

t.test('lfm2: strings may contain unescaped quotes', async (t) => {
  const call = (written: string) => `<|tool_call_start|>[${written}]<|tool_call_end|>`
  t.same(read('lfm2', call(`f(text='it's "so"', count=-1_000, x=[True, None, {"a": (1.5, .5)}])`)), {
    calls: ['f({"text": "it\'s \\"so\\"", "count": -1000, "x": [true, null, {"a": [1.5, 0.5]}]})'],
  })
  t.same(read('lfm2', call(`ns.f(text="a\\nb")`)), { calls: ['ns.f({"text": "a\\nb"})'] })
  const deep = `f(a=${'['.repeat(5000)}${']'.repeat(5000)})`
  t.same(read('lfm2', call(deep)), { content: call(deep) }, 'too deep to be an argument')
})

t.test('for any chunks of the text, the result is the same, for every family', async () => {
  for (const family of PARSER_FAMILIES.values()) {
    assertSameForAnyChunks(
      family,
      [
        ...family.keepTokens,
        'f',
        '\n',
        ' ',
        '{"name": "f", "arguments": {}}',
        '"',
        '[',
        ']',
        '{',
        '}',
        ':',
        ',',
        'f(a=1)',
        'functools',
      ],
      200,
    )
  }
})
